"""Agreement of a backend with the reference, and scenes for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.envs.packing.scenes import CELL, Scene, as_solids, bin_of, judge
from tests.records import with_values
from tests.tolerances import assert_near
from torchrl_gpu.envs.packing.kernels import reference
from torchrl_gpu.envs.packing.types import Catalogue, Placement, StoredMaps

KINDS = ("boxes", "solids", "boxes as solids")
CPU = torch.device("cpu")
# Those of one backend, or of several, for which the reference is asked once.
Kernels = ModuleType | list[ModuleType]


def assert_parity(
    kernels: Kernels, s: Scene, stored: StoredMaps | None = None, device: torch.device = CPU, growth: bool = True
) -> tuple[Tensor, Tensor]:
    """Check z and legality against the reference, to the bit.

    Growth may differ by the order of its sums.
    """
    there, z_map, legal = s.to(device), *reference.drop_map(*s)
    expected = reference.pile_growth(s.heightmap, s.item_id, z_map, s.catalogue, s.bin_) if growth else None
    for each in _listed(kernels):
        came_z, came_legal = each.drop_map(*there, stored and StoredMaps(*(field.to(device) for field in stored)))
        assert torch.equal(came_z.cpu(), z_map), each
        assert torch.equal(came_legal.cpu(), legal), each
        if expected is not None:
            came = each.pile_growth(there.heightmap, there.item_id, came_z, there.catalogue, s.bin_)
            assert_near(came.cpu(), expected)
    return z_map, legal


def assert_placed(kernels: Kernels, s: Scene, placement: Placement, device: torch.device = CPU) -> Tensor:
    """Check the heightmap after a placement against the reference, to the bit.

    The one before is not written.
    """
    expected, there = reference.place(s.heightmap, placement, s.catalogue, s.bin_), s.to(device)
    on_device = Placement(*(field.to(device) for field in placement))
    for each in _listed(kernels):
        assert torch.equal(each.place(there.heightmap, on_device, there.catalogue, s.bin_).cpu(), expected), each
        assert torch.equal(there.heightmap.cpu(), s.heightmap), each
    return expected


def _listed(kernels: Kernels) -> list[ModuleType]:
    return kernels if isinstance(kernels, list) else [kernels]


def some_placement(s: Scene, seed: int | torch.Generator) -> Placement:
    """Place the first item of each environment somewhere it fits.

    It may not be at rest. An item that fits nowhere is not placed.
    """
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    item = s.item_id[:, 0]
    orientation = torch.randint(s.catalogue.num_orientations, item.shape, generator=generator)
    extent = s.catalogue.extent[item.clamp_min(0), orientation]
    room = torch.tensor(s.bin_.cells) - extent
    corner = (torch.rand(room.shape, generator=generator) * (room + 1)).long().clamp_min(0)
    fits = (room >= 0).all(1)
    z = torch.randint(8, item.shape, generator=generator) * CELL
    return Placement(torch.where(fits, item, -1), orientation, *corner.unbind(1), z)


def shown_next(s: Scene, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Move items to other slots, with some new ones and some gone.

    Also returns the slots in which the others were.
    """
    num_envs, num_slots = s.item_id.shape
    slot = torch.from_numpy(np.stack([rng.permutation(num_slots) for _ in range(num_envs)]))
    item_id = s.item_id.gather(1, slot)
    fresh = torch.from_numpy(rng.random(slot.shape) < 0.3)
    other = torch.from_numpy(rng.integers(-1, s.catalogue.num_items, slot.shape))
    # The same item comes without stored maps.
    forgotten = torch.from_numpy(rng.random(slot.shape) < 0.1)
    return torch.where(fresh, other, item_id), torch.where(fresh | forgotten, -1, slot)


def changed_by(placement: Placement, s: Scene, rng: np.random.Generator) -> Tensor:
    """Return the cells that a placement covers, or some more.

    Where nothing was placed there are none.
    """
    extent = s.catalogue.extent[placement.item_id.clamp_min(0), placement.orientation]
    corner = torch.stack([placement.x, placement.y], 1)
    more = torch.from_numpy(rng.integers(0, 3, (2, *corner.shape)))
    changed = torch.cat(
        [(corner - more[0]).clamp_min(0), torch.minimum(corner + extent + more[1], torch.tensor(s.bin_.cells))], 1
    )
    return torch.where(placement.item_id[:, None] >= 0, changed, int(rng.integers(0, 3)))


def assert_kept_maps_follow(kernels: ModuleType, s: Scene, seed: int, steps: int, device: torch.device = CPU) -> None:
    """Maps stored over several placements are those of the reference."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    z_map, legal = reference.drop_map(*s)
    for _ in range(steps):
        placement = some_placement(s, generator)
        heightmap = reference.place(s.heightmap, placement, s.catalogue, s.bin_)
        item_id, slot = shown_next(s, rng)
        stored = StoredMaps(z_map, legal, slot, changed_by(placement, s, rng))
        s = with_values(s, heightmap=heightmap, item_id=item_id)
        z_map, legal = assert_parity(kernels, s, stored, device, growth=False)


def one_item(extent: tuple[int, int], kind: str, unit: float | None = None) -> Catalogue:
    box = Catalogue.of_boxes(torch.tensor([[[*extent, CELL]]], dtype=torch.float64), torch.ones(1))
    return as_solids(box, unit) if kind == "solids" else box


@cache
def patterns(shape: tuple[int, int], rule: str, every: int) -> tuple[Tensor, list[bool]]:
    """Patterns of contact cells, and the reference's verdict on an item on each."""
    cells = shape[0] * shape[1]
    pattern = (torch.arange(1, 2**cells)[::every, None] >> torch.arange(cells) & 1).view(-1, *shape)
    return pattern, [judge(c, rule) for c in pattern.bool().numpy()]


def assert_every_pattern(
    kernels: Kernels, shape: tuple[int, int], rule: str, kind: str, device: torch.device = CPU, every: int = 1
) -> None:
    """Stability of an item on every pattern of contact cells, or some of them."""
    pattern, expected = patterns(shape, rule, every)
    item_id = torch.zeros(len(pattern), 1, dtype=torch.int64)
    s = Scene((1 + pattern) * CELL, item_id, one_item(shape, kind, CELL), bin_of(shape, stability=rule))
    for each in _listed(kernels):
        assert each.drop_map(*s.to(device))[1][:, 0, 0, 0, 0].tolist() == expected, each
    assert 0 < sum(expected) < len(expected)


def assert_held_by_three_posts(kernels: Kernels, kind: str, half: int, device: torch.device = CPU) -> None:
    """Check a wide item on three posts whose triangle holds its centre.

    With one post moved by a cell, the triangle just misses it.
    """
    shape = 2 * half - 1, 2 * half
    heightmap = torch.full((2, *shape), CELL)
    for env, far in enumerate((half, half - 1)):
        for cell in ((0, 0), (shape[0] - 1, 0), (half - 1, far)):
            heightmap[env, *cell] = 2 * CELL
    s = Scene(
        heightmap, torch.zeros(2, 1, dtype=torch.int64), one_item(shape, kind), bin_of(shape, stability="support")
    )
    _, legal = assert_parity(kernels, s, device=device, growth=False)
    assert legal[:, 0, 0, 0, 0].tolist() == [True, False]


def assert_only_what_changed_is_made_anew(
    kernels: ModuleType, step: int, unit: float | None, device: torch.device = CPU
) -> None:
    """Check that only changed parts of stored maps are made anew.

    The stored maps are nonsense, so results differ from them exactly where a window meets the changed cell.
    """
    item_id = torch.zeros(1, 1, dtype=torch.int64)
    for corner in ((4, 5), (8, 7), (0, 0)):
        s = Scene(torch.full((1, 10, 9), 0.75), item_id, one_item((3, 2), "solids", unit), bin_of((10, 9), step=step))
        nonsense = torch.zeros(1, 1, 1, *s.bin_.grid)
        changed = torch.tensor([[*corner, corner[0] + 1, corner[1] + 1]])
        stored = StoredMaps(nonsense, torch.zeros_like(nonsense, dtype=torch.bool), item_id, changed)
        came = kernels.drop_map(*s.to(device), StoredMaps(*(field.to(device) for field in stored)))
        z_map = came[0].cpu()[0, 0, 0]
        legal = came[1].cpu()[0, 0, 0]
        fits = reference.drop_map(*s)[1][0, 0, 0]
        x = (torch.arange(s.bin_.grid[0]) * step).clamp_max(10 - 3)
        y = (torch.arange(s.bin_.grid[1]) * step).clamp_max(9 - 2)
        meets = ((x <= corner[0]) & (x + 3 > corner[0]))[:, None] & ((y <= corner[1]) & (y + 2 > corner[1]))
        assert torch.equal(z_map[fits] != 0, meets[fits])
        assert torch.equal(legal, fits & meets)


def assert_rounding_is_counted_away(kernels: ModuleType, s: Scene, device: torch.device = CPU) -> None:
    """Check that a height within a thousandth of a count is that count.

    Results are whole again, and as stable.
    """
    error = (torch.rand(s.heightmap.shape, generator=torch.Generator().manual_seed(0)) - 0.5) * 1e-4 * CELL
    came = kernels.drop_map(*with_values(s, heightmap=(s.heightmap + error).clamp_min(0)).to(device))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(came, reference.drop_map(*s), strict=True))


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a step, and its outputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph, outputs


def lifted(s: Scene, units: int, seed: int = 0) -> Scene:
    """Lift some cells of solids, never the first, by units of a cell."""
    c = s.catalogue
    assert c.top is not None
    assert c.bottom is not None
    some = torch.rand(c.top.shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    # Every item touches its own base somewhere.
    some[..., 0, 0] = False
    high = torch.where(some & c.bottom.isfinite(), units * CELL, 0.0)
    return with_values(s, catalogue=Catalogue.of_maps(c.top + high, c.bottom + high, c.extent, c.volume, CELL))
