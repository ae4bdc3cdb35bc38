"""Speed of MarineNavEnv against an unbatched reference and VMAS navigation.

The reference is that of the tests. VMAS takes part where `vmas` is installed.

Parity comes first: nothing is timed where the batched worlds do not move as the reference's. All rows take turns;
random actions are drawn before; resets are in the time of ours and of the reference, VMAS plays on without any.

python benchmarks/marine.py --output benchmarks/results/marine.json
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

# The reference lies among the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import report
from benchmarks.result_types import JsonObject
from tests.envs.marine.reference import World
from tests.envs.marine.settings import acted, random_action
from tests.envs.marine.worlds import noise_of, world_of
from torchrl_gpu.cli.packing.bench import TimedRow
from torchrl_gpu.cli.parser import whole
from torchrl_gpu.device import get_device
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine.types import PLACE

SETTINGS: dict[str, JsonObject] = {
    "v2, 5 robots, 6 cores, 6 obstacles": {},
    "v2, 7 robots, 8 cores, 10 obstacles": {"robots": 7, "cores": 8, "obstacles": 10},
    "v2, 3 robots, 4 cores": {"robots": 3, "cores": 4, "obstacles": 0, "min_distance": 30.0},
    "v3, 5 robots, 4 obstacles": {"version": "v3"},
}
PARITY_STEPS, PARITY_METRES = 100, 1e-9
REFERENCE_WORLDS, ACTIONS = 64, 16
# At random few robots arrive: short episodes keep most of them at sea, as in training.
MAX_STEPS = 60
# Measured elsewhere on one core with a random policy, for v2 5/6/6; shown beside ours, not compared with it here.
RELEASED = "the released environment, on another machine, made 83.7 environment-steps/s in v2 5/6/6"


class Player:
    """Steps an environment with random actions, restarts what is done."""

    def __init__(self, env: MarineNavEnv, compiled: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.env = env
        self.current = env.reset()
        self.turn = 0
        self.actions = [random_action(env, generator).to(env.device) for _ in range(ACTIONS)]
        step = env.step_and_maybe_reset
        self.step = torch.compile(step, fullgraph=True, dynamic=False) if compiled else step

    @torch.no_grad()
    def play(self, steps: int) -> None:
        """Continue where it stopped."""
        for _ in range(steps):
            self.turn += 1
            _, self.current = self.step(acted(self.env, self.current, self.actions[self.turn % ACTIONS]))


class GraphedPlayer(Player):
    """The same, a step being one replay of a CUDA graph."""

    def __init__(self, env: MarineNavEnv) -> None:
        super().__init__(env)
        super().play(3)
        self.action = self.actions[0].clone()
        self.state = env.env_state()
        self.graph = torch.cuda.CUDAGraph()
        self.shown = acted(env, self.current, self.action)
        with torch.no_grad(), torch.cuda.graph(self.graph):
            _, after = env.step_and_maybe_reset(self.shown)
            for name, value in env.env_state().items():
                self.state[name].copy_(value)
            self.after = after

    def play(self, steps: int) -> None:
        """Replays."""
        for _ in range(steps):
            self.turn += 1
            self.action.copy_(self.actions[self.turn % ACTIONS])
            self.graph.replay()


class ReferencePlayer:
    """Steps one world of the reference, then the next where its episode is over."""

    def __init__(self, changes: JsonObject) -> None:
        how = {"device": "cpu", "seed": 0, "in_order": True, "dtype": "float64", "max_steps": MAX_STEPS}
        env = MarineNavEnv(REFERENCE_WORLDS, **how | changes)
        env.reset()
        self.env = env
        self.number = -1
        self.rng = np.random.default_rng(0)
        self.world = self.following()

    def following(self) -> World:
        """The world after this one, from its beginning."""
        self.number = (self.number + 1) % REFERENCE_WORLDS
        return world_of(self.env, self.number)

    def play(self, steps: int) -> None:
        """Continue where it stopped."""
        env = self.env
        for _ in range(steps):
            noise = None
            if env.version == "v3":
                shape = env.num_robots, len(self.world.obstacles) + env.num_robots, 5
                noise = self.rng.normal(0, 0.05, shape)
            actions = self.rng.integers(9, size=env.num_robots) if env.num_actions else self.rng.uniform(
                -1, 1, (env.num_robots, 2)
            )  # fmt: skip
            if self.world.step(list(actions), noise)["done"]:
                self.world = self.following()


def difference(changes: JsonObject) -> str:
    """Describe the first difference from the reference, or return "".

    Both take a hundred actions.
    """
    env = MarineNavEnv(3, device="cpu", seed=1, pool=16, dtype="float64", **changes)
    generator, current = torch.Generator().manual_seed(0), env.reset()
    worlds, over = [world_of(env, n) for n in range(3)], [False] * 3
    for turn in range(PARITY_STEPS):
        action = random_action(env, generator)
        noise = env.draw_errors(env.state.key, env.state.step_count + 1) if env.version == "v3" else None
        after = env.step(acted(env, current, action))["next"]
        for n, world in enumerate(worlds):
            if over[n]:
                continue
            result = world.step(list(action[n].numpy()), noise_of(env, world, n, noise))
            over[n] = result["done"]
            apart = np.abs(env.state.motion[PLACE, :, n].t().numpy() - [robot.place for robot in world.robots]).max()
            paid = np.abs(after["robots", "reward"][n, :, 0].numpy() - result["rewards"]).max()
            if apart > PARITY_METRES or paid > PARITY_METRES or bool(after["done"][n]) != over[n]:
                return f"world {n}, action {turn}: places differ by {apart:.2g} m, rewards by {paid:.2g}"
        current = after.exclude("reward", ("robots", "reward"))
    return ""


def vmas_player(num_envs: int, num_agents: int, device: str) -> Callable[[int], None]:
    """Step VMAS navigation, which has no currents and one substep a step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vmas

        env = vmas.make_env("navigation", num_envs=num_envs, device=device, n_agents=num_agents, seed=0)
    env.reset()

    def one_each() -> list[torch.Tensor]:
        return [torch.rand(num_envs, 2, device=device) * 2 - 1 for _ in range(num_agents)]

    actions = [one_each() for _ in range(ACTIONS)]

    @torch.no_grad()
    def play(steps: int) -> None:
        for turn in range(steps):
            env.step(actions[turn % ACTIONS])

    return play


def timed_rows(name: str, changes: JsonObject, args: argparse.Namespace, device: str) -> Iterator[TimedRow]:
    """Yield the rows of one setting."""
    threads = str(torch.get_num_threads()) if device == "cpu" else device
    yield TimedRow(
        "reference", ReferencePlayer(changes).play, 1, "1", name, "NumPy, one world, robot and obstacle at a time"
    )
    for n in args.num_envs:

        def make(num_envs: int = n) -> MarineNavEnv:
            return MarineNavEnv(num_envs, device=device, seed=0, max_steps=MAX_STEPS, **changes)

        yield TimedRow(f"ours, {n}", Player(make()).play, n, threads, name)
        if args.compiled:
            yield TimedRow(f"ours, {n}, compiled", Player(make(), True).play, n, threads, name)
        if device != "cpu":
            yield TimedRow(f"ours, {n}, CUDA graph", GraphedPlayer(make()).play, n, threads, name)
        if args.peers:
            agents = changes.get("robots", 5)
            note = f"navigation, {agents} agents, one substep, no currents, no resets"
            yield TimedRow(f"VMAS, {n}", vmas_player(n, agents, device), n, threads, name, note)


def main(argv: list[str]) -> int:
    """Print the table and write the JSON.

    Returns 1 where parity fails.
    """
    args = _parser().parse_args(argv)
    device = get_device(args.device)
    measurement = report.Measurement("marine", args, device)
    chosen = {name: SETTINGS[name] for name in list(SETTINGS)[: args.settings]}
    for name, changes in chosen.items():
        measurement.check(name, difference(changes), steps=PARITY_STEPS)
    if measurement.refused():
        return 1
    if args.peers and find_spec("vmas") is None:
        args.peers = False
        measurement.result["missing"].append("VMAS: not installed; the extra peers brings it")
    for name, changes in chosen.items():
        torch._dynamo.reset()
        # Of one function: two graphs of each batch.
        torch._dynamo.config.recompile_limit = 64
        rows = list(timed_rows(name, changes, args, str(device)))
        measurement.take_turns(name, rows)
        rates = {row.name: row.rate for row in rows}
        best = max((rate for row, rate in rates.items() if row.startswith("VMAS")), default=None)
        section = report.section(
            name, "environment steps/s", rows, {"reference": rates["reference"], "vmas_best": best}
        )
        for row in section["rows"]:
            row["ratios"] = row["ratios"] if row["name"].startswith("ours") else {}
        measurement.result["sections"].append(section)
    print(markdown(measurement.finish()))
    return 0


def markdown(result: JsonObject) -> str:
    """Write each section as a table: median rates and ratios.

    Ratios are to the reference, and to VMAS at its best batch.
    """
    lines = []
    for section in result["sections"]:
        lines += [f"\n{section['title']}\n", "| | steps/s | range | × reference | × VMAS |", "|---|---|---|---|---|"]
        for row in section["rows"]:
            low = report.number(row["range"][0])
            high = report.number(row["range"][1])
            ratios = [
                report.number(row["ratios"][key]) if key in row["ratios"] else "" for key in ("reference", "vmas_best")
            ]
            lines.append(f"| {row['name']} | {report.number(row['rate'])} | {low}–{high} | {' | '.join(ratios)} |")
    return "\n".join([*lines, "", *result["missing"], RELEASED, report.machine_line(result)])


def _parser() -> argparse.ArgumentParser:
    parser = report.parser("benchmarks/marine.py", __doc__, seconds=5.0)
    add = parser.add_argument
    add("--settings", type=whole(1), default=len(SETTINGS), help="how many of the settings, from the first on")
    add("--num_envs", nargs="+", type=whole(1), default=[1, 64, 1024, 4096], help="batches")
    add("--compiled", action=argparse.BooleanOptionalAction, default=True, help="torch.compile, too")
    add("--peers", action=argparse.BooleanOptionalAction, default=True, help="VMAS, too")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
