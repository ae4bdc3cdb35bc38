"""The cost of acting, learning and replay: six agents on marine navigation.

Acting: greedy actions of `PolicyWrapper` against the per-sample loop of released code. Updates: whole ones against
those with TorchRL's losses. Flags: the same updates under `trainer.precision`, `model.torch_compile` and
`trainer.deterministic`. Replay: prioritised, against TorchRL's. Parity comes first: nothing is shown while any side
decides, loses or draws otherwise. Sides take turns, warm. The ceiling is the rate of float32 matrix products measured
in the same turns: the networks' products at that rate are the least that an action or an update can cost here.

python benchmarks/agents.py --output benchmarks/results/agents.json
python benchmarks/agents.py --parts flags --output benchmarks/results/flags.json
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from torchrl.modules import QValueActor
from torchrl.objectives import DDPGLoss, DQNLoss, LossModule, SoftUpdate

# Twins and oracles lie among the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import report
from benchmarks.result_types import JsonObject
from benchmarks.tables import listed, targets
from tests.envs.marine.settings import acted, random_action
from tests.policies.agents.test_twins import distributional_loss, soft_loss
from tests.policies.navigation_spaces import AGENTS, DISCRETE, make, transitions
from tests.tolerances import TOLERANCE
from torchrl_gpu.cli.packing.bench import TimedRow
from torchrl_gpu.device import get_device
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.policies import DDPG, DQN, IQN, SAC, Agent, AgentSpace, PlacementScores, PolicyWrapper, Rainbow
from torchrl_gpu.policies.exploration import random_legal
from torchrl_gpu.policies.spaces import in_keys
from torchrl_gpu.training.replay.buffer import replay_buffer
from torchrl_gpu.training.updates.compiled import CompiledLosses

# Batch whose figures have a target, robots in a call, and those targets: how many times as fast as the loop, and as
# one robot at a time.
AT = 1024
LOOP_RATIO = 100.0
BATCH_RATIO = 50.0
LOOP = "per-sample loop"
CEILING = "ceiling: matrix products"
# Robots in one turn of the loop, and in the check.
LOOP_ROBOTS = 256


def matrix_products(device: torch.device) -> TimedRow:
    """Time float32 products of large matrices, in floating-point operations a second.

    No network of these agents gets as many out of the device.
    """
    size = 1024
    left = torch.ones(size, size, device=device)
    right = torch.ones(size, size, device=device)
    out = torch.empty_like(left)

    def run(calls: int) -> None:
        for _ in range(calls):
            torch.mm(left, right, out=out)

    return TimedRow(CEILING, run, 2 * size**3, threads(device), notes="operations/s")


def threads(device: torch.device) -> str:
    return str(torch.get_num_threads()) if device.type == "cpu" else str(device)


# -- acting ------------------------------------------------------------------------------------------------------------


def environment(name: str, discrete: str, device: torch.device) -> MarineNavEnv:
    """Build the environment of an agent.

    `discrete` is the version for agents that choose an index; all others get v3.
    """
    how: JsonObject = {"version": "v3"}
    if name in DISCRETE:
        how = {"version": discrete, "actions": "discrete"}
    return MarineNavEnv(256, **how, pool=256, device=device, seed=0)


def observed(env: MarineNavEnv, robots: int) -> TensorDict:
    """Return observations of many robots at sea, (B,), while all act at random."""
    generator, current = torch.Generator().manual_seed(0), env.reset()
    rows: list[TensorDict] = []
    steps = 0
    while sum(map(len, rows)) < robots:
        action = random_action(env, generator).to(env.device)
        _, current = env.step_and_maybe_reset(acted(env, current, action))
        steps += 1
        if steps > 8:
            seen = current["robots"]
            rows.append(seen[seen["active"][..., 0]].exclude("action"))
    return torch.cat(rows)[:robots].clone()


class PerSampleLoop:
    """Robot-by-robot decisions, as in released code.

    Each takes NumPy arrays, makes one forward pass of one row, and gives NumPy arrays.
    """

    def __init__(self, agent: Agent, rows: TensorDict) -> None:
        self.agent, self.device = agent, rows.device or torch.device("cpu")
        self.keys = in_keys(network_of(agent))
        self.robots = []
        for row in rows:
            self.robots.append({key: row[key].cpu().numpy() for key in self.keys})

    @torch.no_grad()
    def decide(self, robot: dict[str, np.ndarray]) -> tuple[Any, np.ndarray]:
        """The action of a robot, and the scores (A,) that chose it, or the action again."""
        seen = [torch.tensor(robot[key]).unsqueeze(0).to(self.device) for key in self.keys]
        out = forward(self.agent, seen).cpu().numpy()[0]
        return (int(np.argmax(out)) if self.agent.name in DISCRETE else out), out

    def play(self, calls: int) -> None:
        for _ in range(calls):
            for robot in self.robots:
                self.decide(robot)


def network_of(agent: Any) -> Any:
    """The network that gives the scores of actions, or the action itself."""
    if isinstance(agent, IQN):
        return agent.scores.network
    if isinstance(agent, SAC):
        return agent.policy.network
    if isinstance(agent, Rainbow):
        return agent.online.network
    return (agent.policy[0] if isinstance(agent, DQN) else agent.policy).module


def forward(agent: Agent, seen: list[Tensor]) -> Tensor:
    """Scores (1, A) or an action (1, D), by the agent's networks, of one robot."""
    network = network_of(agent)
    if isinstance(agent, Rainbow):
        return (network(*seen).softmax(-1) * agent.online.support).sum(-1)
    if isinstance(agent, IQN):
        return network(*seen, agent.scores.even[None]).mean(1)
    if isinstance(agent, SAC):
        return agent.policy.squash(network(*seen)[0])
    return network(*seen)


class BatchedCall:
    """The wrapper over many robots in one call."""

    def __init__(self, agent: Agent, rows: TensorDict) -> None:
        self.rows, self.wrapper = TensorDict({"robots": rows}, rows.batch_size), PolicyWrapper(agent).eval()

    @torch.no_grad()
    def play(self, calls: int) -> None:
        for _ in range(calls):
            self.wrapper(self.rows)

    @property
    def actions(self) -> np.ndarray:
        self.play(1)
        return self.rows["robots", "action"].cpu().numpy()


def action_difference(loop: PerSampleLoop, actions: np.ndarray) -> str:
    """Describe the first robot whose action is not that of the loop, or return "".

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


def acting(measurement: report.Measurement) -> Iterator[JsonObject]:
    """A section for each agent: the ceiling, the loop, and the wrapper by batch."""
    args, device = measurement.args, measurement.device
    for name in args.agents:
        env = environment(name, args.discrete, device)
        agent = make(name, spec=env).to(device)
        rows = observed(env, max(*args.batches, LOOP_ROBOTS))
        loop = PerSampleLoop(agent, rows[:LOOP_ROBOTS])
        timed = [matrix_products(device), TimedRow(LOOP, loop.play, len(loop.robots), threads(device), name)]
        for robots in args.batches:
            call = BatchedCall(agent, rows[:robots])
            measurement.check(f"{name}, {robots} robots, eager", action_difference(loop, call.actions))
            extra: dict[str, object] = {"robots": robots, "how": "eager"}
            timed.append(TimedRow(f"{name}, {robots}, eager", call.play, robots, threads(device), name, extra=extra))
        if not take_turns(measurement, f"{name} acting", timed):
            return
        rates = {row.name: row.rate for row in timed}
        with FlopCounterMode(display=False) as counter:
            BatchedCall(agent, rows[:LOOP_ROBOTS]).play(1)
        least = 1e6 * counter.get_total_flops() / LOOP_ROBOTS / rates[CEILING]
        for row in timed:
            row.extra |= {"agent": name, "us": 1e6 / row.rate, "ceiling_us": least}
        yield report.section(name, "robots/s", timed, {"loop": rates[LOOP]})


def acting_tables(rows: list[JsonObject]) -> Iterator[JsonObject]:
    """Build the tables of acting from timed rows.

    The first holds µs per robot by batch. The second compares `AT` robots in a call with the loop and with the ceiling.
    """
    by_batch, at = [], []
    batches = sorted({row["robots"] for row in rows if "robots" in row})
    for name in dict.fromkeys(row["agent"] for row in rows):
        own = [row for row in rows if row["agent"] == name]
        loop, ceiling = next(row["us"] for row in own if row["name"] == LOOP), own[0]["ceiling_us"]
        us = {row["robots"]: row["us"] for row in own if "robots" in row}
        line: JsonObject = {"agent": name, "how": "eager", "loop": short(loop)}
        by_batch.append(line | {str(n): short(us[n]) for n in batches})
        if {1, AT} <= set(us):
            ratios = {"over_loop": loop / us[AT], "over_one": us[1] / us[AT]}
            at.append(line | {"us": us[AT], **ratios, "ceiling": ceiling, "share": ceiling / us[AT]})
    columns = {"agent": "agent", "how": "", "loop": "per-sample loop"} | {str(n): f"{n:,}" for n in batches}
    yield {"title": "µs per robot, by robots in a call", "columns": columns, "rows": by_batch}
    columns = {"agent": "agent", "how": "", "loop": "loop, µs", "us": "ours, µs", "over_loop": "× loop"}
    columns |= {"over_one": "× one robot alone", "ceiling": "products alone, µs", "share": "share of that"}
    if at:
        yield {"title": f"{AT:,} robots in a call", "columns": columns, "rows": at}


def beside_targets(sections: list[JsonObject]) -> list[JsonObject]:
    """Return the figures of `AT` robots in a call beside their targets."""
    rows = []
    for line in next((each["rows"] for each in sections if each["title"].startswith(f"{AT:,} robots")), []):
        least = f"matrix products alone: {line['loop'] / line['ceiling']:.3g} ×"
        for key, unit, target, notes in (
            ("over_loop", "× the per-sample loop", LOOP_RATIO, least),
            ("over_one", "× one robot alone", BATCH_RATIO, ""),
        ):
            what, value = f"{line['agent']}, {AT:,} robots", line[key]
            row = {"what": what, "value": value, "unit": unit, "target": target, "least": True}
            rows.append(row | {"notes": notes, "met": value >= target})
    return rows


# -- learning ----------------------------------------------------------------------------------------------------------

LEARNING_RATE = 1e-4
MAX_NORM = 0.5
TAU = 0.005
# Names that TorchRL gives to losses.
LOSSES = ("loss", "loss_actor", "loss_value", "loss_qvalue")
Loss = Callable[[TensorDictBase], Tensor]


class Update:
    """One whole update: losses, gradients, clipping, a step of Adam, targets.

    It is the same around our losses and around those of TorchRL.
    """

    def __init__(
        self, loss: Loss, weights: list[Tensor], update_targets: Callable[[int], Any], batch: TensorDict
    ) -> None:
        self.loss = loss
        self.weights = weights
        self.update_targets = update_targets
        self.batch = batch
        self.number = 0
        self.optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE, fused=True)

    def play(self, calls: int) -> None:
        for _ in range(calls):
            self.number += 1
            self.optimizer.zero_grad()
            self.loss(self.batch).backward()
            nn.utils.clip_grad_norm_(self.weights, MAX_NORM)
            self.optimizer.step()
            self.update_targets(self.number)

    def measures(self) -> list[float]:
        """Return the loss and the norm of its gradient from a fixed seed.

        Nothing is trained.
        """
        torch.manual_seed(0)
        loss = self.loss(self.batch)
        slopes = torch.autograd.grad(loss, self.weights)
        return [loss.item(), nn.utils.get_total_norm(slopes).item()]


def batch_for(name: str, size: int, device: torch.device) -> TensorDict:
    """Build a batch of random transitions, or of played ones for packing.

    All actions are legal, since TorchRL's distributional loss has no masks.
    """
    if name == PACKING:
        return packing_transitions(size, device)
    batch = transitions(name, size)
    for part in (batch, batch["next"]):
        if "action_mask" in part:
            part["action_mask"] = torch.ones_like(part["action_mask"])
    return batch.to(device)


def packing_transitions(size: int, device: torch.device) -> TensorDict:
    """One step from bins of `cut2` with a few boxes, of random legal actions."""
    env = make_protocol("cut2", size, device=device, seed=0)
    torch.manual_seed(0)
    current = env.reset()
    for _ in range(5):
        _, current = env.step_and_maybe_reset(current.set("action", random_legal(current["action_mask"])))
    batch = env.step(current.set("action", random_legal(current["action_mask"])))
    ones = torch.ones(size, 1, dtype=torch.int64, device=device)
    return batch.set("steps_to_next_obs", ones).clone()


def packing_agent(device: torch.device) -> Agent:
    """The agent of `packing_dqn.yaml`."""
    torch.manual_seed(0)
    return DQN(AgentSpace.of(make_protocol("cut2", 1, device=device)), network=PlacementScores)


def our_update(name: str, batch: TensorDict, compiled: bool = False) -> Update:
    agent = (packing_agent(batch.device) if name == PACKING else make(name)).to(batch.device)

    losses = CompiledLosses(agent) if compiled else agent.losses

    def loss(rows: TensorDictBase) -> Tensor:
        return torch.stack(list(losses(rows).values())).sum()

    return Update(loss, agent.parameters_to_train, agent.update_targets, batch.clone())


def their_update(name: str, batch: TensorDict) -> Update | None:
    """Build the update with TorchRL's loss over the same networks, if it has one."""
    agent = make(name).to(batch.device)
    module = torchrl_loss(agent)
    if module is None:
        return None
    module = module.to(batch.device)

    def loss(rows: TensorDictBase) -> Tensor:
        # TorchRL also returns entropy terms, which are no losses where they are not learnt.
        out = module(rows)
        return torch.stack([out[key] for key in LOSSES if key in out]).sum()

    weights = [weight for weight in module.parameters() if weight.requires_grad]
    return Update(loss, weights, TargetUpdater(module, agent), batch.clone())


class TargetUpdater:
    """Update of the targets of a TorchRL loss.

    It also resamples the noise of the online network.
    """

    def __init__(self, module: LossModule, agent: Agent) -> None:
        self.module, self.agent = module, agent
        self.targets: SoftUpdate | None = None

    def __call__(self, update: int) -> None:
        # It is made after the check only, since it makes targets equal to what they follow.
        if self.targets is None:
            self.targets = SoftUpdate(self.module, tau=TAU)
        self.targets.step()
        if isinstance(self.agent, Rainbow):
            for layer in self.agent.online.network.modules():
                if hasattr(layer, "reset_noise"):
                    layer.reset_noise()


def torchrl_loss(agent: Agent) -> LossModule | None:
    """Return TorchRL's own loss with an agent's networks and targets, if it has one."""
    if isinstance(agent, Rainbow):
        return distributional_loss(agent)
    if isinstance(agent, SAC):
        return soft_loss(agent)
    if isinstance(agent, DQN):
        return _q_loss(agent)
    return _gradient_loss(agent) if isinstance(agent, DDPG) else None


def _q_loss(agent: DQN) -> DQNLoss:
    network: Any = agent.policy[0].module
    actor = QValueActor(network, in_keys=in_keys(network), action_space="categorical", action_mask_key="action_mask")
    loss = DQNLoss(actor, loss_function="smooth_l1", double_dqn=True, delay_value=True, action_space="categorical")
    loss.make_value_estimator(gamma=agent.gamma)
    # The loss warns without a target updater.
    SoftUpdate(loss, tau=TAU)
    _take(loss.target_value_network_params, agent.objective.target_value_network_params)
    return loss


def _gradient_loss(agent: DDPG) -> DDPGLoss:
    act, value = agent.policy.module, agent.objective.value_network.module
    actor = TensorDictModule(act, in_keys=act.in_keys, out_keys=["action"])
    critic = TensorDictModule(value, in_keys=[*in_keys(value), "action"], out_keys=["state_action_value"])
    loss = DDPGLoss(actor, critic, loss_function="smooth_l1", delay_actor=True, delay_value=True)
    loss.make_value_estimator(gamma=agent.gamma)
    SoftUpdate(loss, tau=TAU)
    for which in ("actor", "value"):
        name = f"target_{which}_network_params"
        _take(getattr(loss, name), getattr(agent.objective, name))
    return loss


def _take(targets: Any, values: Any) -> None:
    """Values by their order: modules around the networks may be nested otherwise."""
    pairs = zip(targets.data.values(True, True), values.data.values(True, True), strict=True)
    for target, value in pairs:
        target.copy_(value)


def loss_difference(plain: list[float], other: list[float], share: float | None = None) -> str:
    """Describe the first measure that differs by more than rounding, or return "".

    With a `share`, measures may differ by that share.
    """
    for what, one, two in zip(("loss", "norm of the gradient"), plain, other, strict=True):
        most = TOLERANCE[torch.float32] * max(1.0, abs(one)) if share is None else share * abs(one)
        if not abs(one - two) <= most:
            return f"{what}: {one:.7g} and {two:.7g}"
    return ""


@contextmanager
def same_noise() -> Iterator[None]:
    """Make all normal variables equal.

    TorchRL's SAC draws for the target first, and ours for the actor.
    """
    with (
        mock.patch.object(torch, "randn_like", lambda like: torch.full_like(like, 0.7)),
        mock.patch(
            "torch.distributions.normal._standard_normal",
            lambda shape, dtype, device: torch.full(shape, 0.7, dtype=dtype, device=device),
        ),
    ):
        yield


def updates(measurement: report.Measurement) -> Iterator[JsonObject]:
    """A section for each agent: our update and TorchRL's, by batch size."""
    args, device = measurement.args, measurement.device
    for name in args.agents:
        timed = []
        for size in args.update_sizes:
            batch = batch_for(name, size, device)
            ways = {"eager": our_update(name, batch)}
            opponent = their_update(name, batch)
            if opponent is not None:
                ways["TorchRL"] = opponent
                with same_noise():
                    found = loss_difference(ways["eager"].measures(), opponent.measures())
                measurement.check(f"{name}, update of {size}, against TorchRL's", found)
            for how, update in ways.items():
                extra: dict[str, object] = {"agent": name, "batch": size, "how": how}
                timed.append(TimedRow(f"{name}, {size}, {how}", update.play, 1, threads(device), name, extra=extra))
        if not take_turns(measurement, f"{name} learning", timed):
            return
        yield report.section(name, "updates/s", timed, {})


def update_tables(rows: list[JsonObject]) -> Iterator[JsonObject]:
    """µs per update, and TorchRL's over ours."""
    lines = []
    for name, size in dict.fromkeys((row["agent"], row["batch"]) for row in rows):
        us = {row["how"]: 1e6 / row["rate"] for row in rows if (row["agent"], row["batch"]) == (name, size)}
        line: JsonObject = {"agent": name, "batch": size} | {how: short(time) for how, time in us.items()}
        lines.append(line | {"over_eager": us["TorchRL"] / us["eager"] if "TorchRL" in us else ""})
    columns = {"agent": "agent", "batch": "rows", "eager": "eager, µs", "TorchRL": "TorchRL, µs"}
    yield {"title": "µs per update", "columns": columns | {"over_eager": "× TorchRL, eager"}, "rows": lines}


# -- flags -------------------------------------------------------------------------------------------------------------

PLAIN = "32-true"
PACKING = "DQN, packing"
# Share by which a loss, or the norm of its gradient, may differ.
OF_BFLOAT16 = 0.05


class Flag(NamedTuple):
    """Options of a run.

    Attributes:

        mixed: Autocast to bfloat16.
        compiled: Losses by torch.compile.
        deterministic: Deterministic algorithms only.
        share: By which losses may differ, or None where they may by rounding alone.
    """

    mixed: bool = False
    compiled: bool = False
    deterministic: bool = False
    share: float | None = None


FLAGS = {
    PLAIN: Flag(),
    "bf16-mixed": Flag(mixed=True, share=OF_BFLOAT16),
    "torch_compile": Flag(compiled=True),
    "both": Flag(mixed=True, compiled=True, share=OF_BFLOAT16),
    "deterministic": Flag(deterministic=True),
}


class FlaggedUpdate:
    """Our update of an agent under a flag."""

    def __init__(self, name: str, batch: TensorDict, flag: Flag) -> None:
        self.flag, self.update = flag, our_update(name, batch, flag.compiled)
        plain, device = self.update.loss, batch.device

        def loss(rows: TensorDictBase) -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=flag.mixed):
                return plain(rows).float()

        self.update.loss = loss

    def play(self, calls: int) -> None:
        with self.determinism():
            self.update.play(calls)

    def measures(self) -> list[float]:
        with self.determinism():
            return self.update.measures()

    @contextmanager
    def determinism(self) -> Iterator[None]:
        torch.use_deterministic_algorithms(self.flag.deterministic)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def flags(measurement: report.Measurement) -> Iterator[JsonObject]:
    """Time each agent's update, and that of `packing_dqn.yaml`, under each flag.

    An update takes `--flag_size` rows. There is a section for each agent.
    """
    args, device = measurement.args, measurement.device
    for name in (*args.agents, PACKING):
        # Otherwise all agents together exceed the graphs that one function may have.
        torch._dynamo.reset()
        batch, plain = batch_for(name, args.flag_size, device), list[float]()
        timed = [matrix_products(device)]
        for word, flag in FLAGS.items():
            update = FlaggedUpdate(name, batch, flag)
            plain = plain or update.measures()
            measurement.check(f"{name}, {word}", loss_difference(plain, update.measures(), flag.share))
            extra: dict[str, object] = {"agent": name, "flag": word, "batch": args.flag_size}
            timed.append(TimedRow(f"{name}, {word}", update.play, 1, threads(device), name, extra=extra))
        if not take_turns(measurement, f"{name} by flag", timed):
            return
        counter = FlopCounterMode(display=False)
        # The tracker of modules compares inputs, which TensorDicts do not support.
        counter.mod_tracker = mock.MagicMock(parents={"Global"})
        with counter:
            our_update(name, batch).play(1)
        operations = counter.get_total_flops()
        for row in timed:
            row.extra["products_us"] = 1e6 * operations / timed[0].rate
        yield report.section(name, "updates/s", timed[1:], {})


def flag_tables(rows: list[JsonObject]) -> Iterator[JsonObject]:
    """µs of an update, and how many times the plain update each flag is."""
    lines = []
    for name in dict.fromkeys(row["agent"] for row in rows):
        own = [row for row in rows if row["agent"] == name]
        us, least = {row["flag"]: 1e6 / row["rate"] for row in own}, own[0]["products_us"]
        line: JsonObject = {"agent": name, PLAIN: round(us[PLAIN])}
        line |= {flag: us[PLAIN] / us[flag] for flag in us if flag != PLAIN}
        lines.append(line | {"products": round(least), "share": least / us[PLAIN]})
    flags_seen = dict.fromkeys(row["flag"] for row in rows)
    others = [flag for flag in flags_seen if flag != PLAIN]
    columns = {"agent": "agent", PLAIN: f"{PLAIN}, µs"} | {flag: f"× by {flag}" for flag in others}
    columns |= {"products": "products alone, µs", "share": "share of that"}
    yield {"title": f"µs per update of {rows[0]['batch']} rows, by flag", "columns": columns, "rows": lines}


# -- replay ------------------------------------------------------------------------------------------------------------

ALPHA = 0.6
BETA = 0.4
EPS = 1e-3
# Transitions that come before each draw.
EXTENDED = 64
CHECKED = 8
DRAWS = 400
ROWS = 512
# Of shares of 204,800 draws: nine standard errors.
MOST_APART = 0.01


def our_replay(capacity: int, batch_size: int, device: torch.device) -> TensorDictReplayBuffer:
    return replay_buffer(capacity, batch_size, device, prioritized=True, alpha=ALPHA, beta=BETA)


def their_replay(capacity: int, batch_size: int, device: torch.device) -> TensorDictReplayBuffer:
    """Build TorchRL's buffer, whose trees are on the host."""
    storage = LazyTensorStorage(capacity, device=device)
    return TensorDictPrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, eps=EPS, storage=storage, batch_size=batch_size, sampler_device="cpu"
    )


SIDES = {"ours": our_replay, "TorchRL": their_replay}


class Cycle:
    """One cycle of replay: transitions in, a batch out, new errors for its rows.

    The ring is full from the beginning.
    """

    def __init__(self, replay: TensorDictReplayBuffer, capacity: int, batch_size: int, device: torch.device) -> None:
        self.replay, self.fresh = replay, transitions("DDPG", EXTENDED).to(device)
        generator = torch.Generator(device).manual_seed(0)
        self.errors = torch.rand(batch_size, 1, device=device, generator=generator) * 3
        chunk = transitions("DDPG", min(10_000, capacity)).to(device)
        for _ in range(-(-capacity // len(chunk))):
            index = replay.extend(chunk)
            replay.update_priority(index, torch.rand(len(chunk), device=device, generator=generator) * 3)

    def play(self, calls: int) -> None:
        for _ in range(calls):
            self.replay.extend(self.fresh)
            batch = self.replay.sample()
            self.replay.update_priority(batch["index"], self.errors)


def draw_difference(side: str, device: torch.device) -> str:
    """Compare the shares of rows drawn with those of the priorities.

    Returns a description of the distance, or "" where it is small.
    """
    errors = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 4.0], device=device)
    replay = SIDES[side](CHECKED, ROWS, device)
    replay.extend(transitions("DDPG", len(errors)).to(device))
    replay.update_priority(torch.arange(len(errors), device=device), errors)
    drawn = torch.cat([replay.sample()["index"].flatten() for _ in range(DRAWS)]).cpu()
    shares = torch.bincount(drawn, minlength=CHECKED).double() / len(drawn)
    wanted = torch.zeros(CHECKED, dtype=torch.double)
    wanted[: len(errors)] = (errors.double().cpu() + EPS) ** ALPHA
    apart = (shares - wanted / wanted.sum()).abs().max().item()
    return "" if apart < MOST_APART else f"shares of rows differ from those of their priorities by {apart:.2g}"


def replay(measurement: report.Measurement) -> Iterator[JsonObject]:
    """A section for each capacity: cycles of both sides by the size of a draw."""
    args, device = measurement.args, measurement.device
    for side in SIDES:
        measurement.check(f"replay, {side}", draw_difference(side, device))
    for capacity in args.capacities:
        timed = []
        for size in args.update_sizes:
            for side, made in SIDES.items():
                cycle = Cycle(made(capacity, size, device), capacity, size, device)
                extra: dict[str, object] = {"capacity": capacity, "batch": size, "side": side}
                name, group = f"{side}, {capacity:,}, {size}", str(capacity)
                timed.append(TimedRow(name, cycle.play, 1, threads(device), group, extra=extra))
        if not take_turns(measurement, f"replay of {capacity:,}", timed):
            return
        yield report.section(str(capacity), "cycles/s", timed, {})


def replay_tables(rows: list[JsonObject]) -> Iterator[JsonObject]:
    """µs per cycle of both."""
    lines = []
    for capacity, size in dict.fromkeys((row["capacity"], row["batch"]) for row in rows):
        us = {r["side"]: 1e6 / r["rate"] for r in rows if (r["capacity"], r["batch"]) == (capacity, size)}
        times = {side: short(each) for side, each in us.items()}
        lines.append({"capacity": capacity, "batch": size, **times, "over": us["TorchRL"] / us["ours"]})
    columns = {"capacity": "transitions kept", "batch": "rows drawn", "ours": "ours, µs", "TorchRL": "TorchRL, µs"}
    yield {"title": "µs per cycle of replay", "columns": columns | {"over": "× TorchRL"}, "rows": lines}


# -- command -----------------------------------------------------------------------------------------------------------

Sections = Iterator[JsonObject]
# How rows are timed, and the tables that are made of them.
Part = tuple[Callable[[report.Measurement], Sections], Callable[[list[JsonObject]], Sections]]
PARTS: dict[str, Part] = {
    "acting": (acting, acting_tables),
    "updates": (updates, update_tables),
    "replay": (replay, replay_tables),
    "flags": (flags, flag_tables),
}


def short(us: float) -> float:
    """No more digits than tables show."""
    return round(us) if us >= 100 else us


def take_turns(measurement: report.Measurement, title: str, rows: list[TimedRow]) -> bool:
    """Time rows and say so, or time nothing where a check has failed."""
    if measurement.refused("a ratio between two different results means nothing"):
        return False
    measurement.take_turns(title, rows)
    return True


def main(argv: list[str]) -> int:
    """Print the tables and write the JSON.

    Returns 1 where parity fails.
    """
    args = _parser().parse_args(argv)
    # What a compiler cannot hold is no news here.
    torch._logging.set_logs(dynamo=logging.ERROR)
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    measurement = report.Measurement("agents", args, get_device(args.device))
    result = measurement.result
    # Compiled and eager calls draw the same random numbers, so that they can be compared.
    with torch._inductor.config.patch(fallback_random=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in args.parts:
            timed, tables = PARTS[part]
            groups = list(timed(measurement))
            if any(check["difference"] for check in result["parity"]):
                return 1
            rows = []
            for group in groups:
                rows += group["rows"]
            section = {"title": part, "unit": groups[0]["unit"], "rows": rows}
            result["sections"] += [section, *tables(rows)]
    result["rows"] = beside_targets(result["sections"])
    measurement.finish()
    for section in result["sections"]:
        if "columns" in section:
            print(f"\n{section['title']}\n\n{listed(section)}")
    print(targets(result["rows"]) if result["rows"] else "", report.machine_line(result), sep="\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = report.parser("benchmarks/agents.py", __doc__, seconds=5.0)
    add = parser.add_argument
    add("--agents", nargs="+", choices=AGENTS, default=list(AGENTS), help="which")
    add("--parts", nargs="+", choices=PARTS, default=[part for part in PARTS if part != "flags"], help="which")
    add("--discrete", choices=("v2", "v3"), default="v3", help="where agents choose among 9, or 25")
    counts: dict[str, tuple[int | list[int], str]] = {
        "batches": ([1, 64, AT, 16_384, 65_536], "robots in a call"),
        "update_sizes": ([64, 256, 1024], "transitions of an update, and of a draw"),
        "flag_size": (256, "transitions of an update under a flag"),
    }
    counts["capacities"] = ([10_000, 100_000, 1_000_000], "of replay")
    report.add_counts(parser, counts)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
