"""Graphed updates are the same as the plain loop.

Replay after replay, whatever is changed in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.optim import Optimizer
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.training import tiny
from tests.training.collect.test_graphed import capture_on_cpu, fails_at_launch, stands_still
from tests.training.resuming import differences, everything, last
from tests.training.tiny_navigation import AGENTS, DISCRETE, marine_env, navigation, worlds
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.policies import Agent, AgentSpace, EpsilonGreedy, PeriodicTargets, PolicyWrapper, SoftTargets
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.policies.targets import TargetUpdate
from torchrl_gpu.training import OffPolicy, agent_run
from torchrl_gpu.training.accelerated.graphs import Graph
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.updates.graphed import GraphedUpdate
from torchrl_gpu.training.updates.optimizers import set_capturable

# This is the same number as float32 and as float64.
RATE = 2**-9
MAX_NORM = 0.5
each_agent = pytest.mark.parametrize("name", AGENTS)
# Of those that compute on a CPU, only the fused ones read learning rate and steps where a graph would.
Adam = partial(torch.optim.Adam, lr=RATE, fused=True)
Still = partial(torch.optim.SGD, lr=0.0, fused=True)
OnCuda = partial(torch.optim.Adam, lr=RATE, eps=1e-3)
Body = Callable[[], TensorDictBase]


def capture(body: Body, device: torch.device) -> Graph:
    """A graph of operators, which is run before as on CUDA."""
    random = torch.get_rng_state()
    body()
    torch.set_rng_state(random)
    return capture_on_cpu(body, device)


class Counting:
    made = 0

    def __call__(self, body: Body, device: torch.device) -> Graph:
        self.made += 1
        return capture(body, device)


def agent_of(name: str, **changes: Any) -> Agent:
    torch.manual_seed(7)
    space = AgentSpace.of(marine_env("v2" if name in DISCRETE else "v3"))
    return AGENTS[name](space, **{"n_steps": 3, "targets": SoftTargets(0.1), **changes})


def optimizer_of(agent: Agent, make: Callable[..., Optimizer] = Adam) -> Optimizer:
    """An optimizer with a group for each loss.

    The second learns at another rate.
    """
    optimizer = make([{"params": weights} for weights in agent.parameter_groups.values()])
    for group in optimizer.param_groups[1:]:
        group["lr"] /= 4
    return optimizer


@cache
def transitions(name: str) -> TensorDictBase:
    """Return transitions of robots that explore.

    Some do not count.
    """
    agent, env = agent_of(name, exploration=EpsilonGreedy(1.0)), marine_env("v2" if name in DISCRETE else "v3")
    rollout = Rollout(env, env.stored_keys, 3, agent.gamma, group=agent.space.group)
    torch.manual_seed(5)
    with set_exploration_type(ExplorationType.RANDOM):
        rows, _ = rollout.collect(PolicyWrapper(agent).train(), 20)
    for part in (rows, rows["next"]):
        env.restore(part)
    rows["priority_weight"] = torch.rand(len(rows)) * rows["active"].squeeze(-1)
    return rows[torch.randperm(len(rows))]


def batches(name: str, number: int) -> list[TensorDictBase]:
    return [transitions(name)[16 * k : 16 * (k + 1)].clone() for k in range(number)]


def eager(
    agent: Agent, optimizer: Optimizer, max_norm: float | None = MAX_NORM
) -> Callable[[TensorDictBase, int], dict[str, Tensor]]:
    def update(batch: TensorDictBase, number: int) -> dict[str, Tensor]:
        optimizer.zero_grad()
        losses = agent.losses(batch)
        sum(losses.values()).backward()  # type: ignore[union-attr]
        for group in optimizer.param_groups:
            if max_norm is not None:
                nn.utils.clip_grad_norm_(group["params"], max_norm)
        optimizer.step()
        agent.update_targets(number)
        return {name: loss.detach() for name, loss in losses.items()}

    return update


def graphed(
    agent: Agent, optimizer: Optimizer, how: Any = capture, max_norm: float | None = MAX_NORM, **changes: Any
) -> GraphedUpdate:
    return GraphedUpdate(agent, optimizer, max_norm, capture=how, **changes)


def everything_of(agent: Agent, optimizer: Optimizer) -> dict[str, Any]:
    weights = {key: value for key, value in agent.state_dict().items() if isinstance(value, Tensor)}
    state = {"agent": weights, "optimizer": optimizer.state_dict()["state"], "random": torch.get_rng_state()}
    return torch.utils._pytree.tree_map_only(Tensor, torch.clone, state)


class Pair:
    """The same agent updated by graphs and by the plain loop, side by side."""

    def __init__(self, name: str, how: Any = capture, make: Callable[..., Optimizer] = Adam, **changes: Any) -> None:
        self.agents = agent_of(name, **changes), agent_of(name, **changes)
        self.optimizers = optimizer_of(self.agents[0], make), optimizer_of(self.agents[1], make)
        self.graphed = graphed(self.agents[0], self.optimizers[0], how)
        self.updates = self.graphed, eager(self.agents[1], self.optimizers[1])
        self.number = 0

    def update(self, batch: TensorDictBase) -> None:
        self.number += 1
        ends = []
        for update, agent, optimizer in zip(self.updates, self.agents, self.optimizers, strict=True):
            rows = batch.clone()
            torch.manual_seed(self.number)
            losses = update(rows, self.number)
            assert not any(loss.requires_grad for loss in losses.values())
            assert update is not self.graphed or all(weight.grad is None for weight in agent.parameters())
            ends.append({"losses": losses, "td_error": rows["td_error"], **everything_of(agent, optimizer)})
        assert differences(*ends) == []


@pytest.mark.parametrize(
    ("name", "targets", "how"),
    [
        *((name, PeriodicTargets(3) if name == "Rainbow" else SoftTargets(0.1), capture) for name in AGENTS),
        ("Rainbow", PeriodicTargets(3), None),
    ],
)
def test_updates_are_the_plain_loop(name: str, targets: TargetUpdate, how: Any) -> None:
    pair = Pair(name, how, targets=targets)
    before = [weight.detach().clone() for weight in pair.agents[0].parameters_to_train]
    for batch in batches(name, 5):
        pair.update(batch)
    assert pair.graphed.proven == (how is not None)
    moved = [not torch.equal(was, now) for was, now in zip(before, pair.agents[0].parameters_to_train, strict=True)]
    assert sum(moved) > len(moved) / 2


def test_gradients_are_clipped_where_asked() -> None:
    first, *others = batches("SAC", 3)
    ends = []
    for max_norm in (None, 1e-3):
        agent = agent_of("SAC")
        update = graphed(agent, optimizer_of(agent, partial(torch.optim.SGD, lr=1.0, fused=True)), max_norm=max_norm)
        before = [weight.detach().clone() for weight in agent.parameters_to_train]
        for number, batch in enumerate([first, *others], 1):
            update(batch.clone(), number)
        moves = [(now - was).norm() for now, was in zip(agent.parameters_to_train, before, strict=True)]
        ends.append(torch.stack(moves).norm().item())
    # There are three groups and three updates.
    assert ends[1] < 3 * 3 * 1e-3 * 1.001
    assert ends[0] > 0.1


def test_graphed_update_reads_nothing_back() -> None:
    for name in AGENTS:
        agent = agent_of(name)
        update = graphed(agent, optimizer_of(agent))
        rows = batches(name, 3)
        with NoHostReads():
            for number, batch in enumerate(rows, 1):
                update(batch, number)


def test_losses_outlive_the_next_replay() -> None:
    agent = agent_of("IQN")
    update = graphed(agent, optimizer_of(agent))
    rows = batches("IQN", 5)
    found = [(update(batch, number), batch["td_error"]) for number, batch in enumerate(rows, 1)]
    kept = [(losses["value"].clone(), error.clone()) for losses, error in found]
    update(rows[0].clone(), 6)
    assert all(torch.equal(losses["value"], old) for (losses, _), (old, _) in zip(found, kept, strict=True))
    assert all(torch.equal(error, old) for (_, error), (_, old) in zip(found, kept, strict=True))
    assert len({float(losses["value"]) for losses, _ in found}) == 5


def test_graphed_update_takes_any_names_of_losses() -> None:
    agent, twin = agent_of("SAC"), agent_of("SAC")

    def doubled(batch: TensorDictBase) -> dict[str, Tensor]:
        return {name: 2 * loss for name, loss in agent.losses(batch).items()}

    update = graphed(agent, optimizer_of(agent, Still), losses=doubled)
    plain = eager(twin, optimizer_of(twin, Still))
    for number, batch in enumerate(batches("SAC", 3), 1):
        torch.manual_seed(number)
        mine = update(batch.clone(), number)
        torch.manual_seed(number)
        assert mine == {name: 2 * loss for name, loss in plain(batch.clone(), number).items()}


def test_a_learning_rate_that_is_a_tensor_counts() -> None:
    pair = Pair("IQN", make=partial(Adam, lr=torch.tensor(RATE)))
    for batch in batches("IQN", 5):
        pair.update(batch)
        for optimizer in pair.optimizers:
            optimizer.param_groups[0]["lr"].mul_(0.5)


def set_groups(pair: Pair, **settings: Callable[[dict[str, Any]], Any]) -> None:
    for optimizer in pair.optimizers:
        for group in optimizer.param_groups:
            group.update({name: value(group) for name, value in settings.items()})


def halved(state: Any) -> Any:
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda each: each * 0.5 if each.is_floating_point() else each, state
    )


def rates(pair: Pair, number: int) -> None:
    set_groups(pair, lr=lambda group: group["lr"] * 0.5)


def betas(pair: Pair, number: int) -> None:
    set_groups(pair, betas=lambda group: (0.9 if number < 4 else 0.5, 0.999))


def decay(pair: Pair, number: int) -> None:
    set_groups(pair, weight_decay=lambda group: 0.01 * number)


def weights(pair: Pair, number: int) -> None:
    for agent in pair.agents:
        agent.load_state_dict(halved(agent.state_dict()))


def state(pair: Pair, number: int) -> None:
    if number == 4:
        for optimizer in pair.optimizers:
            optimizer.load_state_dict(halved(optimizer.state_dict()))


# What changes at every update and is no rate is never recorded.
@pytest.mark.parametrize(("change", "graphs"), [(rates, 1), (betas, 2), (decay, 0), (weights, 1), (state, 2)])
def test_changes_between_updates_count(change: Callable[[Pair, int], None], graphs: int) -> None:
    made = Counting()
    pair = Pair("ACIQN", made)
    for number, batch in enumerate(batches("ACIQN", 8)):
        change(pair, number)
        pair.update(batch)
    assert made.made == graphs
    assert not any(isinstance(group["lr"], Tensor) for group in pair.optimizers[0].param_groups)


def test_batches_of_another_size_or_with_fewer_keys_count() -> None:
    made = Counting()
    pair, rows = Pair("DQN", made), batches("DQN", 9)
    halves = [*rows[3].split(8), *rows[4].split(8)]
    fewer = [batch.exclude("priority_weight") for batch in rows[7:]]
    for batch in [*rows[:3], *halves, *rows[5:7], *fewer]:
        pair.update(batch)
    assert made.made == 4


def fails(body: Body, device: torch.device) -> Graph:
    with generators_kept(device):
        body()
    raise RuntimeError("GraphedUpdate: the losses use aten._local_scalar_dense:\nit waits")


BROKEN = {
    fails: "GraphedUpdate: the losses use aten._local_scalar_dense: it waits; operators are launched one by one",
    fails_at_launch: "GraphedUpdate: CUDA error: out of memory CUDA kernel errors might be reported elsewhere;",
    stands_still: "GraphedUpdate: the graph differs from its operators one by one in how weights have moved; operators"
    " are launched one by one instead",
}


@pytest.mark.parametrize(("broken", "name"), list(zip(BROKEN, ("Rainbow", "SAC", "SAC"), strict=True)))
def test_without_a_graph_updates_are_the_plain_loop(name: str, broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(name, broken)
    for batch in batches(name, 4):
        pair.update(batch)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(BROKEN[broken])
    assert "\n" not in record.getMessage()


def test_a_graph_of_other_losses_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    def twice(body: Body, device: torch.device) -> Graph:
        graph = capture(body, device)

        def replay() -> None:
            graph.replay()
            graph.result["losses", "value"].mul_(1.1)

        return Graph(replay, graph.result)

    pair = Pair("IQN", twice)
    for batch in batches("IQN", 3):
        pair.update(batch)
    assert caplog.records[0].getMessage().startswith("GraphedUpdate: the graph differs from its operators")
    assert " in value; " in caplog.records[0].getMessage()


class Counter(Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state["step"] = state.get("step", 0) + 1


def test_an_optimizer_that_counts_on_the_host_steps_without_a_graph(caplog: pytest.LogCaptureFixture) -> None:
    agent, (one, other) = agent_of("DQN"), batches("DQN", 2)
    update = graphed(agent, optimizer_of(agent, partial(Counter, lr=0.1)))
    update(one, 1)
    update(other, 2)
    assert not update.proven
    (record,) = caplog.records
    assert "state is in tensors on cpu" in record.getMessage()
    assert "Counter keeps step as int" in record.getMessage()
    assert all(state["step"] == 2 for state in update.optimizer.state.values())


def test_under_autocast_replays_cast_weights_anew() -> None:
    def trained(by_graphs: bool) -> dict[str, Any]:
        # Targets move outside of the graph, which clears the cache.
        agent = agent_of("IQN", targets=PeriodicTargets(2))

        def losses(batch: TensorDictBase) -> dict[str, Tensor]:
            # `losses` would clear the cache, too.
            found, error = agent._losses(batch)
            batch.set("td_error", error[:, None])
            return found

        optimizer = optimizer_of(agent)
        update = graphed(agent, optimizer, losses=losses) if by_graphs else eager(agent, optimizer)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for number, batch in enumerate(batches("IQN", 5), 1):
                # The policy leaves cast weights in the cache.
                agent.policy(batch.copy())
                torch.manual_seed(number)
                update(batch, number)
        return everything_of(agent, optimizer)

    assert differences(trained(True), trained(False)) == []


def test_under_autocast_a_policy_sees_the_weights_of_the_last_replay() -> None:
    agent, rows = agent_of("IQN"), batches("IQN", 5)
    update = graphed(agent, optimizer_of(agent))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for number, batch in enumerate(rows, 1):
            agent.policy(rows[0].copy())
            update(batch, number)
            scores = agent.policy(rows[0].copy())["action_value"]
            torch.clear_autocast_cache()
            assert torch.equal(scores, agent.policy(rows[0].copy())["action_value"])


def test_autocast_counts() -> None:
    made = Counting()
    pair, rows = Pair("DDPG", made), iter(batches("DDPG", 8))
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            for _ in range(4):
                pair.update(next(rows))
    assert made.made == 2


def run(folder: Path, name: str, max_steps: int = 6, **changes: Any) -> OffPolicy:
    """A run with schedules that a graph can follow bit by bit."""
    own = {key: changes.pop(key) for key in ("ckpt_path", "precision", "plugins") if key in changes}
    module = navigation(name, learning_rates={next(iter(agent_of(name).parameter_groups)): 0.5}, **changes)
    module.make_optimizer = Adam
    module.make_scheduler = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)
    return tiny.fit(module, folder, max_steps, EpisodeCheckpoint(), data_module=worlds(), **own)  # type: ignore[arg-type]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr(agent_run, "GraphedUpdate", partial(GraphedUpdate, capture=counting))
    return counting


def test_a_run_by_graphs_is_the_same(tmp_path: Path, graphs: Counting) -> None:
    changes = {"prioritized": True, "agent": {"targets": PeriodicTargets(3)}}
    plain = run(tmp_path / "plain", "Rainbow", 7, **changes)
    assert graphs.made == 0
    graphed = run(tmp_path / "graphed", "Rainbow", 7, graph_updates=True, **changes)
    assert graphs.made == 1
    assert graphed.trainer.global_step == plain.trainer.global_step == 7
    assert differences(*(everything(last(tmp_path / folder)) for folder in ("plain", "graphed"))) == []
    for key in ("train/loss", "train/frames"):
        assert graphed.trainer.callback_metrics[key] == plain.trainer.callback_metrics[key]


def test_a_run_by_graphs_that_is_stopped_and_resumed(tmp_path: Path, graphs: Counting) -> None:
    changes = {"prioritized": True, "graph_updates": True}
    run(tmp_path / "whole", "ACIQN", 8, **changes)
    run(tmp_path / "half", "ACIQN", 4, **changes)
    run(tmp_path / "rest", "ACIQN", 8, ckpt_path=last(tmp_path / "half"), **changes)
    assert graphs.made == 3
    assert differences(*(everything(last(tmp_path / folder)) for folder in ("whole", "rest"))) == []


def test_a_run_in_bfloat16_by_graphs_is_the_same(tmp_path: Path, graphs: Counting) -> None:
    for folder, graph_updates in (("plain", False), ("graphed", True)):
        run(tmp_path / folder, "ACIQN", graph_updates=graph_updates, precision="bf16-mixed")
    assert graphs.made == 1
    assert differences(*(everything(last(tmp_path / folder)) for folder in ("plain", "graphed"))) == []


@pytest.mark.parametrize("option", ["graph_updates", "torch_compile"])
def test_gradients_that_need_a_scaler_are_refused(option: str, tmp_path: Path) -> None:
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match=rf"OffPolicy: {option} .*precision 16-mixed"):
        run(tmp_path, "IQN", plugins=[scaled], **{option: True})


def on_cuda(name: str) -> tuple[Agent, Optimizer]:
    agent = agent_of(name).to("cuda")
    optimizer = optimizer_of(agent, OnCuda)
    set_capturable(optimizer)
    return agent, optimizer


@pytest.mark.gpu
@each_agent
def test_cuda_graphs_are_the_plain_loop(name: str) -> None:
    (agent, optimizer), (twin, other) = on_cuda(name), on_cuda(name)
    update, plain = graphed(agent, optimizer, None), eager(twin, other)
    for number, batch in enumerate(batches(name, 7), 1):
        for learn in (update, plain):
            torch.manual_seed(number)
            learn(batch.to("cuda"), number)
        for group in (*optimizer.param_groups, *other.param_groups):
            group["lr"] *= 0.5
    assert update.proven
    torch.testing.assert_close(everything_of(agent, optimizer)["agent"], everything_of(twin, other)["agent"])


@pytest.mark.gpu
def test_a_call_is_one_graph_launch() -> None:
    update, rows = graphed(*on_cuda("ACIQN"), None), [batch.to("cuda") for batch in batches("ACIQN", 4)]
    for number, batch in enumerate(rows[:3], 1):
        update(batch, number)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        update(rows[3], 4)
        torch.cuda.synchronize()
    calls = [event.name for event in profile.events() if event.name.startswith("cu")]
    assert calls.count("cudaGraphLaunch") == 1
    # The batch goes in, and the losses come out.
    assert len([name for name in calls if "LaunchKernel" in name or "Memcpy" in name]) < 40


@pytest.mark.gpu
def test_losses_that_read_back_are_named(caplog: pytest.LogCaptureFixture) -> None:
    agent, optimizer = on_cuda("DQN")

    def reading(batch: TensorDictBase) -> dict[str, Tensor]:
        assert batch["action"].sum().item() >= 0
        return agent.losses(batch)

    update, rows = graphed(agent, optimizer, None, losses=reading), [batch.to("cuda") for batch in batches("DQN", 2)]
    for number, batch in enumerate(rows, 1):
        update(batch, number)
    (record,) = caplog.records
    assert "; got aten._local_scalar_dense" in record.getMessage()
    update = graphed(agent, optimizer, None)
    # A broken capture does not spoil the next one.
    for number, batch in enumerate(rows, 3):
        update(batch, number)
    assert len(caplog.records) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_run_on_cuda(tmp_path: Path, precision: str) -> None:
    module = navigation("ACIQN", prioritized=True, graph_updates=True, cuda_graphs=True)
    arguments = {"accelerator": "gpu", "devices": 1, "precision": precision, "data_module": worlds()}
    tiny.fit(module, tmp_path, 8, **arguments)  # type: ignore[arg-type]
    assert module.trainer.global_step == 8
    assert module.graphed_update is not None
    assert module.graphed_update.proven
    assert all(value.isfinite() for value in module.trainer.callback_metrics.values())
