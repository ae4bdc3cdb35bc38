"""Greedy actions: `PolicyWrapper` for all robots at once, against one robot at a time; rows of `agents.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.envs.marine.settings import acted, random_action
from tests.policies.navigation_spaces import DISCRETE, make
from tests.tolerances import TOLERANCE
from torchrl_gpu.bench.timing import TimedRow
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.policies import DQN, IQN, SAC, Agent, PolicyWrapper, Rainbow
from torchrl_gpu.policies.spaces import in_keys

LOOP, CEILING = "per-sample loop", "ceiling: matrix products"
LOOP_ROBOTS = 256  # of one turn of the loop, and of the check
_WORLDS, _STEPS_BEFORE = 256, 8
_MATRIX = 1024
_COMPILED_AT_MOST = 16_384  # robots; compiled calls are not split into blocks


def environment(name: str, discrete: str, device: str) -> MarineNavEnv:
    """The environment of an agent: `discrete` is the version of those that choose an index, the others' is v3."""
    how: dict[str, Any] = {"version": "v3"}
    if name in DISCRETE:
        how = {"version": discrete, "actions": "discrete"}
    return MarineNavEnv(_WORLDS, **how, pool=_WORLDS, device=device, seed=0)


def observed(env: MarineNavEnv, robots: int) -> TensorDict:
    """What that many robots at sea see, (B,), while all act at random."""
    generator, current = torch.Generator().manual_seed(0), env.reset()
    rows: list[TensorDict] = []
    steps = 0
    while sum(map(len, rows)) < robots:
        action = random_action(env, generator).to(env.device)
        _, current = env.step_and_maybe_reset(acted(env, current, action))
        steps += 1
        if steps > _STEPS_BEFORE:
            seen = current["robots"]
            rows.append(seen[seen["active"][..., 0]].exclude("action"))
    return torch.cat(rows)[:robots].clone()


class PerSampleLoop:
    """Decides robot by robot, as released code does: NumPy in, one forward pass of one row, NumPy out."""

    def __init__(self, agent: Agent, rows: TensorDict) -> None:
        self.agent, self.device = agent, rows.device or torch.device("cpu")
        self.keys = in_keys(network_of(agent))
        self.robots = [{key: row[key].cpu().numpy() for key in self.keys} for row in rows]

    @torch.no_grad()
    def decide(self, robot: dict[str, np.ndarray]) -> tuple[Any, np.ndarray]:
        """The action of a robot, and the scores (A,) that chose it, or the action again."""
        seen = [torch.tensor(robot[key]).unsqueeze(0).to(self.device) for key in self.keys]
        out = forward(self.agent, seen).cpu().numpy()[0]
        return (int(np.argmax(out)) if self.agent.name in DISCRETE else out), out

    def play(self, calls: int) -> None:
        """Decides for all robots, again and again."""
        for _ in range(calls):
            for robot in self.robots:
                self.decide(robot)


def network_of(agent: Any) -> Any:
    """What gives the scores of actions, or the action itself."""
    if isinstance(agent, IQN):
        return agent.scores.network
    if isinstance(agent, SAC):
        return agent.policy.network
    return agent.online.network if isinstance(agent, Rainbow) else _module(agent)


def forward(agent: Agent, seen: list[Tensor]) -> Tensor:
    """Scores (1, A) or an action (1, D), by the agent's networks, of one robot."""
    if isinstance(agent, Rainbow):
        return (agent.online.network(*seen).softmax(-1) * agent.online.support).sum(-1)
    if isinstance(agent, IQN):
        return agent.scores.network(*seen, agent.scores.even[None]).mean(1)
    if isinstance(agent, SAC):
        return agent.policy.squash(agent.policy.network(*seen)[0])
    return _module(agent)(*seen)


def _module(agent: Any) -> Any:
    return (agent.policy[0] if isinstance(agent, DQN) else agent.policy).module


class BatchedCall:
    """The wrapper over many robots in one call."""

    def __init__(self, wrapper: PolicyWrapper, rows: TensorDict, compiled: bool = False) -> None:
        self.rows = TensorDict({"robots": rows}, rows.batch_size)
        self.call = torch.compile(wrapper, fullgraph=True, dynamic=False) if compiled else wrapper

    @torch.no_grad()
    def play(self, calls: int) -> None:
        """Decides for all robots, again and again."""
        for _ in range(calls):
            self.call(self.rows)

    @property
    def actions(self) -> np.ndarray:
        """What it decides."""
        self.play(1)
        return self.rows["robots", "action"].cpu().numpy()


class GraphedCall(BatchedCall):
    """The same as one replay of a CUDA graph."""

    def __init__(self, wrapper: PolicyWrapper, rows: TensorDict) -> None:
        super().__init__(wrapper, rows)
        super().play(3)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            wrapper(self.rows)

    def play(self, calls: int) -> None:
        """Replays."""
        for _ in range(calls):
            self.graph.replay()


def difference(loop: PerSampleLoop, actions: np.ndarray) -> str:
    """What tells actions of the first robots from those of the loop, in words; "" where nothing does.

    Two indices are the same where their scores are equal but for the order in which they were added up.
    """
    tolerance = TOLERANCE[torch.float32]
    for number, (robot, action) in enumerate(zip(loop.robots, actions, strict=False)):
        wanted, scores = loop.decide(robot)
        scale = max(1.0, float(np.abs(scores).max()))
        apart = scores[wanted] - scores[action] if loop.agent.name in DISCRETE else np.abs(scores - action).max()
        if not apart <= tolerance * scale:
            return f"robot {number}: the loop decides {wanted}, the wrapper {action}; {apart:.2g} apart"
    return ""


def timed_rows(
    agent: Agent, rows: TensorDict, batches: list[int], compiled: bool, refuse: Callable[[str, str], None]
) -> Iterator[TimedRow]:
    """Rows of one agent: ceiling, loop, and the wrapper by batch; `refuse` is told what decides otherwise."""
    device = rows.device or torch.device("cpu")
    threads = str(torch.get_num_threads()) if device.type == "cpu" else str(device)
    yield matrix_products(device)
    loop, wrapper = PerSampleLoop(agent, rows[:LOOP_ROBOTS]), PolicyWrapper(agent).eval()
    yield TimedRow(LOOP, loop.play, len(loop.robots), threads, agent.name)
    for robots in batches:
        calls = {"eager": BatchedCall(wrapper, rows[:robots])}
        if compiled and robots <= _COMPILED_AT_MOST:
            calls["compiled"] = BatchedCall(wrapper, rows[:robots], compiled=True)
        if device.type == "cuda":
            calls["CUDA graph"] = GraphedCall(wrapper, rows[:robots])
        for how, call in calls.items():
            refuse(f"{agent.name}, {robots} robots, {how}", difference(loop, call.actions))
            extra: dict[str, object] = {"agent": agent.name, "robots": robots, "how": how}
            yield TimedRow(f"{agent.name}, {robots}, {how}", call.play, robots, threads, agent.name, extra=extra)


def matrix_products(device: torch.device) -> TimedRow:
    """Floating point operations a second of float32 products of large matrices: more than any network reaches."""
    left, right = (torch.ones(_MATRIX, _MATRIX, device=device) for _ in range(2))
    out = torch.empty_like(left)

    def run(calls: int) -> None:
        for _ in range(calls):
            torch.mm(left, right, out=out)

    return TimedRow(CEILING, run, 2 * _MATRIX**3, str(torch.get_num_threads()), notes="operations/s")


def operations(agent: Agent, rows: TensorDict) -> float:
    """Floating point operations of the matrix products behind one robot's action."""
    call = BatchedCall(PolicyWrapper(agent).eval(), rows)
    with FlopCounterMode(display=False) as counter:
        call.play(1)
    return counter.get_total_flops() / len(rows)


def make_agent(name: str, env: MarineNavEnv) -> Agent:
    """An agent with the published networks, on the device of its environment."""
    return make(name, spec=env).to(env.device)
