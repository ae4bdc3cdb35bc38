"""PPO under Lightning's Trainer.

What is played and learned from, that it repeats itself, and that it resumes exactly.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tests.no_host_reads import NoHostReads
from tests.training.resuming import differences, last, without_replay
from tests.training.tiny import data, dqn, fit, packing_env
from tests.training.tiny_navigation import marine_env, worlds
from tests.training.updates.test_graphed import Body, Counting
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.checkpoints.files import parts_of
from torchrl_gpu.envs import BatchedEnv, DishwashingEnv
from torchrl_gpu.policies import (
    PPO,
    NavigationGaussian,
    NavigationScores,
    NavigationValue,
    PlacementLogits,
    PlacementValue,
    VectorGaussian,
    VectorValue,
)
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.training import Episodes, OffPolicy, OnPolicy, agent_run
from torchrl_gpu.training.accelerated.graphs import Graph
from torchrl_gpu.training.updates.graphed import GraphedLearning, GraphedUpdate

Adam = partial(torch.optim.Adam, lr=2**-9, fused=True)
SMALL = {"channels": 4, "blocks": 1}
KINDS = ("packing", "v2", "v3", "dishes")
each_kind = pytest.mark.parametrize("kind", KINDS)


def env_of(kind: str, **changes: Any) -> BatchedEnv:
    """An environment of boxes, of robots that choose or steer, or of dishes.

    Episodes are short.
    """
    if kind == "packing":
        return packing_env(**changes)
    if kind == "dishes":
        return DishwashingEnv(
            **{"num_envs": 4, "observe_as": "state", "max_steps": 6, "device": "cpu", "seed": 2} | changes
        )
    return marine_env(kind, **changes)


def agent_of(kind: str) -> dict[str, Any]:
    return {
        "packing": {"actor": partial(PlacementLogits, **SMALL), "critic": partial(PlacementValue, **SMALL)},
        "v2": {"actor": NavigationScores, "critic": NavigationValue},
        "v3": {"actor": NavigationGaussian, "critic": NavigationValue},
        "dishes": {"actor": VectorGaussian, "critic": VectorValue},
    }[kind]


def module(
    kind: str = "packing", *, agent: dict[str, Any] | None = None, env: dict[str, Any] | None = None, **changes: Any
) -> OnPolicy:
    torch.manual_seed(7)
    arguments: dict[str, Any] = {"rollout_steps": 4, "epochs": 2, "minibatches": 2, "optimizer": Adam} | changes
    return OnPolicy(env_of(kind, **(env or {})), partial(PPO, **agent_of(kind) | (agent or {})), **arguments)


def trained(made: OnPolicy, folder: Path, kind: str, max_steps: int = 8, *callbacks: Any, **changes: Any) -> OnPolicy:
    few = {"steps_per_epoch": 3, "num_episodes": 4, "num_val_episodes": 2, "pictures": False}
    episodes: Any = {"packing": data, "dishes": partial(Episodes, **few)}.get(kind, worlds)()
    return fit(made, folder, max_steps, *callbacks, data_module=episodes, **changes)


def spied(made: OnPolicy) -> tuple[list[TensorDictBase], list[TensorDictBase]]:
    samples: list[TensorDictBase] = []
    batches: list[TensorDictBase] = []
    estimate, losses = made.agent.estimate, made.agent.losses

    def estimating(steps: TensorDictBase) -> TensorDictBase:
        sample = estimate(steps)
        sample["row"] = torch.arange(len(sample))
        samples.append(sample)
        return sample

    def losing(batch: TensorDictBase) -> dict[str, Tensor]:
        batches.append(batch.clone())
        return losses(batch)

    made.agent.estimate, made.agent.losses = estimating, losing  # type: ignore[method-assign]
    return samples, batches


@pytest.mark.parametrize("max_steps", [1, 6])
def test_max_steps_counts_updates_and_is_met_exactly(tmp_path: Path, max_steps: int) -> None:
    made = trained(module(), tmp_path, "packing", max_steps)
    (state, *_) = made.optimizers().optimizer.state.values()  # type: ignore[union-attr]
    assert made.trainer.global_step == state["step"] == max_steps
    # Rollouts have 4 steps in 8 environments.
    assert made.frames == -(-max_steps // 4) * 4 * 8


@each_kind
def test_every_step_is_learnt_from_once_in_every_epoch(tmp_path: Path, kind: str) -> None:
    made = module(kind, minibatches=4)
    samples, batches = spied(made)
    trained(made, tmp_path, kind, 16)
    assert len(samples) == 2
    assert len(batches) == 16
    rows = len(samples[0])
    assert rows == made.num_trajectories * 4
    for k, sample in enumerate(samples):
        orders = []
        for epoch in range(2):
            chunk = batches[8 * k + 4 * epoch : 8 * k + 4 * epoch + 4]
            assert all(len(batch) == rows // 4 for batch in chunk)
            order = torch.cat([batch["row"] for batch in chunk])
            assert order.sort().values.tolist() == list(range(rows))
            found = torch.cat([batch["advantage"] for batch in chunk])
            assert torch.equal(found, sample["advantage"][order])
            orders.append(order)
        assert not torch.equal(*orders)


def test_robots_that_take_no_part_are_spread_over_the_minibatches(tmp_path: Path) -> None:
    made = module("v2", rollout_steps=12, minibatches=4)
    samples, batches = spied(made)
    trained(made, tmp_path, "v2", 8)
    counts = {sample["priority_weight"].sum().item() for sample in samples}
    # One robot of two is there in each of four worlds.
    assert max(counts) <= 4 * 12
    shares = [batch["priority_weight"].sum().item() for batch in batches[:4]]
    assert sum(shares) in counts
    assert max(shares) - min(shares) <= 1


@each_kind
def test_on_policy_learns_from_the_actions_that_were_played(tmp_path: Path, kind: str) -> None:
    made = module(kind)
    samples, _ = spied(made)
    before = module(kind)
    trained(made, tmp_path, kind, 4)
    (sample,) = samples
    log_prob, _ = before.agent.policy.evaluate(sample)
    there = sample.get("priority_weight", torch.ones(len(sample))) > 0
    assert torch.allclose(log_prob[there], sample["action_log_prob"][there], atol=1e-5)


def test_trajectories_keep_the_order_of_time(tmp_path: Path) -> None:
    made = module("v2", rollout_steps=6)
    seen: list[TensorDictBase] = []
    estimate = made.agent.estimate
    made.agent.estimate = lambda steps: (seen.append(steps.clone()), estimate(steps))[1]  # type: ignore[method-assign,func-returns-value]
    trained(made, tmp_path, "v2", 4)
    (steps,) = seen
    assert steps.shape == (made.num_trajectories, 6)
    goes_on = ~steps["next", "done"][:, :-1, 0] & steps["active"][:, :-1, 0]
    follows = (steps["next", "observation"][:, :-1] == steps["observation"][:, 1:]).all(-1)
    assert goes_on.any()
    assert follows[goes_on].all()


def test_rewards_are_scaled(tmp_path: Path) -> None:
    targets = []
    for scale in (1.0, 100.0):
        made = module(reward_scale=scale, agent={"gamma": 1.0, "lam": 1.0})
        with torch.no_grad():
            for weight in made.agent.critic.parameters():
                weight.zero_()
        samples, _ = spied(made)
        trained(made, tmp_path, "packing", 1)
        targets.append(samples[0]["value_target"])
    assert 0 < targets[0].max() <= 1
    assert torch.allclose(targets[1], 100 * targets[0])


@each_kind
def test_rollouts_and_updates_read_nothing_back(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(
        kind, env={"backend": "eager"} if kind == "packing" else {}, optimizer=partial(torch.optim.Adam, foreach=True)
    )
    play = made.play
    sample = made.sample_of
    batches = made.batches_of
    calls = []

    def playing(policy: Any, steps: int) -> TensorDictBase:
        with NoHostReads():
            return play(policy, steps)

    def sampling(steps: TensorDictBase) -> TensorDictBase:
        with NoHostReads():
            return sample(steps)

    def batching(found: TensorDictBase) -> Any:
        with NoHostReads():
            made_batches = list(batches(found))
            made.agent.loss(made_batches[0])["loss"].backward()
        calls.append(len(made_batches))
        return iter(made_batches)

    monkeypatch.setattr(made, "play", playing)
    monkeypatch.setattr(made, "sample_of", sampling)
    monkeypatch.setattr(made, "batches_of", batching)
    trained(made, tmp_path, kind, 8)
    assert calls == [4, 4]


def test_on_policy_logs_its_figures(tmp_path: Path) -> None:
    metrics = trained(module(), tmp_path, "packing", 12).trainer.callback_metrics
    wanted = {"loss", "actor_loss", "critic_loss", "entropy", "kl", "clip_fraction", "utilization", "frames"}
    assert {f"train/{name}" for name in wanted} | {"val/utilization"} <= set(metrics)
    assert metrics["train/kl"] > 0


class Graphs:
    """Counters of graphs in every run.

    One for all learning from a rollout, and one for an update.
    """

    def __init__(self) -> None:
        self.learning, self.updates = Counting(), Counting()

    @property
    def made(self) -> tuple[int, int]:
        return self.learning.made, self.updates.made


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found = Graphs()
    monkeypatch.setattr(agent_run, "GraphedLearning", partial(GraphedLearning, capture=found.learning))
    monkeypatch.setattr(agent_run, "GraphedUpdate", partial(GraphedUpdate, capture=found.updates))
    return found


# Rates change at other updates in every rollout.
HALVED = {
    "lr_scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.5),
    "learning_rates": {"critic": 2.0},
}


# "packing" has choices of one agent, "v3" has actions of several robots.
@pytest.fixture(scope="module", params=["packing", "v3"])
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, OnPolicy]:
    """Return a kind, and folder and module of its run by the plain loop.

    The run has a checkpoint in the middle.
    """
    folder = tmp_path_factory.mktemp(request.param)
    often = EpisodeCheckpoint(every_n_episodes=None, every_n_updates=8, keep=9)
    return request.param, folder, trained(module(request.param, **HALVED), folder, request.param, 16, often)


def test_a_resumed_run(tmp_path: Path, straight: tuple[str, Path, OnPolicy], graphs: Graphs) -> None:
    kind, folder, _ = straight
    middle = folder / "checkpoints" / "updates-8.ckpt"
    assert parts_of(middle) == []
    resumed = module(kind, graph_updates=kind == "v3", **HALVED)
    trained(resumed, tmp_path, kind, 16, EpisodeCheckpoint(), ckpt_path=middle, seed=5)
    assert graphs.made == (int(kind == "v3"), 0)
    whole = without_replay(last(folder))
    assert whole["global_step"] == 16
    assert differences(whole, without_replay(last(tmp_path))) == []
    assert differences(without_replay(middle)["state_dict"], whole["state_dict"]) != []


def test_a_run_by_graphs_is_the_same(tmp_path: Path, straight: tuple[str, Path, OnPolicy], graphs: Graphs) -> None:
    kind, folder, plain = straight
    graphed = trained(module(kind, graph_updates=True, **HALVED), tmp_path, kind, 16, EpisodeCheckpoint())
    assert graphs.made == (1, 0)
    assert differences(without_replay(last(folder)), without_replay(last(tmp_path))) == []
    for name in ("loss", "actor_loss", "critic_loss", "entropy", "kl", "clip_fraction"):
        assert graphed.trainer.callback_metrics[f"train/{name}"] == plain.trainer.callback_metrics[f"train/{name}"]


def both(folder: Path, kind: str, max_steps: int, **changes: Any) -> None:
    """A run by the plain loop and one by graphs, which must be the same bit by bit."""
    for on in (False, True):
        made = module(kind, graph_updates=on, **HALVED)
        trained(made, folder / str(on), kind, max_steps, EpisodeCheckpoint(), **changes)
        assert made.trainer.global_step == max_steps
    assert differences(*(without_replay(last(folder / str(on))) for on in (False, True))) == []


@pytest.mark.parametrize("more", [1, 3])
def test_the_end_of_a_rollout_is_learnt_an_update_at_a_time(tmp_path: Path, graphs: Graphs, more: int) -> None:
    both(tmp_path, "v3", 12 + more)
    assert graphs.made == (1, more > 1)


@pytest.mark.parametrize("max_steps", [2, 4])
def test_a_run_of_one_rollout_makes_no_graph_of_learning(tmp_path: Path, graphs: Graphs, max_steps: int) -> None:
    both(tmp_path, "v2", max_steps)
    assert graphs.made == (0, max_steps == 2)


def test_where_all_learning_fits_no_graph_an_update_does(
    tmp_path: Path, graphs: Graphs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(body: Body, device: torch.device) -> Graph:
        with generators_kept(device):
            body()
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(agent_run, "GraphedLearning", partial(GraphedLearning, capture=fails))
    both(tmp_path, "v3", 16)
    assert graphs.made == (0, 1)
    said = [each.getMessage() for each in caplog.records if each.name.startswith("torchrl_gpu.training.accelerated")]
    assert said == ["GraphedLearning: CUDA error: out of memory; updates are launched one by one instead"]


def test_a_run_by_graphs_notes_rollouts(tmp_path: Path, graphs: Graphs) -> None:
    made = module("v2", graph_updates=True)
    noted: list[TensorDictBase] = []
    made.watch_batch = noted.append
    trained(made, tmp_path, "v2", 14)
    shapes = [tuple(each.shape) for each in noted]
    # The last rollout is not learned from to its end.
    assert shapes == [(8, 4)] * 3 + [(16,)] * 2
    assert not torch.equal(noted[0]["observation"], noted[1]["observation"])


def test_a_run_in_bfloat16_by_graphs_is_the_same(tmp_path: Path, graphs: Graphs) -> None:
    both(tmp_path, "v3", 12, precision="bf16-mixed")
    assert graphs.made == (1, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_on_cuda(tmp_path: Path, precision: str) -> None:
    made = module("v3", env={"device": "cuda"}, graph_updates=True, cuda_graphs=True)
    trained(made, tmp_path, "v3", 18, accelerator="gpu", devices=1, precision=precision)
    assert made.trainer.global_step == 18
    assert made.graphed_learning is not None
    assert made.graphed_learning.proven
    assert all(value.isfinite() for value in made.trainer.callback_metrics.values())


def test_on_policy_learns_to_pack(tmp_path: Path) -> None:
    made = module(env={"num_envs": 32}, rollout_steps=8, optimizer=partial(Adam, lr=0.01), epochs=4)
    # It reaches 0.48, and 0.44 with weights that do not change.
    assert trained(made, tmp_path, "packing", 120).outcomes["utilization"] > 0.46


def test_minibatches_divide_a_rollout() -> None:
    wanted = "minibatches must divide the 32 steps of a rollout, 4 of each of 8 trajectories, which 5"
    # It is evaluated in any number of environments.
    made = module(minibatches=5)
    with pytest.raises(ValueError, match=f"OnPolicy: {wanted}"):
        made.check_fit()


def test_each_agent_has_its_run() -> None:
    with pytest.raises(ValueError, match=r"OnPolicy: DQN .*replay"):
        OnPolicy(packing_env(), dqn)
    with pytest.raises(ValueError, match=r"OffPolicy: PPO .*not learn.*replay"):
        OffPolicy(packing_env(), partial(PPO, **agent_of("packing")))


def test_on_policy_has_no_values_of_actions() -> None:
    assert not module().has_values
    assert module().policy_for(packing_env()).out_keys == ["action", "action_log_prob"]
