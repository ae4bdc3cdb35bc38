"""The baselines with the candidates of the code released with PCT (Zhao et al., ICLR 2022), defects included.

python benchmarks/released_baselines.py --cases 500

There random, deepest bottom left and heightmap minimisation try x ≤ X − p and y ≤ Y − q alone, with the sides of the
box as it comes, whatever its orientation. Online BPH drops the box at the corner of the first space, whether it fits in
there or not; the others try corners of spaces that hold the box. Least surface area takes a placement only if the score
is below that of the full bin, so that once boxes span the floor nothing may reach the ceiling. An episode ends where
none of that is legal. Ours look at every placement; this says how much of a difference that is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies.packing import BASELINES, LeastSurfaceArea, OnlineBinPacking, PlacementHeuristic
from torchrl_gpu.policies.packing.maximal_spaces import NONE, maximal_spaces
from torchrl_gpu.policies.packing.placements import first_best

Candidates = Callable[[TensorDictBase], Tensor]


def as_it_comes(env: PackingEnv) -> Candidates:
    """Placements at x ≤ X − p and y ≤ Y − q, p and q as the box comes: (N, K, O, Gx, Gy) bool."""
    x, y = (torch.arange(number, device=env.device) for number in env.grid)

    def candidates(shown: TensorDictBase) -> Tensor:
        extent = env.catalogue.extent[shown["item_id"].clamp_min(0), 0][..., None, None]  # (N, K, 2, 1, 1)
        inside_x = x[:, None] <= env.bin.cells[0] - extent[:, :, 0]
        inside_y = y <= env.bin.cells[1] - extent[:, :, 1]
        return (inside_x & inside_y)[:, :, None]

    return candidates


def corners(env: PackingEnv) -> Candidates:
    """Placements in the first corner of an empty maximal space that holds the box."""
    rule: PlacementHeuristic = OnlineBinPacking(env)
    return lambda shown: rule.best(rule._placements(shown)) < NONE  # type: ignore[attr-defined]


def below_the_full_bin(env: PackingEnv) -> Candidates:
    """Those corners of which the least surface is smaller than that of the bin: its score to begin with."""
    rule, at_corners = LeastSurfaceArea(env), corners(env)
    x, y, z = (round(side / env.bin.tolerance) for side in env.bin.size)
    full = x * y + y * z + z * x
    return lambda shown: at_corners(shown) & (rule.area(rule._placements(shown)) < full)


def at_any_corner(env: PackingEnv) -> Callable[[TensorDictBase], TensorDictBase]:
    """Online BPH with the corners of all spaces, whether they hold the box or not."""
    rule = OnlineBinPacking(env)

    def choose(shown: TensorDictBase) -> TensorDictBase:
        worth = []
        for heightmap in shown["box_heightmap"].split(16):
            spaces = maximal_spaces(rule.levels(heightmap), rule.ceiling)
            worth.append(torch.where(spaces.maximal, rule.worth(spaces), NONE).amin((2, 4)))
        of_cell = torch.cat(worth)[:, None, None]  # (N, 1, 1, X, Y); of a grid step of one cell
        legal = shown["legal_mask"] & (of_cell < NONE)
        return shown.set("action", torch.where(legal.flatten(1).any(1), first_best([of_cell], legal), -1))

    return choose


RELEASED = {word: as_it_comes for word in ("random", "dbl", "hm")} | {
    "lsah": below_the_full_bin,
    "lsah-corners": corners,  # what the corners alone make of the difference
    **{word: corners for word in ("bph", "br", "macs")},
}  # but for online BPH, see `as_released`


def as_released(env: PackingEnv, word: str) -> Callable[[TensorDictBase], TensorDictBase]:
    """A baseline among those candidates; it gives up where none of them is legal."""
    if word == "bph":
        return at_any_corner(env)
    policy, candidates = BASELINES[word.removesuffix("-corners")][1](env), RELEASED[word](env)

    def choose(shown: TensorDictBase) -> TensorDictBase:
        legal = shown["legal_mask"] & candidates(shown)
        chosen = policy(shown.clone(recurse=False).set("legal_mask", legal))["action"]
        return shown.set("action", torch.where(legal.flatten(1).any(1), chosen, -1))

    return choose


def main() -> None:
    """Prints the utilization of each, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", default=["discrete125", "free125"])
    parser.add_argument("--policies", nargs="+", choices=RELEASED, default=list(RELEASED))
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/packing_baselines_released.json"))
    args = parser.parse_args()
    found = json.loads(args.output.read_text()) if args.output.exists() else {}
    for name in args.protocols:
        suite = ProtocolSuite(name, args.cases, device=args.device)
        for word in args.policies:
            if word in found.get(name, {}):
                continue
            score = suite.play(as_released(suite.env, word)).score(word)
            found.setdefault(name, {})[word] = asdict(score)
            write_json(args.output, found)
            print(f"{name}, {score.policy}: {score.utilization:.1%} ± {score.utilization_error:.1%}", flush=True)


if __name__ == "__main__":
    main()
