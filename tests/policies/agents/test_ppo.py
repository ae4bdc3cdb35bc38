"""PPO: its loss against TorchRL's, what it makes of a rollout, and that it climbs."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import IndependentNormal, MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

from tests.no_host_reads import NoHostReads
from tests.policies.agents.test_twins import KEYS, Expanded
from tests.policies.navigation_spaces import gradients, space_of, states
from tests.tolerances import assert_near
from torchrl_gpu.policies import PPO, NavigationGaussian, NavigationScores, NavigationValue, PolicyWrapper
from torchrl_gpu.policies.losses import weighted_mean

KINDS = ("discrete", "continuous")
each_kind = pytest.mark.parametrize("kind", KINDS)


def num_actions(kind: str) -> int | None:
    return 25 if kind == "discrete" else None


def make(kind: str, *, seed: int = 0, **changes: Any) -> PPO:
    torch.manual_seed(seed)
    actor = NavigationScores if kind == "discrete" else NavigationGaussian
    return PPO(space_of(num_actions=num_actions(kind)), **{"actor": actor, "critic": NavigationValue, **changes})


def rollout(agent: PPO, kind: str, n: int = 5, length: int = 9, seed: int = 1) -> TensorDict:
    """Return made-up trajectories (N, T) of the agent's own actions.

    Some end inside, by themselves or cut off.
    """
    steps = states(n, length, num_actions=num_actions(kind), seed=seed)
    after = states(n, length, num_actions=num_actions(kind), seed=seed + 1)
    torch.manual_seed(seed + 2)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        agent.policy(steps)
    ends = torch.randint(5, (n, length, 1))
    after.update({"reward": torch.randn(n, length, 1), "terminated": ends == 0, "done": ends <= 1})
    return steps.set("next", after)


def minibatch(agent: PPO, kind: str, **changes: Any) -> TensorDict:
    """A rollout of other weights, so that ratios are not 1."""
    other = make(kind, seed=3)
    return agent.estimate(rollout(other, kind, **changes))


def torchrl_loss(agent: PPO, kind: str) -> ClipPPOLoss:
    """Return TorchRL's loss, with the agent's networks.

    Continuous actions are those before they are squashed.
    """
    network: Any = agent.policy.network

    if kind == "discrete":
        actor = ProbabilisticActor(
            TensorDictModule(network, KEYS, ["logits"]),
            in_keys={"logits": "logits", "mask": "action_mask"},
            distribution_class=MaskedCategorical,
            return_log_prob=True,
        )
    else:
        actor = ProbabilisticActor(
            TensorDictModule(Expanded(network), KEYS, ["loc", "scale"]),
            in_keys=["loc", "scale"],
            out_keys=["unsquashed_action"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
        )
    loss = ClipPPOLoss(
        actor,
        ValueOperator(agent.critic, KEYS),
        clip_epsilon=agent.clip,
        entropy_coeff=agent.entropy_coeff,
        critic_coeff=1.0,
        loss_critic_type="l2",
        normalize_advantage=False,
        functional=False,
    )
    if kind == "continuous":
        loss.set_keys(action="unsquashed_action", sample_log_prob="action_log_prob")
    return loss


# TorchRL says that it will change what it takes for granted
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@each_kind
def test_losses_and_gradients_are_torchrls(kind: str) -> None:
    agent = make(kind, entropy_coeff=0.05 if kind == "discrete" else 0.0)
    batch = minibatch(agent, kind).exclude("priority_weight")
    found = agent.losses(batch)
    sum(found.values()).backward()  # type: ignore[union-attr]
    ours = [slope.clone() for slope in chain.from_iterable(gradients(agent).values()) if slope is not None]
    agent.zero_grad()
    theirs_of = batch.clone()
    # Squashing changes both densities alike, so their ratio stays.
    if kind == "continuous":
        slope = agent.policy.squash.log_slope(batch["unsquashed_action"]).sum(-1)  # type: ignore[union-attr]
        theirs_of["action_log_prob"] = batch["action_log_prob"] + slope
    theirs = torchrl_loss(agent, kind)(theirs_of)
    actor = theirs["loss_objective"] + theirs.get("loss_entropy", torch.zeros(()))
    # Some are clipped and some are not.
    assert 0.05 < theirs["clip_fraction"] < 0.95
    assert_near(found["actor"], actor)
    assert_near(found["critic"], theirs["loss_critic"])
    assert_near(agent.clip_fraction, theirs["clip_fraction"])
    (actor + theirs["loss_critic"]).backward()
    theirs_by_weight = chain.from_iterable(gradients(agent).values())
    for slope, expected in zip(ours, theirs_by_weight, strict=True):
        assert expected is not None
        assert_near(slope, expected)


@each_kind
def test_each_loss_reaches_its_own_weights_and_all_of_them(kind: str) -> None:
    agent, batch = make(kind), minibatch(make(kind), kind)
    for trained in agent.parameter_groups:
        agent.zero_grad()
        agent.losses(batch)[trained].backward()
        for group, slopes in gradients(agent).items():
            assert all((slope is not None and bool(slope.any())) is (group == trained) for slope in slopes)
    assert batch["td_error"].shape == (45, 1)
    # The agent has no targets.
    agent.update_targets(1)
    assert agent.targets_update_every_step


@each_kind
def test_kl_of_ppo_by_hand(kind: str) -> None:
    agent = make(kind)
    batch = minibatch(agent, kind)
    agent.losses(batch)
    with torch.no_grad():
        log_ratio = agent.policy.evaluate(batch)[0] - batch["action_log_prob"]
    assert log_ratio.abs().max() > 1e-3
    assert_near(agent.metrics["kl"], weighted_mean(log_ratio.exp() - 1 - log_ratio, batch))


@each_kind
def test_ppo_reads_nothing_back(kind: str) -> None:
    agent = make(kind)
    steps = rollout(agent, kind)
    with NoHostReads():
        agent.loss(agent.estimate(steps))["loss"].backward()
        with set_exploration_type(ExplorationType.RANDOM):
            PolicyWrapper(agent, flat=True)(states(4, 3, num_actions=num_actions(kind)))


@each_kind
def test_steps_that_do_not_count(kind: str) -> None:
    agent = make(kind)
    steps = rollout(agent, kind)
    idle = ~steps["active"]
    assert idle.any()
    # In an environment, too, a robot takes no part only after an end.
    steps["next", "done"][:, :-1] |= idle[:, 1:]
    odd = steps.clone()
    odd["next", "reward"] = torch.where(idle, 1e3, odd["next", "reward"])
    torch.manual_seed(0)
    expected = agent.losses(agent.estimate(steps))
    torch.manual_seed(0)
    found = agent.losses(agent.estimate(odd))
    for name, loss in expected.items():
        assert_near(found[name], loss)


@each_kind
def test_a_rollout_is_standardised_as_a_whole_and_keeps_its_order(kind: str) -> None:
    agent = make(kind, gamma=0.9, lam=0.8)
    steps = rollout(agent, kind).exclude("active")
    sample = agent.estimate(steps)
    assert sample.shape == (45,)
    assert set(sample.keys()) == set(agent.batch_keys) - {"priority_weight"}
    assert_near(sample["advantage"].mean(), torch.zeros(()))
    assert_near(sample["advantage"].square().mean(), torch.ones(()))
    assert torch.equal(sample["action"], steps["action"].flatten(0, 1))


def changed(steps: TensorDict, rows: Tensor) -> TensorDict:
    other = steps.clone()
    other["next", "observation"] = torch.where(rows, other["next", "observation"] + 30, other["next", "observation"])
    return other


@each_kind
def test_cut_off_steps_go_on_from_their_true_last_observation_and_others_do_not(kind: str) -> None:
    agent = make(kind)
    steps = rollout(agent, kind, n=8).exclude("active")
    ended, done = steps["next", "terminated"], steps["next", "done"]
    before = agent.estimate(steps)["value_target"].view(8, 9, 1)
    assert torch.equal(agent.estimate(changed(steps, ended))["value_target"].view(8, 9, 1), before)
    cut = done & ~ended
    moved = (agent.estimate(changed(steps, cut))["value_target"].view(8, 9, 1) - before).abs() > 1e-4
    assert moved[cut].all()


def test_a_state_without_a_legal_action_is_an_end() -> None:
    agent = make("discrete")
    steps = rollout(agent, "discrete").exclude("active")
    steps["next", "terminated"] = torch.zeros(5, 9, 1, dtype=torch.bool)
    stuck = steps.clone()
    stuck["next", "action_mask"][:, 4] = False
    ended = steps.clone()
    ended["next", "terminated"][:, 4] = True
    found = agent.estimate(stuck)["value_target"]
    expected = agent.estimate(ended)["value_target"]
    assert torch.equal(found, expected)
    assert not torch.equal(found, agent.estimate(steps)["value_target"])


@each_kind
def test_ppo_values_in_blocks_are_those_in_one_go(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(kind)
    steps = rollout(agent, kind)
    expected = agent.estimate(steps)["value_target"]
    monkeypatch.setattr("torchrl_gpu.policies.agents.ppo._BLOCK", 7)
    assert_near(agent.estimate(steps)["value_target"], expected)


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ppo_learns_under_autocast(kind: str, dtype: torch.dtype) -> None:
    agent = make(kind, entropy_coeff=0.0)
    batch = minibatch(agent, kind)
    exact = agent.losses(batch)
    with torch.autocast("cpu", dtype=dtype):
        losses = agent.losses(agent.estimate(rollout(make(kind, seed=3), kind)))
    for group, loss in losses.items():
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact[group].item(), rel=0.1, abs=0.1)


def game(action: Tensor) -> Tensor:
    """Return rewards (…, 1) of a game.

    1 for five of 25 choices, or 1 − |a − 0.4|².
    """
    good = 1 - (action - 0.4).square().sum(-1) if action.is_floating_point() else (action < 5).float()
    return good[..., None]


def mean_reward(agent: PPO) -> float:
    choices = agent.space.num_actions
    seen = states(400, num_actions=choices, seed=99)
    if choices:
        seen["action_mask"] = torch.ones(400, choices, dtype=torch.bool)
    with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
        return game(agent.policy(seen)["action"]).mean().item()


@each_kind
def test_a_game_of_one_step_is_learnt(kind: str) -> None:
    agent = make(kind, entropy_coeff=0.001)
    assert mean_reward(agent) < 0.4
    optimizer = torch.optim.Adam(agent.parameters_to_train, lr=2e-3)
    for seed in range(30):
        steps = rollout(agent, kind, n=64, length=2, seed=seed).exclude("active")
        steps["next"].update({"reward": game(steps["action"]), "terminated": torch.ones(64, 2, 1, dtype=torch.bool)})
        steps["next", "done"] = steps["next", "terminated"]
        steps["action_mask"] = torch.ones(64, 2, 25, dtype=torch.bool)
        with torch.no_grad():
            steps["action_log_prob"] = agent.policy.evaluate(steps)[0]
        sample = agent.estimate(steps)
        for _ in range(4):
            optimizer.zero_grad()
            agent.loss(sample)["loss"].backward()
            optimizer.step()
    assert mean_reward(agent) > (0.9 if kind == "discrete" else 0.7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"critic": NavigationScores}, r"PPO: NavigationScores .*\(…, 1\)"),
        ({"actor": NavigationValue}, r"PPO: NavigationValue .*\(…, 25\)"),
    ],
)
def test_a_setting_that_makes_no_sense(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("discrete", **wrong)
