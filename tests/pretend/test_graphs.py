"""Graphs of rollouts and of updates.

Every replay is the plain loop, and waits for nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.pretend_cuda import waits
from tests.training import test_agents, test_on_policy, tiny, tiny_navigation
from tests.training.tiny_navigation import AGENTS
from tests.training.updates import test_graphed_learning
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies import PPO, Agent, AgentSpace, EpsilonGreedy, PeriodicTargets, PolicyWrapper, SoftTargets
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.updates.graphed import GraphedLearning, GraphedUpdate

PACKERS = {f"{name} on bins": make for name, make in test_agents.PACKERS.items()}
PACKING = dict.fromkeys(PACKERS, partial(tiny.packing_env, 4, backend="eager"))
# The others play by graphs in `test_training`.
ROBOTS = {name: partial(tiny_navigation.marine_env, of, max_steps=5) for name, of in (("DQN", "v2"), ("SAC", "v3"))}
ENVS: dict[str, Any] = {
    **PACKING,
    **ROBOTS,
    "DQN, one robot": partial(tiny_navigation.marine_env, curriculum=None, robots=1, flat=True),
}
each = pytest.mark.parametrize("name", ENVS)
STEPS, MAX_NORM = 2, 0.5


def env_of(name: str) -> BatchedEnv:
    return ENVS[name](device="cuda")


def agent_of(name: str, env: BatchedEnv, **changes: object) -> Agent:
    """The same agent at each call."""
    torch.manual_seed(7)
    if name in PACKING:
        return PACKERS[name](AgentSpace.of(env), **changes).to("cuda")
    make = AGENTS[name.partition(",")[0]]
    return make(AgentSpace.of(env), **{"n_steps": 2, "targets": SoftTargets(0.1), **changes}).to("cuda")


def rollout_of(env: BatchedEnv, agent: Agent, graphs: bool) -> Rollout:
    return Rollout(env, env.stored_keys, agent.n_steps, agent.gamma, graphs, group=agent.space.group)


def assert_same(ours: TensorDictBase, theirs: TensorDictBase) -> None:
    assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
    assert ours.batch_size == theirs.batch_size
    for key in theirs.keys(True, True):
        assert torch.equal(ours[key].cpu(), theirs[key].cpu()), key


def operators(graphed: Any) -> list[str]:
    (_, form), *_ = graphed._forms
    graph = getattr(form, "graph", form)
    return graph.replay.__self__.operators


def numbers_of(losses: TensorDictBase) -> dict[str, float]:
    """Return losses by name as numbers."""
    return {key: value.item() for key, value in losses.items()}


@each
def test_a_rollout_in_a_graph_is_the_plain_loop(name: str) -> None:
    env, twin = env_of(name), env_of(name)
    agent, other = agent_of(name, env), agent_of(name, twin)
    policy, plain = PolicyWrapper(agent).train(), PolicyWrapper(other).train()
    ours, theirs = rollout_of(env, agent, True), rollout_of(twin, other, False)
    with set_exploration_type(ExplorationType.RANDOM):
        # The second turn makes a graph of steps, the third of their returns.
        for turn in range(4):
            for each_agent, each_env in ((agent, env), (other, twin)):
                each_agent.anneal(40 * turn)
                each_env.set_frames(80 * turn)
            torch.manual_seed(turn)
            with waits() as counted:
                transitions, played = ours.collect(policy, STEPS)
            torch.manual_seed(turn)
            wanted, steps = theirs.collect(plain, STEPS)
            assert_same(played, steps)
            assert_same(transitions, wanted)
            assert_same(ours.current, theirs.current.select(*ours.current.keys(True, True)))
            assert turn < 3 or counted.total == 0, counted.report()
        for key, value in env.state_dict().items():
            assert torch.equal(value.cpu(), twin.state_dict()[key].cpu()), key
        first = operators(ours._graphed)
        # It is captured again, since no number of the host is another now.
        ours._graphed.forget()
        ours.collect(policy, STEPS)
    assert operators(ours._graphed) == first


def played(name: str, number: int) -> tuple[Agent, list[TensorDictBase]]:
    """An agent, and batches of 16 of its transitions."""
    env = env_of(name)
    agent = agent_of(name, env, exploration=EpsilonGreedy(1.0)) if name != "SAC" else agent_of(name, env)
    torch.manual_seed(5)
    with set_exploration_type(ExplorationType.RANDOM):
        rows, _ = rollout_of(env, agent, False).collect(PolicyWrapper(agent).train(), 20)
    for part in (rows, rows["next"]):
        env.restore(part)
    return agent, [rows[16 * k : 16 * (k + 1)].clone() for k in range(number)]


def optimizer_of(agent: Agent) -> torch.optim.Optimizer:
    groups = [{"params": weights} for weights in agent.parameter_groups.values()]
    return torch.optim.Adam(groups, lr=2**-9, eps=1e-3, capturable=True)


def learnt(name: str, graphs: bool, targets: Any) -> tuple[list[object], Agent, Any]:
    agent, batches = played(name, 4)
    agent.targets = targets
    optimizer = optimizer_of(agent)
    update = (
        GraphedUpdate(agent, optimizer, MAX_NORM) if graphs else GraphedUpdate(agent, optimizer, MAX_NORM, capture=None)
    )
    if not graphs:
        update.active = False
    found = []
    for number, batch in enumerate(batches, 1):
        for group in optimizer.param_groups:
            # A schedule sets it so.
            group["lr"] = 2**-9 / number
        torch.manual_seed(number)
        with waits() as counted:
            losses = update(batch, number)
        # The first makes the optimizer's state, the second the graph.
        assert number < 3 or counted.total == 0, counted.report()
        found.append(({key: value.item() for key, value in losses.items()}, batch["td_error"].cpu()))
    return found, agent, update


# The others learn by graphs in `test_training`.
@pytest.mark.parametrize(
    ("name", "targets"),
    [*((name, SoftTargets(0.1)) for name in (*PACKING, "DQN, one robot")), ("DQN", PeriodicTargets(2))],
    ids=str,
)
def test_an_update_in_a_graph_is_the_plain_one(name: str, targets: Any) -> None:
    ours, agent, update = learnt(name, True, targets)
    theirs, other, _ = learnt(name, False, targets)
    for (losses, errors), (wanted, wanted_errors) in zip(ours, theirs, strict=True):
        assert losses == pytest.approx(wanted, rel=1e-5)
        torch.testing.assert_close(errors, wanted_errors)
    for mine, its in zip(agent.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine.cpu(), its.cpu())
    assert operators(update)


def learnt_from_rollouts(kind: str, graphs: bool) -> tuple[list[object], dict[str, Tensor], GraphedLearning]:
    """Train four times by the steps of a rollout.

    Returns the losses of all updates, weights, and what updated them. A schedule steps at each update.
    """
    torch.manual_seed(7)
    env = test_on_policy.env_of(kind, device="cuda", **{"backend": "eager"} if kind == "packing" else {})
    agent = PPO(AgentSpace.of(env), **test_on_policy.agent_of(kind)).to("cuda")
    rollout = test_graphed_learning.rollout_of(env, agent)
    optimizer = optimizer_of(agent)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches, updates = test_graphed_learning.batches_of(agent), test_graphed_learning.UPDATES
    learn = GraphedLearning(agent, optimizer, MAX_NORM, batches=batches, updates=updates, schedule=schedule)
    if not graphs:
        learn.active = False
    found = []
    for number in range(1, 5):
        torch.manual_seed(number)
        with set_exploration_type(ExplorationType.RANDOM):
            steps, _ = rollout.play(PolicyWrapper(agent).train(), STEPS)
        with waits() as counted:
            losses = learn(steps)
        # The first makes the optimizer's state, the second the graph.
        assert number == 2 or counted.total == 0, counted.report()
        found.append([numbers_of(each) for each in losses])
    weights = {key: value.clone() for key, value in agent.state_dict().items()}
    if graphs:
        first = operators(learn)
        # It is captured again, since no number of the host is another now.
        learn._forms.clear()
        learn(steps)
        assert operators(learn) == first
    return found, weights, learn


@pytest.mark.parametrize("kind", ["packing", "v3"])
def test_all_learning_in_a_graph_is_the_plain_one(kind: str) -> None:
    ours, weights, learn = learnt_from_rollouts(kind, True)
    assert learn.proven
    theirs, wanted_weights, plain = learnt_from_rollouts(kind, False)
    assert not plain.proven
    for losses, wanted in zip(ours, theirs, strict=True):
        for each, its in zip(losses, wanted, strict=True):
            assert each == pytest.approx(its, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights, wanted_weights)
