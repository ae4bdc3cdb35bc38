"""Values of placements of boxes.

Against plain loops, and the laws of what is valued.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest

from tests.no_host_reads import NoHostReads
from tests.policies.packing.packer_scenes import random_states
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import OrderBoxes
from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.policies.packing.ntuple.tables import NEVER
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues

SETTINGS: dict[str, dict[str, Any]] = {
    "pallet": {"resolution": (120, 80), "grid_step": 5},
    "every cell": {"resolution": (30, 20), "grid_step": 1},
    "steps that do not divide": {"resolution": (45, 30), "grid_step": 4},
}
ARGUMENTS = ("box_heightmap", "item_size", "z_map", "legal_mask")


def pallet(num_envs: int, **changes: Any) -> PackingEnv:
    settings = {"bin_size": (1.2, 0.8, 1.5), "orientations": "yaw", "stability": "support", "include": ["z_map"]}
    settings |= {"items": OrderBoxes(num_articles=30), "num_items": 60, "device": "cpu", "seed": 3}
    return PackingEnv(num_envs, **settings | changes)  # type: ignore[arg-type]


def some_weights(seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(0, 1, len(NAMES)).tolist()


def wedged(z: np.ndarray, legal: np.ndarray) -> list[tuple[float, int, int]]:
    """Return the wedged placements of one box, the lowest first.

    Each as (base, gx + gy, action), of (O, Gx, Gy).
    """
    found = []
    for number, (o, x, y) in enumerate(np.ndindex(z.shape)):

        def free(dx: int, dy: int, o: int = o, x: int = x, y: int = y) -> bool:
            u, v = x + dx, y + dy
            inside = 0 <= u < z.shape[1] and 0 <= v < z.shape[2]
            return inside and bool(legal[o, u, v]) and z[o, u, v] <= z[o, x, y] + 1e-6

        stuck_x, stuck_y = not (free(-1, 0) and free(1, 0)), not (free(0, -1) and free(0, 1))
        if legal[o, x, y] and stuck_x and stuck_y:
            found.append((round(float(z[o, x, y]), 5), x + y, number))
    return sorted(found)


def numbers_of(
    pile: np.ndarray, corner: Sequence[int], extent: Sequence[int], base: float, height: float
) -> list[float]:
    """Return the numbers of one placement, by plain loops.

    Heights are in bin heights.
    """
    cells_x, cells_y = pile.shape
    x, y = corner
    p, q = extent
    top = base + height
    along_x = [x + int(p * (i + 0.5) / 5) for i in range(5)]
    along_y = [y + int(q * (i + 0.5) / 5) for i in range(5)]

    def heights_of(side: list[tuple[int, int]]) -> list[float]:
        return [float(pile[u, v]) if 0 <= u < cells_x and 0 <= v < cells_y else 2.0 for u, v in side]

    def beside(distance: int) -> list[list[float]]:
        at = [[(x - distance, v) for v in along_y], [(x + p - 1 + distance, v) for v in along_y]]
        at += [[(u, y - distance) for u in along_x], [(u, y + q - 1 + distance) for u in along_x]]
        return [heights_of(side) for side in at]

    ring, lengths = beside(1), [q / cells_y, q / cells_y, p / cells_x, p / cells_x]
    far = [beside(max(1, round(share * max(pile.shape)))) for share in (0.05, 0.0917)]
    covered = [np.clip((np.array(side) - base) / height, 0, 1).mean() for side in ring]
    cells = list(chain.from_iterable(ring))
    gaps = []
    for s, side in enumerate(ring):
        low = np.array(side) <= base + 1e-4
        higher = np.maximum(far[0][s], far[1][s]) > base + 1e-4
        gaps.append(np.mean(low & higher))
    steps = []
    for side in ring:
        heights = np.array(side)
        steps.append(np.where(heights < 2, abs(heights - top), 0).mean())
    sides = [share * length for share, length in zip(covered, lengths, strict=True)]
    under = sum(base * q - pile[u, y : y + q].sum() for u in along_x) / 5 * p
    walls = sum(length for side, length in zip(ring, lengths, strict=True) if side[0] >= 2)
    level = float(np.mean([abs(h - top) < 4e-3 for h in cells]))
    lower = float(np.mean([h < base - 1e-4 for h in cells]))
    overtopped = float(np.mean([top + 1e-4 < h < 2 for h in cells]))
    gap = sum(gap * length for gap, length in zip(gaps, lengths, strict=True))
    step = sum(step * length for step, length in zip(steps, lengths, strict=True))
    place = [base, top, top**2, 20 * under / (cells_x * cells_y), (x + y) / (cells_x + cells_y)]
    contact = [walls, max(sides[:2]), max(sides[2:]), sum(sides)]
    around = [level, lower, overtopped, gap]
    rest = [float(base < 1e-4), max(top - pile.max(), 0), step]
    margins = [min(x, cells_x - x - p) / cells_x, min(y, cells_y - y - q) / cells_y]
    corner_contact = min(max(covered[:2]), max(covered[2:]))
    return [*place, *contact, *around, *rest, *margins, corner_contact]


@pytest.mark.parametrize("name", SETTINGS)
def test_placement_values_are_those_of_plain_loops(name: str) -> None:
    env, weights = pallet(3, **SETTINGS[name]), some_weights()
    values, step = LinearPlacementValues(AgentSpace.of(env), weights, 7), env.grid_step
    for steps in (0, 6, 13):
        shown = random_states(env, steps)
        found = values(*(shown[key] for key in ARGUMENTS))
        for row, given in zip(shown, found.numpy(), strict=True):
            z, legal = row["z_map"][0].numpy(), row["legal_mask"][0].numpy()
            pile = row["box_heightmap"].numpy().astype(np.float64) / 1.5
            wanted = np.full(z.size, NEVER)
            for _, _, action in wedged(z, legal)[:7]:
                o, gx, gy = np.unravel_index(action, z.shape)
                size = row["item_size"][0, o].numpy()
                extent = [round(float(size[axis] / env.bin.cell[axis])) for axis in (0, 1)]
                corner = [min(int(g) * step, env.bin.cells[i] - extent[i]) for i, g in enumerate((gx, gy))]
                numbers = numbers_of(pile, corner, extent, float(z[o, gx, gy]) / 1.5, float(size[2]) / 1.5)
                wanted[action] = np.dot(numbers, weights)
            np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-4)


def test_where_anything_is_legal_something_is_valued() -> None:
    env = pallet(64, resolution=(24, 16))
    values = LinearPlacementValues(AgentSpace.of(env), some_weights(), 1)
    for steps in (0, 5, 20, 40):
        shown = random_states(env, steps)
        valued = values(*(shown[key] for key in ARGUMENTS)) > NEVER
        assert valued.any(1).equal(shown["action_mask"].any(1))
        assert (valued.sum(1) <= 1).all()
        assert not (valued & ~shown["action_mask"]).any()


def test_batches_of_any_shape_and_no_host_reads() -> None:
    env = pallet(4, resolution=(24, 16))
    values, shown = LinearPlacementValues(AgentSpace.of(env), some_weights()), random_states(env, 8)
    shown["legal_mask"][1], shown["item_size"][1] = False, 0.0
    given = [shown[key] for key in ARGUMENTS]
    wanted = values(*given)
    with NoHostReads():
        found = values(*(each.unflatten(0, (2, 2)) for each in given))
    assert (wanted[1] == NEVER).all()
    assert wanted.isfinite().all()
    assert found.equal(wanted.unflatten(0, (2, 2)))
    assert values(*(each[2] for each in given)).equal(wanted[2])


@pytest.mark.parametrize(
    ("weights", "candidates", "message"),
    [
        ([1.0] * 4, 40, "LinearPlacementValues: weights .*19.*4"),
        ([float("nan")] * 19, 40, "LinearPlacementValues: base must be a finite number; got nan"),
        ([1.0] * 19, 0, "LinearPlacementValues: candidates must be at least 1; got 0"),
    ],
)
def test_placement_values_refuse_wrong_arguments(weights: list[float], candidates: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearPlacementValues(AgentSpace.of(pallet(1, resolution=(24, 16))), weights, candidates)
