"""Graphed learning is the same as the plain loop.

All updates from a rollout, whatever is changed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.training.resuming import differences
from tests.training.test_on_policy import agent_of as networks_of
from tests.training.test_on_policy import env_of
from tests.training.updates.test_graphed import (
    MAX_NORM,
    RATE,
    Adam,
    Body,
    Counting,
    OnCuda,
    capture,
    eager,
    everything_of,
    optimizer_of,
)
from torchrl_gpu.envs import BatchedEnv
from torchrl_gpu.policies import PPO, AgentSpace, PeriodicTargets, PolicyWrapper, SoftTargets
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.training.accelerated.graphs import Graph
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.updates.graphed import GraphedLearning
from torchrl_gpu.training.updates.optimizers import set_capturable

# Legal placements, and robots that choose or steer: some robots take no part.
KINDS = ("packing", "v2", "v3")
STEPS = 4
EPOCHS = 2
MINIBATCHES = 2
UPDATES = EPOCHS * MINIBATCHES
each_kind = pytest.mark.parametrize("kind", KINDS)
Schedule = Callable[[Optimizer], LRScheduler]
# Rates differ in every call.
RATES = partial(LambdaLR, lr_lambda=[lambda n: 2.0 ** -(n % 3), lambda n: 2.0 ** -(n % 5)])


class Followed(PPO):  # type: ignore[misc]
    """With a critic that follows the trained one, and is what rollouts are valued by."""

    def __init__(self, space: AgentSpace, *, targets: Any, **networks: Any) -> None:
        super().__init__(space, **networks)
        self.targets, self.slow_critic = targets, deepcopy(self.critic).requires_grad_(False)

    def estimate(self, steps: TensorDictBase, total: Any = None) -> TensorDictBase:
        trained, self.critic = self.critic, self.slow_critic
        try:
            return super().estimate(steps, total)
        finally:
            self.critic = trained

    def _target_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.critic.parameters(), self.slow_critic.parameters(), strict=True))


def agent_of(kind: str, targets: Any = None) -> PPO:
    """The same agent at each call."""
    torch.manual_seed(7)
    make = PPO if targets is None else partial(Followed, targets=targets)
    return make(AgentSpace.of(env_of(kind)), **networks_of(kind))


def rollout_of(env: BatchedEnv, agent: PPO) -> Rollout:
    """Of what PPO learns from."""
    group = agent.space.group
    keys: list[Any] = [*agent.observations, *({"active"} & set(agent.space.observations))]
    keys = [(*group, key) for key in keys] if group else keys
    return Rollout(env, keys, n_steps=1, gamma=agent.gamma, decisions=agent.policy.out_keys, group=group)


@cache
def played(kind: str) -> TensorDictBase:
    """Steps (N, T) of 12 rollouts behind one another."""
    agent = agent_of(kind)
    rollout = rollout_of(env_of(kind), agent)
    torch.manual_seed(5)
    with set_exploration_type(ExplorationType.RANDOM):
        steps, _ = rollout.play(PolicyWrapper(agent).train(), 12 * STEPS)
    return steps


def rollouts(kind: str, number: int) -> list[TensorDictBase]:
    """Of 4 steps each."""
    return [played(kind)[:, STEPS * k : STEPS * (k + 1)].clone() for k in range(number)]


def batches_of(agent: PPO) -> Callable[[TensorDictBase], Iterator[TensorDictBase]]:
    """Minibatches of a rollout, valued once, in another order in each epoch."""

    def batches(steps: TensorDictBase) -> Iterator[TensorDictBase]:
        sample = agent.estimate(steps)
        for _ in range(EPOCHS):
            order = torch.rand(len(sample), device=sample["advantage"].device).argsort()
            yield from sample[order].split(len(order) // MINIBATCHES)

    return batches


def learner(
    agent: PPO, optimizer: Optimizer, schedule: LRScheduler | None = None, how: Any = capture, **changes: Any
) -> GraphedLearning:
    settings = {"batches": batches_of(agent), "updates": UPDATES, "schedule": schedule, "capture": how}
    return GraphedLearning(agent, optimizer, MAX_NORM, **settings | changes)


def plain(
    agent: PPO, optimizer: Optimizer, schedule: LRScheduler | None
) -> Callable[[TensorDictBase], list[dict[str, Tensor]]]:
    update = eager(agent, optimizer, MAX_NORM)

    def learn(steps: TensorDictBase) -> list[dict[str, Tensor]]:
        found = []
        for number, batch in enumerate(batches_of(agent)(steps)):
            found.append(update(batch, number + 1))
            if schedule is not None:
                schedule.step()
        return found

    return learn


class Pair:
    """The same agent taught by graphs and by the plain loop, side by side."""

    def __init__(
        self,
        kind: str,
        how: Any = capture,
        make: Callable[..., Optimizer] = Adam,
        schedule: Schedule | None = None,
        targets: Any = None,
    ) -> None:
        self.agents = agent_of(kind, targets), agent_of(kind, targets)
        self.optimizers = optimizer_of(self.agents[0], make), optimizer_of(self.agents[1], make)
        self.schedules = [None if schedule is None else schedule(each) for each in self.optimizers]
        self.graphed = learner(self.agents[0], self.optimizers[0], self.schedules[0], how)
        self.ways = self.graphed, plain(self.agents[1], self.optimizers[1], self.schedules[1])
        self.number = 0

    def learn(self, steps: TensorDictBase) -> None:
        """All updates from a rollout, which must be the same bit by bit."""
        self.number += 1
        ends = []
        for learn, agent, optimizer, schedule in zip(
            self.ways, self.agents, self.optimizers, self.schedules, strict=True
        ):
            rows = steps.clone()
            torch.manual_seed(self.number)
            losses = learn(rows)
            assert len(losses) == UPDATES
            for each in losses:
                assert not any(loss.requires_grad for loss in each.values())
            assert differences(rows.to_dict(), steps.to_dict()) == []
            state = everything_of(agent, optimizer)
            groups = [settings_of(group) for group in optimizer.param_groups]
            last = None if schedule is None else (schedule.last_epoch, schedule.get_last_lr())
            metrics = {name: value.clone() for name, value in agent.metrics.items()}
            ends.append({"losses": losses, "groups": groups, "last": last, "metrics": metrics, **state})
        assert differences(*ends) == []


def settings_of(group: dict[str, object]) -> dict[str, object]:
    """Return the settings of a group of an optimizer, without its weights."""
    return {key: group[key] for key in group if key != "params"}


@pytest.mark.parametrize(("kind", "how"), [*((kind, capture) for kind in KINDS), ("v3", None)])
def test_learning_is_the_plain_loop(kind: str, how: Any) -> None:
    pair = Pair(kind, how)
    before = [weight.detach().clone() for weight in pair.agents[0].parameters_to_train]
    for steps in rollouts(kind, 3):
        pair.learn(steps)
    assert pair.graphed.proven == pair.graphed.is_open == (how is not None)
    moved = [not torch.equal(was, now) for was, now in zip(before, pair.agents[0].parameters_to_train, strict=True)]
    assert sum(moved) > len(moved) / 2


@each_kind
def test_graphed_learning_reads_nothing_back(kind: str) -> None:
    agent = agent_of(kind)
    optimizer = optimizer_of(agent)
    learn = learner(agent, optimizer, RATES(optimizer))
    first, second, *others = rollouts(kind, 3)
    with NoHostReads():
        learn(first)
    # The second call makes the graph, and checks its first replay.
    learn(second)
    assert learn.proven
    with NoHostReads():
        for steps in others:
            learn(steps)
    assert learn.proven


def test_targets_follow_every_update_in_the_graph() -> None:
    pair = Pair("v3", targets=SoftTargets(0.1))
    slow = next(iter(pair.agents[0].slow_critic.parameters()))
    ends = []
    for steps in rollouts("v3", 4):
        pair.learn(steps)
        ends.append(slow.detach().clone())
    assert pair.graphed.proven
    assert not any(torch.equal(one, other) for one, other in pairwise(ends))


def test_targets_that_follow_by_the_number_of_the_update_have_no_graph() -> None:
    agent = agent_of("v3", PeriodicTargets(3))
    assert not learner(agent, optimizer_of(agent)).is_open


def test_a_schedule_counts_at_every_update() -> None:
    made = Counting()
    pair = Pair("v2", made, schedule=RATES)
    for steps in rollouts("v2", 5):
        pair.learn(steps)
    assert made.made == 1
    rates = [group["lr"] for group in pair.optimizers[0].param_groups]
    assert rates == [RATE * 2.0 ** -(5 * UPDATES % 3), RATE / 4 * 2.0 ** -(5 * UPDATES % 5)]


class Momentum(LRScheduler):
    """Changes rate and momentum: another of both at every `period`-th update."""

    def __init__(self, optimizer: Optimizer, period: int) -> None:
        self.period = period
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """Half of it in between, and another momentum."""
        whole = self.last_epoch % self.period == 0
        for group in self.optimizer.param_groups:
            group["betas"] = (0.5 if whole else 0.9, 0.999)
        return [rate if whole else rate / 2 for rate in self.base_lrs]


# Updates differ from call to call, and then are alike.
@pytest.mark.parametrize(("period", "graphs"), [(3, 0), (2, 1)])
def test_a_schedule_that_changes_momentum_in_every_call(period: int, graphs: int) -> None:
    made = Counting()
    pair = Pair("v3", made, schedule=partial(Momentum, period=period))
    for steps in rollouts("v3", 5):
        pair.learn(steps)
    assert made.made == graphs
    assert pair.graphed.is_open


def test_a_schedule_that_begins_to_change_momentum_counts() -> None:
    made = Counting()
    pair = Pair("v3", made, schedule=partial(Momentum, period=10 * UPDATES))
    pair.schedules[0].last_epoch = pair.schedules[1].last_epoch = 7 * UPDATES + 2  # type: ignore[union-attr]
    for steps in rollouts("v3", 6):
        pair.learn(steps)
    # One graph is made before, and one after the update that differs from the others.
    assert made.made == 2


def test_rollouts_of_another_length_count() -> None:
    made = Counting()
    pair, rows = Pair("v2", made), rollouts("v2", 6)
    for steps in [*rows[:2], *(each[:, :2] for each in rows[2:4]), *rows[4:]]:
        pair.learn(steps)
    assert made.made == 3


def test_under_autocast_replays_are_the_plain_loop() -> None:
    made = Counting()
    pair = Pair("v3", made)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for steps in rollouts("v3", 3):
            for agent in pair.agents:
                # The policy leaves cast weights in the cache.
                agent.policy(steps.clone())
            pair.learn(steps)
    for steps in rollouts("v3", 2):
        pair.learn(steps)
    assert made.made == 2


def fails(body: Body, device: torch.device) -> Graph:
    """A capture that breaks off when all has been learnt."""
    with generators_kept(device):
        body()
    raise RuntimeError("GraphedLearning: the losses use aten._local_scalar_dense:\nit waits")


def draws_anew(body: Body, device: torch.device) -> Graph:
    """A graph that draws other numbers than the operators would."""
    graph = capture(body, device)

    def replay() -> None:
        torch.rand(1)
        graph.replay()

    return Graph(replay, graph.result)


BROKEN = {
    fails: "GraphedLearning: the losses use aten._local_scalar_dense: it waits",
    draws_anew: "GraphedLearning: the graph differs from its operators one by one in critic",
}


@pytest.mark.parametrize(("broken", "kind"), [(fails, "packing"), (draws_anew, "v3")])
def test_without_a_graph_learning_is_the_plain_loop(kind: str, broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(kind, broken, schedule=RATES)
    for number, steps in enumerate(rollouts(kind, 3), 1):
        pair.learn(steps)
        assert pair.graphed.is_open == (number == 1)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"{BROKEN[broken]}; updates are launched one by one instead"


def on_cuda(kind: str) -> tuple[PPO, Optimizer]:
    agent = agent_of(kind).to("cuda")
    optimizer = optimizer_of(agent, OnCuda)
    set_capturable(optimizer)
    return agent, optimizer


@pytest.mark.gpu
@each_kind
def test_cuda_graphs_are_the_plain_loop(kind: str) -> None:
    (agent, optimizer), (twin, other) = on_cuda(kind), on_cuda(kind)
    learn, loop = learner(agent, optimizer, RATES(optimizer), None), plain(twin, other, RATES(other))
    for number, steps in enumerate(rollouts(kind, 5), 1):
        for each in (learn, loop):
            torch.manual_seed(number)
            each(steps.to("cuda"))
    assert learn.proven
    ours = everything_of(*(agent, optimizer))["agent"]
    theirs = everything_of(*(twin, other))["agent"]
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_call_is_one_graph_launch() -> None:
    agent, optimizer = on_cuda("v3")
    learn, rows = learner(agent, optimizer, None, None), [steps.to("cuda") for steps in rollouts("v3", 4)]
    for steps in rows[:3]:
        learn(steps)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        learn(rows[3])
        torch.cuda.synchronize()
    calls = [event.name for event in profile.events() if event.name.startswith("cu")]
    assert calls.count("cudaGraphLaunch") == 1
    others = [name for name in calls if "LaunchKernel" in name or "Memcpy" in name]
    # The rollout and the rates go in, and the losses come out.
    assert len(others) < 40 + 2 * UPDATES
