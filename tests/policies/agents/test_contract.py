"""The contract of every agent with training modules and the wrapper.

States and transitions are made up.
"""

from __future__ import annotations

import io

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.policies.navigation_spaces import (
    AGENTS,
    CONTINUOUS,
    DISCRETE,
    gradients,
    make,
    seen_by,
    spec_for,
    transitions,
)
from tests.tolerances import assert_near
from torchrl_gpu.policies import Agent, EpsilonGreedy, PeriodicTargets, PolicyWrapper, SoftTargets

each_agent = pytest.mark.parametrize("name", AGENTS)
EXPLORE = ExplorationType.RANDOM


def losses_of(agent: Agent, batch: TensorDict, seed: int = 3) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return agent.losses(batch)


def backward(agent: Agent, loss: Tensor) -> None:
    agent.zero_grad()
    loss.backward()


def updated(agent: Agent, batch: TensorDict, optimizer: torch.optim.Optimizer, number: int = 1) -> None:
    optimizer.zero_grad(set_to_none=False)
    agent.loss(batch)["loss"].backward()
    optimizer.step()
    agent.update_targets(number)


# -- losses ------------------------------------------------------------------------------------------------------------


@each_agent
def test_each_loss_reaches_its_own_weights_and_one_pass_over_the_sum_is_as_good(name: str) -> None:
    agent = make(name)
    batch = transitions(name, 32)
    alone = {}
    for trained in agent.parameter_groups:
        backward(agent, losses_of(agent, batch)[trained])
        for group, slopes in gradients(agent).items():
            reached = [slope is not None and bool(slope.any()) for slope in slopes]
            assert all(reached) if group == trained else not any(reached), (trained, group)
        alone[trained] = gradients(agent)[trained]
    assert not batch["td_error"].requires_grad
    torch.manual_seed(3)
    together = agent.loss(batch)
    assert together["loss"].item() == pytest.approx(sum(together[group].item() for group in alone), rel=1e-6)
    backward(agent, together["loss"])
    for group, slopes in gradients(agent).items():
        for slope, expected in zip(slopes, alone[group], strict=True):
            assert_near(slope, expected)
    trained = {id(weight) for weight in agent.parameters_to_train}
    assert all((weight.grad is None) == (id(weight) not in trained) for weight in agent.parameters())


@each_agent
def test_environments_by_robots_lose_what_they_lose_one_by_one(name: str) -> None:
    # The error is an old one.
    agent, flat = make(name), transitions(name, 12, td_error=torch.full((12, 1), -7.0))
    shaped = flat.clone().reshape(4, 3)
    expected, came = losses_of(agent, flat), losses_of(agent, shaped)
    for group, loss in expected.items():
        assert_near(came[group], loss)
    assert shaped["td_error"].shape == (4, 3, 1)
    assert_near(shaped["td_error"].flatten(), flat["td_error"].flatten())
    assert (flat["td_error"] >= 0).all()


@each_agent
def test_rows_of_no_weight_do_not_count(name: str) -> None:
    agent, batch = make(name), transitions(name, 16, priority_weight=(torch.arange(16) % 2).float())
    expected = losses_of(agent, batch)
    batch["next", "reward"] = batch["next", "reward"] + 100 * (1 - batch["priority_weight"])[:, None]
    batch["observation"] = batch["observation"] * (1 + 3 * (1 - batch["priority_weight"])[:, None])
    for group, loss in losses_of(agent, batch).items():
        assert_near(loss, expected[group])


def other_ending(batch: TensorDict, rows: Tensor) -> TensorDict:
    """The same transitions, with other last observations in some rows."""
    changed = batch.clone()
    seen = changed["next", "observation"]
    changed["next", "observation"] = torch.where(rows, seen.flip(0) + 30, seen)
    return changed


@each_agent
def test_the_last_observation_counts_where_an_episode_was_cut_off_and_nowhere_else(name: str) -> None:
    agent, batch = make(name), transitions(name, 32)
    ended, cut = batch["next", "terminated"], batch["next", "truncated"]
    assert cut.any()
    expected = losses_of(agent, batch)
    for group, loss in losses_of(agent, other_ending(batch, ended)).items():
        assert_near(loss, expected[group])
    changed = other_ending(batch, cut)
    losses_of(agent, changed)
    moved = (changed["td_error"] - batch["td_error"]).abs() > 1e-4
    assert torch.equal(moved, cut)


@pytest.mark.parametrize("name", DISCRETE)
def test_a_last_state_without_legal_actions_does_no_harm(name: str) -> None:
    agent, batch = make(name), transitions(name, 16)
    expected = losses_of(agent, batch)
    ended = batch["next", "terminated"]
    assert ended.any()
    batch["next", "action_mask"] = batch["next", "action_mask"] & ~ended
    for group, loss in losses_of(agent, batch).items():
        assert_near(loss, expected[group])


# -- acting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTINUOUS)
def test_actions_stay_within_their_bounds(name: str) -> None:
    agent = make(name, spec=spec_for(name, bounds=(-2.0, 5.0)), exploration=EpsilonGreedy(0.5))
    with torch.no_grad():
        for weight in agent.parameters_to_train:
            weight.mul_(4)
    with set_exploration_type(EXPLORE):
        action = PolicyWrapper(agent, flat=True)(seen_by(name, 500))["action"]
    assert action.min() < -1.5
    assert action.max() > 4.5
    assert (action >= -2).all()
    assert (action <= 5).all()


# -- the device --------------------------------------------------------------------------------------------------------


@each_agent
def test_agents_read_nothing_back(name: str) -> None:
    agent, batch = make(name), transitions(name, 8)
    seen = seen_by(name, 4, 3)
    for targets in (SoftTargets(0.1), PeriodicTargets(1)):
        other = make(name, targets=targets)
        with NoHostReads():
            other.loss(batch)["loss"].backward()
            other.update_targets(1)
    with NoHostReads():
        agent.policy(seen.clone())
        agent.anneal(10)
        with set_exploration_type(EXPLORE):
            PolicyWrapper(agent, flat=True)(seen.clone())
        PolicyWrapper(agent, flat=True).eval()(seen)


@each_agent
def test_gradients_stay_where_they_are(name: str) -> None:
    # Graphs replay at fixed addresses; optimizers that can be captured want a gradient for every weight.
    agent, batch = make(name), transitions(name, 16)
    optimizer = torch.optim.Adam(agent.parameters_to_train, lr=1e-3, foreach=True)
    updated(agent, batch, optimizer)
    weights = agent.parameters_to_train
    where = [(weight.data_ptr(), weight.grad.data_ptr()) for weight in weights]  # type: ignore[union-attr]
    updated(agent, batch, optimizer, 2)
    assert [(weight.data_ptr(), weight.grad.data_ptr()) for weight in agent.parameters_to_train] == where  # type: ignore[union-attr]


# Every agent takes seconds: here the one with losses of actor and critic; `test_compiled` has one with that of actions.
@pytest.mark.parametrize(
    "name", [name if name == "SAC" else pytest.param(name, marks=pytest.mark.soak) for name in AGENTS]
)
def test_losses_compile_to_one_graph(name: str) -> None:
    agent, batch = make(name), transitions(name, 8)
    expected = losses_of(agent, batch)
    torch.compiler.reset()
    torch.manual_seed(3)
    came = torch.compile(lambda rows: agent.losses(rows), fullgraph=True, dynamic=False, backend="eager")(batch)
    for group, loss in expected.items():
        assert_near(came[group], loss)


@each_agent
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_agents_learn_under_autocast(name: str, dtype: torch.dtype) -> None:
    agent, batch = make(name), transitions(name, 32)
    exact = losses_of(agent, batch)
    with torch.autocast("cpu", dtype=dtype):
        action = agent.policy(seen_by(name, 5))["action"]
        losses = losses_of(agent, batch)
    assert action.dtype == (torch.int64 if name in DISCRETE else torch.float32)
    for group, loss in losses.items():
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact[group].item(), rel=0.1, abs=0.1)
    sum(losses.values()).backward()  # type: ignore[union-attr]
    for slopes in gradients(agent).values():
        assert all(slope is not None and slope.isfinite().all() for slope in slopes)


@each_agent
@pytest.mark.parametrize("what", ["loses", "decides"])
def test_under_one_autocast_it_sees_the_weights_of_the_last_step(name: str, what: str) -> None:
    # Autocast keeps weights that it has cast, and does not see that an optimizer has changed them.
    def after_a_step(renew: bool) -> Tensor:
        agent, batch = make(name), transitions(name, 16)
        optimizer = torch.optim.SGD(agent.parameters_to_train, lr=0.05)
        key = "action_value" if name in DISCRETE else "action"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.manual_seed(3)
            agent.loss(batch)["loss"].backward()
            optimizer.step()
            if what == "decides":
                agent.update_targets(1)
            if renew:
                torch.clear_autocast_cache()
            if what == "loses":
                return torch.stack(list(losses_of(agent, batch).values()))
            return agent.policy(seen_by(name, 5))[key]

    assert torch.equal(after_a_step(renew=False), after_a_step(renew=True))


# -- targets and checkpoints -------------------------------------------------------------------------------------------


def target_weights(agent: Agent) -> list[Tensor]:
    """Return the weights that follow, in the order of their names.

    Noise, atoms and bounds do not follow.
    """
    fixed = ("epsilon", "support", "low", "high")
    names = [name for name in agent.state_dict() if "target" in name and not name.endswith((*fixed, "size", "device"))]
    state = agent.state_dict()
    return [state[name].clone() for name in names if isinstance(state[name], Tensor)]


@each_agent
def test_targets_follow_all_that_is_trained(name: str) -> None:
    agent = make(name, targets=SoftTargets(0.25))
    agent.reset_targets()
    before = target_weights(agent)
    with torch.no_grad():
        for weight in agent.parameters_to_train:
            weight.add_(1.0)
    agent.update_targets(1)
    moved = [(now - then).mean().item() for now, then in zip(target_weights(agent), before, strict=True)]
    assert moved == pytest.approx([0.25] * len(moved), abs=1e-4)
    assert moved


@each_agent
def test_a_saved_agent_goes_on_as_it_would_have(name: str) -> None:
    agent, batch = make(name, exploration=EpsilonGreedy(0.5)), transitions(name, 16)
    updated(agent, batch, torch.optim.SGD(agent.parameters_to_train, lr=0.01))
    agent.anneal(40)
    file = io.BytesIO()
    torch.save(agent.state_dict(), file)
    file.seek(0)
    other = make(name, seed=9, exploration=EpsilonGreedy(0.5))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.exploration.epsilon == agent.exploration.epsilon
    for group, loss in losses_of(agent, batch).items():
        assert torch.equal(loss, losses_of(other, batch)[group])
    third = make(name, seed=5, exploration=EpsilonGreedy(0.9))
    policies = [PolicyWrapper(each, flat=True) for each in (agent, other, third)]
    assert not [key for key in policies[0].state_dict() if "target" in key or "critic" in key]
    policies[2].load_state_dict(policies[0].state_dict())
    chosen = []
    for policy in policies:
        torch.manual_seed(4)
        with set_exploration_type(EXPLORE):
            chosen.append(policy(seen_by(name, 16))["action"])
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2])


# -- learning ----------------------------------------------------------------------------------------------------------


def one_step_game(name: str, number: int) -> TensorDict:
    """Return transitions that end at once.

    Their reward is 1 − 2·|a − 0.4|², or 1 for action 2 alone of four.
    """
    batch = transitions(name, number)
    if name in DISCRETE:
        batch["action"] = torch.randint(4, (number,))
        batch["action_mask"] = batch["next", "action_mask"] = torch.ones(number, 4, dtype=torch.bool)
        reward = (batch["action"] == 2).float()[:, None]
    else:
        reward = 1 - 2 * (batch["action"] - 0.4).square().sum(-1, keepdim=True)
    batch["next"].update({"reward": reward, "terminated": torch.ones(number, 1, dtype=torch.bool)})
    return batch


@pytest.mark.parametrize("name", [*DISCRETE, "SAC", "ACIQN", pytest.param("DDPG", marks=pytest.mark.soak)])
def test_a_game_of_one_step_is_learnt(name: str) -> None:
    atoms = {"v_min": -1.0, "v_max": 2.0} if name == "Rainbow" else {}
    agent = make(
        name, spec=spec_for(name, num_actions=4 if name in DISCRETE else None), targets=SoftTargets(0.05), **atoms
    )
    updates, rate = (40, 1e-2)
    if name not in DISCRETE:
        updates, rate = (90, 8e-3) if name == "SAC" else (200, 3e-3)
    optimizer = torch.optim.Adam(agent.parameters_to_train, lr=rate)
    for update, batch in enumerate(one_step_game(name, 32 * updates).split(32), 1):
        updated(agent, batch, optimizer, update)
    action = agent.policy(one_step_game(name, 100))["action"]
    if name in DISCRETE:
        assert (action == 2).float().mean() > 0.95
    else:
        assert (action - 0.4).abs().mean() < 0.15


# -- what is refused ---------------------------------------------------------------------------------------------------


@each_agent
def test_an_action_of_the_other_kind(name: str) -> None:
    wrong = spec_for(name, num_actions=None if name in DISCRETE else 25)
    with pytest.raises(ValueError, match=r"action .*(discrete|continuous).*NavigationSpec"):
        make(name, spec=wrong)
