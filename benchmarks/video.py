"""Learning from video: the shift at the sink by each encoder, beside a loop that stores stacked clips on the host:
`python benchmarks/video.py [--output FILE]`.

First the environment alone: pictures drawn, and clips handed out, beside what copying those clips takes, which no
environment can go below. Then training steps of `dishwashing_video.yaml`: 64 shifts play 4 slices, then 2 updates. Ours
keeps each frame once and gathers clips; the plain loop, with the same environment, networks and losses, keeps the clips
of every transition and of what follows it in NumPy, draws a batch there and copies it. Both sides get the same
transitions and the same indices, and have the same losses to the bit, or no ratio is printed. They run in turn, both
warm, on one thread; a figure is the processor's time. Ten minutes for the two small encoders, an hour for all; what is
measured again (`--encoders r3d18`) takes the place of its rows in the file, and the others stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu import machine
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import SAC, AgentSpace, ClipEncoder, FromClips, PolicyWrapper, VectorCritic, VectorGaussian
from torchrl_gpu.training import ClipReplay, Rollout

ENCODERS = ("simple2dcnn", "simple3dcnn", "timesformer", "r3d18")
COLUMNS = {
    "encoder": "",
    "batch_size": "batch",
    "updates_per_s": "updates/s",
    "env_steps_per_s": "env-steps/s",
    "episodes_per_hour": "shifts/hour",
    "replay_mb": "replay, MB",
    "plain_replay_mb": "plain replay, MB",
    "ratio": "× the plain loop",
    "cpu": "on one core of",
}
WHOLE = ("env_steps_per_s", "episodes_per_hour")  # no more digits than tables show
NUM_ENVS, STEPS, UPDATES, SLICES = 64, 4, 2, 120  # of `dishwashing_video.yaml`


def seconds(call: Callable[[], object]) -> float:
    """Of the processor, for a call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def shifts(num_envs: int, side: int) -> DishwashingEnv:
    """As the shipped run has them."""
    return DishwashingEnv(num_envs, observe_as="video", frame_size=(side, side), device="cpu", seed=0)


def stepping(num_envs: int, side: int, turns: int) -> dict[str, float]:
    """Clip-frames per second of the environment, and of copying its clips; all threads, by the clock."""
    env = shifts(num_envs, side)
    current = env.reset()
    action = env.action_spec.rand()
    length, into = env.clip_length, torch.empty_like(current["clip"])
    drawn, copied = [], []
    for turn in range(turns + 1):
        begun = time.perf_counter()
        for _ in range(5):
            _, current = env.step_and_maybe_reset(current.set("action", action))
        middle = time.perf_counter()
        for _ in range(5):
            into.copy_(current["clip"])
        if turn:  # the first warms
            drawn.append(5 * num_envs * length / (middle - begun))
            copied.append(5 * num_envs * length / (time.perf_counter() - middle))
    rate, ceiling = statistics.median(drawn), statistics.median(copied)
    return {"clip_frames_per_s": rate, "steps_per_s": rate / length, "copying_per_s": ceiling, "share": rate / ceiling}


class StackedOnTheHost:
    """Replay as it is commonly written: clips and next clips of every transition, in NumPy."""

    def __init__(self, capacity: int, clip: tuple[int, ...]) -> None:
        self.clip, self.next_clip = (np.empty((capacity, *clip), np.uint8) for _ in range(2))
        self.rest: list[TensorDictBase | None] = [None] * capacity
        self.cursor, self.capacity = 0, capacity

    def extend(self, transitions: TensorDictBase) -> None:
        """Copies transitions (B,) to the host, clip by clip."""
        for one in transitions.unbind(0):
            place = self.cursor % self.capacity
            self.clip[place], self.next_clip[place] = one["clip"].cpu().numpy(), one["next", "clip"].cpu().numpy()
            self.rest[place] = one.exclude("clip", ("next", "clip"))
            self.cursor += 1

    def sample(self, index: np.ndarray) -> TensorDictBase:
        """Transitions by index, copied back."""
        batch = torch.stack([self.rest[i] for i in index.tolist()])  # type: ignore[misc]
        batch["clip"] = torch.from_numpy(self.clip[index])
        batch["next", "clip"] = torch.from_numpy(self.next_clip[index])
        return batch

    @property
    def num_bytes(self) -> int:
        """Of the clips."""
        return self.clip.nbytes + self.next_clip.nbytes


class Side:
    """An agent that learns; every side begins alike."""

    def __init__(self, arch: str, env: DishwashingEnv) -> None:
        torch.manual_seed(0)
        encoder: Any = ClipEncoder(arch=arch).make  # type: ignore[arg-type]  # one of the four
        sac = partial(SAC, actor=VectorGaussian, critic=VectorCritic, target_entropy=-3.0)
        self.agent = FromClips(AgentSpace.of(env), encoder=encoder, agent=sac, shift=0)
        self.policy = PolicyWrapper(self.agent).train()
        self.optimizer = torch.optim.Adam(self.agent.parameters_to_train, lr=1e-3)

    def update(self, batch: TensorDictBase) -> float:
        """One step of the optimizer; the loss."""
        torch.manual_seed(1)
        self.optimizer.zero_grad()
        loss = torch.stack(list(self.agent.losses(batch).values())).sum()
        loss.backward()
        self.optimizer.step()
        self.agent.update_targets(1)
        return float(loss.detach())


def training(arch: str, side: int, batch_size: int, capacity: int, turns: int) -> dict[str, Any]:
    """Seconds of a training step on both sides, and what follows from them; raises where losses differ."""
    env, other_env = shifts(NUM_ENVS, side), shifts(NUM_ENVS, side)
    ours, plain = Side(arch, env), Side(arch, other_env)
    replay = ClipReplay(batch_size, env.device, capacity=capacity)
    store = replay.codec_for(env)
    rollout = Rollout(env, env.stored_keys, 1, 0.95, store=store)
    plain_rollout = Rollout(other_env, ["clip"], 1, 0.95)
    host = StackedOnTheHost(capacity, tuple(env.observation_spec["clip"].shape[1:]))

    def played(which: Rollout, who: Side) -> TensorDictBase:
        torch.manual_seed(2)
        with set_exploration_type(ExplorationType.RANDOM):
            return which.collect(who.policy, STEPS)[0]

    def our_step(index: torch.Tensor | None, losses: list[float]) -> None:
        replay.extend(played(rollout, ours))
        for _ in range(UPDATES if index is not None else 0):
            batch: Any = replay.storage[index]
            for part in (batch, batch["next"]):
                env.restore(part, replay)
            losses.append(ours.update(batch))

    def plain_step(index: torch.Tensor | None, losses: list[float]) -> None:
        host.extend(played(plain_rollout, plain))
        if index is not None:
            losses.extend(plain.update(host.sample(index.numpy())) for _ in range(UPDATES))

    filled = -(-batch_size // (NUM_ENVS * STEPS)) + 1
    for _ in range(filled):
        our_step(None, [])
        plain_step(None, [])
    generator, times = torch.Generator().manual_seed(0), []
    for turn in range(turns + 1):
        known = min(capacity, NUM_ENVS * STEPS * (filled + turn))
        index = torch.randint(known, (batch_size,), generator=generator)
        losses: tuple[list[float], list[float]] = ([], [])
        took = seconds(partial(our_step, index, losses[0])), seconds(partial(plain_step, index, losses[1]))
        if losses[0] != losses[1]:
            raise AssertionError(f"{arch}: losses are {losses[0]} and {losses[1]}: no ratio")
        if turn:
            times.append(took)
    fast, slow = (statistics.median(column) for column in zip(*times, strict=True))
    ratios = [plain_s / our_s for our_s, plain_s in times]
    frames = NUM_ENVS * STEPS
    return {
        "encoder": arch,
        "batch_size": batch_size,
        "step_s": fast,
        "plain_step_s": slow,
        "ratio": statistics.median(ratios),
        "env_steps_per_s": frames / fast,
        "updates_per_s": UPDATES / fast,
        "episodes_per_hour": frames / fast * 3600 / SLICES,
        "replay_mb": (store.num_bytes + replay.storage[:].bytes() * capacity // len(replay)) / 1e6,
        "plain_replay_mb": host.num_bytes / 1e6,
    }


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "video.json")
    parser.add_argument("--encoders", nargs="*", choices=ENCODERS, default=list(ENCODERS), help="none: stepping alone")
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[256, 512])
    parser.add_argument("--side", type=int, default=32, help="pixels of the frames that are learnt from")
    parser.add_argument("--capacity", type=int, default=4000, help="transitions of either replay")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    keep_freed_memory()
    result: dict[str, Any] = {"command": "python benchmarks/video.py", "machine": machine.describe(torch.device("cpu"))}
    result["arguments"] = {name: value for name, value in vars(args).items() if name != "output"}
    before = json.loads(args.output.read_text(encoding="utf-8")) if args.output.is_file() else {}
    if "stepping" in before and args.encoders and set(args.encoders) != set(ENCODERS):
        result["stepping"] = before["stepping"]
    else:
        result["stepping"] = alone = stepping(256, 64, 10) | {"cpu": result["machine"]["cpu"]}
        print(
            f"stepping, 256 shifts, 64×64: {alone['clip_frames_per_s']:,.0f} clip-frames/s on"
            f" {torch.get_num_threads()} threads, {alone['share']:.0%} of copying those clips"
        )
    torch.set_num_threads(1)
    rows = before["sections"][0]["rows"] if before else []

    def write() -> None:
        rows.sort(key=lambda row: (ENCODERS.index(row["encoder"]), row["batch_size"]))
        write_json(args.output, result | {"sections": [{"title": "encoders", "columns": COLUMNS, "rows": rows}]})

    write()
    for arch in args.encoders:
        for batch_size in args.batch_sizes:
            slow = arch in ("timesformer", "r3d18")
            row = training(arch, args.side, batch_size, args.capacity, 1 if slow else args.turns)
            row = {name: round(value) if name in WHOLE and value >= 100 else value for name, value in row.items()}
            row |= {name: result["machine"][name] for name in ("cpu", "commit", "load_average")}
            rows = [*(each for each in rows if (each["encoder"], each["batch_size"]) != (arch, batch_size)), row]
            print(
                f"{arch}, batch {batch_size}: {row['updates_per_s']:.2f} updates/s,"
                f" {row['env_steps_per_s']:,.0f} env-steps/s, {row['episodes_per_hour']:,.0f} episodes/hour, × "
                f"{row['ratio']:.2f} the plain loop; replay {row['replay_mb']:.0f} MB, plain"
                f" {row['plain_replay_mb']:.0f} MB",
                flush=True,
            )
            write()
    print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
