"""Stability rule load_bearing against MuJoCo.

It compares places that the rule allows and refuses, and whole piles.

Piles of boxes on pallets without walls. Random places on piles that obey the rule: which it refuses at each margin, and
after which nothing moves. Whole random piles by each rule: how much moves when everything is released at once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from torchrl_gpu.cli.parser import OneLineParser, whole
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.physics import plan_of, settle_cases
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine
from torchrl_gpu.system.console import wide_console

MARGINS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08)  # metres
PALLET = {"bin_size": (0.8, 0.6, 1.0), "resolution": (80, 60), "walls": False, "include": ("z_map",)}


def boxes(folder: Path, piles: int, seed: int) -> BoxSequences:
    """Boxes of 8 to 40 cm, heights of 5 to 25 cm in steps that leave few tops level."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers([8, 8, 5], [41, 41, 26], (piles, 40, 3))
    path = folder / f"load_bearing_{piles}_{seed}.npy"
    np.save(path, sizes)
    return BoxSequences(str(path), unit="cm", in_order=True)


def low_action(env: PackingEnv, legal: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a legal action (N,) from the lowest tenth, or −1 where none is legal.

    People and heuristics fill from below, too.
    """
    height = (env.state.z_map + 0.1 * torch.rand(legal.shape, generator=generator)).flatten(1)
    flat = legal.flatten(1)
    at = torch.where(flat, height, torch.inf).argmin(1)
    return torch.where(flat.any(1), at, -1)


def candidates(piles: int, folder: Path, seed: int) -> dict[str, list[bool]]:
    """Try random places on piles that obey the rule at 3 cm.

    For each place the result says whether all boxes stay, and the verdict at each margin.
    """
    generator = torch.Generator().manual_seed(seed)
    source = boxes(folder, piles, seed)
    made = {m: PackingEnv(piles, items=source, stability="load_bearing", margin=m, seed=0, **PALLET) for m in MARGINS}
    env, free = made[0.03], PackingEnv(piles, items=source, seed=0, **PALLET)
    found: dict[str, list[bool]] = {"stays": [], **{f"margin {margin:g}": [] for margin in MARGINS}}
    for each in (*made.values(), free):
        each.reset()
    going = torch.ones(piles, dtype=torch.bool)
    for step in range(12):
        s = env.state
        # Try a place above the floor that only has to be free, and go back.
        if step >= 3:
            z_map, legal = env.kernels.drop_map(s.heightmap, s.item_id, env.catalogue, env.bin.dropped)
            off_floor = legal & (z_map > 0.01) & going.view(-1, 1, 1, 1, 1)
            draw = torch.where(off_floor.flatten(1), torch.rand(piles, env.num_actions, generator=generator), -1.0)
            action = draw.argmax(1)
            tried = draw.amax(1) >= 0
            same = {name: value for name, value in env.state_dict().items() if name != "bears"}
            free.load_state_dict(same | {"z_map": z_map, "legal": legal})
            free.step(free.fake_tensordict().set("action", action))
            rows = tried.nonzero().flatten().tolist()
            settled = settle_cases([plan_of(free, row) for row in rows], sequential=False)
            found["stays"] += [bool(each.stable.all()) for each in settled]
            for margin, other in made.items():
                allowed = other.kernels.upheld(s.heightmap, s.bears, z_map, legal, s.item_id, env.catalogue, other.bin)
                found[f"margin {margin:g}"] += allowed.flatten(1).gather(1, action[:, None])[tried, 0].tolist()
        action = low_action(env, s.legal, generator)
        going &= action >= 0
        env.step(env.fake_tensordict().set("action", action))
    return found


def whole_piles(piles: int, folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """Release random piles by each rule at once.

    A row holds the mean number of boxes, the share that stays, and the number of piles in which a box moves.
    """
    rows = {}
    rules = [("none", 0.0), ("support", 0.0), *(("load_bearing", margin) for margin in MARGINS)]
    for rule, margin in rules:
        generator = torch.Generator().manual_seed(seed)
        source = boxes(folder, piles, seed)
        of_bearing = {"margin": margin} if rule == "load_bearing" else {}
        env = PackingEnv(piles, items=source, stability=rule, seed=0, **of_bearing, **PALLET)
        env.reset()
        for _ in range(15):
            action = low_action(env, env.state.legal, generator)
            env.step(env.fake_tensordict().set("action", action))
        plans = [plan_of(env, index) for index in range(piles)]
        settled = settle_cases(plans, sequential=False, progress=True)
        name = rule if rule != "load_bearing" else f"load_bearing, margin {margin:g}"
        moves = [not each.stable.all() for each in settled]
        row = {"boxes": float(env.num_packed.float().mean())}
        row["stays"] = float(np.mean([each.share for each in settled]))
        row["piles that move"] = int(sum(moves))
        rows[name] = row
    return rows


def main() -> None:
    parser = OneLineParser(prog="benchmarks.load_bearing", description=__doc__)
    parser.add_argument("--piles", type=whole(1), default=1000, help="random piles of each rule")
    parser.add_argument("--places", type=whole(1), default=100, help="piles on which places are tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = candidates(args.places, Path(folder), args.seed)
        piles = whole_piles(args.piles, Path(folder), args.seed)
    stays = np.array(found.pop("stays"))
    console = wide_console()
    table = Table("margin, m", "allowed", "allowed and falls", "refused", "refused and would stay")
    curve = {}
    for name, verdicts in found.items():
        allowed = np.array(verdicts)
        falls, timid = float((~stays)[allowed].mean()), float(stays[~allowed].mean())
        curve[name] = {"allowed": int(allowed.sum()), "falls": falls, "refused": int((~allowed).sum()), "stays": timid}
        counts = str(curve[name]["allowed"]), f"{100 * falls:.1f}%", str(curve[name]["refused"]), f"{100 * timid:.1f}%"
        table.add_row(name.removeprefix("margin "), *counts)
    console.print(f"{len(stays)} random places above the floor, {100 * stays.mean():.1f}% of them stay", table)
    table = Table("rule", "boxes a pile", "stay", "piles in which one moves")
    for name, row in piles.items():
        table.add_row(
            name, f"{row['boxes']:.1f}", f"{100 * row['stays']:.2f}%", f"{row['piles that move']}/{args.piles}"
        )
    console.print(table)
    if args.output:
        result = {"benchmark": "load_bearing", "machine": machine.describe(torch.device("cpu")), "seed": args.seed}
        write_json(
            args.output, result | {"tried": len(stays), "stays": float(stays.mean()), "places": curve, "piles": piles}
        )


if __name__ == "__main__":
    main()
