"""`Packer`: rows of open pallets, and where the next box of each row goes; batched over rows and pallets.

A row is an order, or a cell that palletises. Each has M open pallets of one size, and K boxes to choose from at a time:

    pallet = Pallet(1.2, 0.8, height=1.5, cell=0.01)          # metres, kilograms
    packer = Packer(pallet, open_pallets=2)
    boxes = packer.prepare(Boxes.of(sizes, weights=weights))  # sizes (B, 3) metres; boxes.reasons says what cannot go
    state = packer.empty(rows=1)
    choice = packer.choose(state, boxes, offered)             # offered (R, K) int64: numbers of boxes, −1 for none
    where = packer.corner(choice, boxes)                      # (R, 3) metres from the pallet's corner, and the sides
    state = packer.place(state, boxes, choice)                # a new state: whoever keeps the old one can undo

`choose` takes the legal placement that the policy prefers on each open pallet, and of these the one that leaves the
least hollow below it. Where nothing that is offered fits an open pallet it opens another (`choice.fresh`), in place of
the fullest one where M are open: that one is closed. A box without an entry in `boxes.reasons` fits a fresh pallet, so
that every choice of such a box places it. States and prepared boxes are independent: a session may prepare new boxes
for each request. `state.heightmap` may be replaced by a measured one (`packer.set_heightmap`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.device import get_device
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.kernels import Kernels, get_kernels
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.envs.packing.types import MOST_CELLS, Bin, Catalogue, Placement
from torchrl_gpu.palletizing.loads import Loads
from torchrl_gpu.policies.packing.heuristics import BASELINES, VolumeSorted
from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
from torchrl_gpu.policies.packing.placements import placed_at
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments

DECK_M = 0.02  # of a pallet that boxes may stick out of, above the empty space around it
HEURISTICS = tuple(name for name in BASELINES if name not in ("random", "bph", "br", "macs"))
MOST_FLOOR = 2**20  # cells of a pallet
# Length, width and most height of the load, metres: usual pallets, and the containers of RoboBPP (arXiv 2512.04415).
PRESETS = {
    "eur": (1.2, 0.8, 1.5),
    "1200x1000": (1.2, 1.0, 1.5),
    "48x40": (1.2192, 1.016, 1.5),
    "repetitive": (1.34, 1.25, 1.0),
    "diverse": (1.2, 1.0, 1.7),
    "boards": (2.5, 1.2, 1.0),
}
_CHUNK = 2**26  # elements of the maps of all placements that are made at once


@dataclass(frozen=True)
class Pallet:
    """A pallet, what may be loaded on it, and the cells that its floor is divided into.

    Args:
        length, width: Metres.
        height: Most height of the load, metres.
        weight: Most weight of the load, kilograms.
        gap: Free room between neighbouring boxes, metres.
        overhang: What boxes may stick out over each edge, metres.
        cell: Side of a cell, metres.
    """

    length: float
    width: float
    height: float
    weight: float = math.inf
    gap: float = 0.0
    overhang: float = 0.0
    cell: float = 0.01

    @property
    def cells(self) -> tuple[int, int]:
        """Cells along length and width, those of the overhang too."""
        more = 2 * self.overhang + self.gap  # there is no neighbour beyond the last box
        length, width = ((side + more) / self.cell for side in (self.length, self.width))
        return math.floor(length + 1e-6), math.floor(width + 1e-6)

    @property
    def deck(self) -> float:
        """Height of the pallet's top above what the heightmap begins at: 0 where nothing may stick out."""
        return DECK_M if self.overhang > 0 else 0.0

    @property
    def origin(self) -> tuple[float, float]:
        """Corner of the first cell, metres from the corner of the pallet."""
        x, y = self.cells
        return (self.length - x * self.cell) / 2, (self.width - y * self.cell) / 2

    @property
    def volume(self) -> float:
        """Room for the load, cubic metres, without what may stick out."""
        return self.length * self.width * self.height

    def bin(self, stability: str, step: int = 1) -> Bin:
        """The bin of the heightmap."""
        x, y = self.cells
        if not 1 <= min(x, y) <= max(x, y) <= MOST_CELLS or x * y > MOST_FLOOR:
            wanted = f"cells such that a pallet has from 1 to {MOST_FLOOR:,}, at most {MOST_CELLS:,} a side"
            raise ValueError(f"Pallet: want {wanted}; got {x:,} × {y:,} of {self.cell:g} m")
        return Bin((x * self.cell, y * self.cell, self.height + self.deck), (x, y), step, stability)

    def floor(self, device: torch.device) -> Tensor:
        """Heightmap of the empty pallet, (X, Y) float32, metres: `deck` over the pallet, 0 beside it."""
        over = []
        for cells, side, first in zip(self.cells, (self.length, self.width), self.origin, strict=True):
            middle = (torch.arange(cells, device=device, dtype=torch.float32) + 0.5) * self.cell + first
            over.append((middle >= 0) & (middle <= side))
        return torch.where(over[0][:, None] & over[1], self.deck, 0.0).float()


class Boxes(NamedTuple):
    """Boxes, B of them."""

    sizes: Tensor  # (B, 3) float64, length, width and height as they are listed, metres
    weights: Tensor  # (B,) float64, kilograms; 0 where it is not known
    up: Tensor  # (B, 3) bool, mask of the sides that may be vertical
    max_load: Tensor  # (B,) float64, kilograms that may be put on top; 0: nothing at all, inf: anything

    @staticmethod
    def of(sizes: Any, weights: Any = 0.0, upright: Any = True, max_load: Any = math.inf) -> Boxes:
        """Boxes of numbers; one may stand for all of them. The third side of `upright` boxes stays vertical."""
        size = torch.as_tensor(sizes, dtype=torch.float64, device="cpu").reshape(-1, 3)
        kinds = (weights, torch.float64), (upright, torch.bool), (max_load, torch.float64)
        weight, stays, load = (
            torch.as_tensor(each, dtype=dtype, device="cpu").expand(len(size)) for each, dtype in kinds
        )
        return Boxes(size, weight, torch.stack([~stays, ~stays, stays | True], 1), load)


class Soles(NamedTuple):
    """What boxes touch of the cells that are kept for them: those that lie wholly under the box.

    A box lies in the middle of its cells. They hold its share of the gap and what rounding adds, and there is nothing
    in that room: no box rests on it, and it rests on none.
    """

    catalogue: Catalogue  # boxes of the touched cells alone
    rim: Tensor  # (M, O, 2) int64, cells along x and y before the first touched one, and behind the last
    is_small: Tensor  # (M, O) bool, boxes that fill no cell: they stand on the floor alone, and carry nothing
    is_whole: bool  # all boxes fill all of their cells
    first_x: Tensor  # (M, O, Gx) int64, first touched cell along x of every placement
    first_y: Tensor  # (M, O, Gy) int64, likewise along y

    @staticmethod
    def of(turned: Tensor, extent: Tensor, volume: Tensor, cell: float, bin_: Bin) -> Soles:
        """Soles of boxes with sides (M, O, 3) metres and kept cells (M, O, 2) in a bin, on the CPU."""
        room = (extent * cell - turned[..., :2]) / 2
        rim = (room / cell - 1e-6).ceil().clamp_min(0)
        touched = extent - 2 * rim
        is_small = (touched < 1).any(-1)
        # A small box keeps some cell, so that it is a box of the catalogue.
        rim = torch.where(touched < 1, ((extent - 1) / 2).floor(), rim)
        sizes = torch.cat([extent - 2 * rim, turned[..., 2:].float().double()], -1)
        is_whole = not bool((rim > 0).any()) and not bool(is_small.any())
        rim = rim.long()
        first = []
        for axis, cells in enumerate(bin_.cells):
            begins, _ = grid_positions(extent[..., axis].long(), cells, bin_.step)
            first.append((begins + rim[..., axis, None]).clamp_max(cells - 1))
        return Soles(Catalogue.of_boxes(sizes, volume), rim, is_small, is_whole, *first)

    def to(self, device: torch.device) -> Soles:
        """The same on a device."""
        return Soles(
            self.catalogue.to(device),
            self.rim.to(device),
            self.is_small.to(device),
            self.is_whole,
            self.first_x.to(device),
            self.first_y.to(device),
        )


class PreparedBoxes(NamedTuple):
    """Boxes prepared for a packer: equal ones are one row of the catalogue."""

    boxes: Boxes
    catalogue: Catalogue
    soles: Soles
    row: Tensor  # (B,) int64, of each box in the catalogue
    turns: Tensor  # (M, O) bool, orientations that each row may have
    first: Tensor  # (M,) int64, action of each row on an empty pallet; −1 where there is none
    weight: Tensor  # (B,) float32, kilograms
    max_load: Tensor  # (B,) float32, kilograms
    reasons: list[str]  # of each box, why it cannot be placed on an empty pallet; "" where it can


class Pallets(NamedTuple):
    """Open pallets of R rows, M each."""

    heightmap: Tensor  # (R, M, X, Y) float32, metres
    number: Tensor  # (R, M) int64, of the pallet in its row, counted from 0; −1 where none is open
    weight: Tensor  # (R, M) float32, kilograms
    volume: Tensor  # (R, M) float32, cubic metres of boxes
    opened: Tensor  # (R,) int64, pallets so far
    bears: Tensor  # (R, M, X, Y) bool, mask of cells that bear load; (R, M, 0, 0) without the rule "load_bearing"
    top: Tensor  # (R, M, X, Y) int64, of `Loads`; (R, M, 0, 0) where the load on boxes is not limited
    below: Tensor  # (R, M, C, C) bool
    left: Tensor  # (R, M, C) float32
    boxes: Tensor  # (R, M) int64

    def first(self, rows: int) -> Pallets:
        """The first rows, which go on while the others are done."""
        return Pallets(*(each[:rows] for each in self))

    @property
    def loads(self) -> Loads:
        """Of all pallets, N = R·M."""
        return Loads(*(each.flatten(0, 1) for each in (self.top, self.below, self.left, self.boxes)))


class Choice(NamedTuple):
    """One placement of each row, (R,) each."""

    box: Tensor  # int64, number of the box; −1 where none was offered
    offer: Tensor  # int64, its place among those offered
    slot: Tensor  # int64, which of the M pallets
    number: Tensor  # int64, that pallet's number in its row
    fresh: Tensor  # bool, whether it is a new one, which stands where `slot` was
    turn: Tensor  # int64, orientation
    x: Tensor  # int64, first cell
    y: Tensor  # int64
    z: Tensor  # float32, base above the pallet, metres


class RestingBox(NamedTuple):
    """A box that lies where it was measured, not on whole cells."""

    region: Tensor  # (X, Y) bool, mask of cells that it covers to the half or more, its share of the gap included
    touching: Tensor  # (X, Y) bool, mask of the cells that lie wholly under it
    reached: Tensor  # (X, Y) bool, mask of all cells that it reaches into
    level: float  # height of what it lies on, metres above the pallet's top
    top: float  # its own top, likewise


class Packer:
    """Chooses pallet, box, turn and place, and carries the choice out.

    Args:
        pallet: Of every row.
        open_pallets: M, pallets of a row that are open at a time.
        turns: Orientations, "fixed", "yaw" or "axis", of which each box takes those that leave a side vertical that
            may be.
        stability: Rule for legal placements, one of `STABILITY_RULES`.
        policy: One of `HEURISTICS`, a policy that comes with the package, or the path of a file of one.
        step: Cells between neighbouring places.
        device: As in `get_device`.

    Raises:
        ValueError, FileNotFoundError: There is no such rule or policy, or the pallet has too many cells.
    """

    def __init__(
        self,
        pallet: Pallet,
        *,
        open_pallets: int = 1,
        turns: str = "yaw",
        stability: str = "load_bearing",
        policy: str = "orders",
        step: int = 1,
        device: str | torch.device = "auto",
    ) -> None:
        self.pallet, self.device = pallet, get_device(device)
        self.open_pallets = arguments.whole("Packer", "open_pallets", open_pallets, 1, 64)
        self.turns = arguments.choice("Packer", "turns", turns, ("fixed", "yaw", "axis"))
        self.bin, self.kernels = pallet.bin(stability, step), _kernels(self.device)
        self.floor = pallet.floor(self.device)
        self.bearing = (self.floor >= pallet.deck)[tuple(map(slice, self.bin.bearing_cells))]  # of the empty pallet
        self.rotations = torch.from_numpy(abs(orientation_set(self.turns, boxes=True)).round())  # (O, 3, 3)
        self.policy = policy
        self.learned = None if policy in BASELINES else self._learned(policy)
        if self.learned is None:
            arguments.choice("Packer", "policy", policy, HEURISTICS)

    def _learned(self, name: str) -> PackingPolicy:
        env = PackingEnv(
            1,
            bin_size=self.bin.size,
            resolution=self.bin.cells,
            grid_step=self.bin.step,
            items=RandomBoxes(1, 1),  # any: the space has nothing of them
            orientations=self.turns,
            stability=self.bin.dropped.stability,
            include=("z_map",),
            device=self.device,
        )
        return PackingPolicy.from_pretrained(name, self.device, space=AgentSpace.of(env))

    # -- boxes ------------------------------------------------------------------------------------------------------

    def prepare(self, boxes: Boxes, test_fit: bool = True) -> PreparedBoxes:
        """Boxes prepared for `choose`, on the packer's device; reads the device back for `reasons`.

        What is only placed again needs not be `tested` for whether it fits an empty pallet.
        """
        kinds = torch.cat([boxes.sizes, boxes.up, boxes.max_load[:, None]], 1)
        known, row = kinds.unique(dim=0, return_inverse=True)
        turned = torch.einsum("oij,mj->moi", self.rotations, known[:, :3])  # (M, O, 3) metres
        extent = ((turned[..., :2] + self.pallet.gap) / self.pallet.cell - 1e-6).ceil()
        over = max(self.bin.cells) + 1  # a larger box fits nowhere anyway
        kept = extent.clamp(1, over)
        sizes = torch.cat([kept, turned[..., 2:].float().double()], -1)
        volume = known[:, :3].prod(1)
        catalogue = Catalogue.of_boxes(sizes, volume).to(self.device)
        soles = Soles.of(turned, kept, volume, self.pallet.cell, self.bin).to(self.device)
        turns = (known[:, 3:6] @ self.rotations[:, 2].T > 0.5).to(self.device)  # (M, O), the side along z may be there
        row, weight = row.to(self.device), boxes.weights.float().to(self.device)
        max_load = boxes.max_load.float().to(self.device)
        prepared = PreparedBoxes(boxes, catalogue, soles, row, turns, row, weight, max_load, [])
        if not test_fit:
            return prepared
        first = self._first(prepared)
        reasons = self._reasons(boxes, turns.any(1).cpu(), turned.amin(1)[:, 2], first.cpu() >= 0, prepared.row.cpu())
        return prepared._replace(first=first, reasons=reasons)

    def _first(self, prepared: PreparedBoxes) -> Tensor:
        """Action of each catalogue row on an empty pallet, (M,) int64; −1 where none is legal."""
        found, room = [], prepared.catalogue.num_orientations * self.floor.numel()
        for rows in torch.arange(len(prepared.turns), device=self.device, dtype=torch.int64).split(
            max(1, _CHUNK // room)
        ):
            item, state = rows[:, None], self.empty(len(rows), pallets=1)
            z_map, legal = self.maps(state, prepared, item, torch.zeros_like(item, dtype=torch.float32))
            action = self._action(state.heightmap[:, 0], prepared, item, z_map, legal)
            found.append(torch.where(legal.flatten(1).any(1), action, -1))
        return torch.cat(found)

    def _reasons(self, boxes: Boxes, turned: Tensor, least: Tensor, fits: Tensor, row: Tensor) -> list[str]:
        p = self.pallet
        long, short = sorted((p.length + 2 * p.overhang, p.width + 2 * p.overhang), reverse=True)
        heavy = (boxes.weights > p.weight).tolist()
        high, permitted = (least[row] > p.height + 1e-9).tolist(), turned[row].tolist()
        sides = boxes.sizes.sort(1, descending=True).values.tolist()
        reasons = []
        for i, placed in enumerate(fits[row].tolist()):
            if heavy[i]:
                reasons.append("heavier than a pallet may carry")
            elif not permitted[i]:
                reasons.append(f"may not stand as turns {self.turns} would have it")
            elif placed:
                reasons.append("")
            elif high[i]:
                reasons.append("higher than a load may be")
            elif sides[i][0] > long and boxes.sizes[i, :2].max() > long:
                reasons.append("longer than the pallet")
            else:
                reasons.append("larger than the pallet in every turn" if short < long else "larger than the pallet")
        return reasons

    # -- a step -----------------------------------------------------------------------------------------------------

    def empty(self, rows: int, pallets: int | None = None) -> Pallets:
        """State of rows before their first pallet is opened."""
        shape, device = (rows, self.open_pallets if pallets is None else pallets), self.device
        zero = torch.zeros(shape, dtype=torch.float32, device=device)
        none = torch.full(shape, -1, dtype=torch.int64, device=device)
        heightmap, bears = (each.expand(*shape, -1, -1).clone() for each in (self.floor, self.bearing))
        state = Pallets(heightmap, none, zero, zero.clone(), none[:, 0] + 1, bears, none, none, none, none)
        return self.limit_loads(state, 0)

    def begin(self, prepared: PreparedBoxes, orders: Sequence[np.ndarray]) -> Pallets:
        """State of rows before the first box (…) int64 of each, which limits the load on boxes where one does."""
        state = self.empty(len(orders))
        numbers = [torch.from_numpy(order) for order in orders]
        if not any(bool(prepared.boxes.max_load[boxes].isfinite().any()) for boxes in numbers):
            return state
        # The rows share one table of loads, so that it must hold the fullest pallet of any row: also of a row that
        # limits nothing. Boxes do not overlap, but for the tolerances by which cells and heights are compared.
        length, width, height = self.bin.size
        room = length * width * (height + 2 * self.bin.tolerance) * (1 + 1e-5)
        most = 1
        for boxes in numbers:
            if len(boxes):
                least = float(prepared.boxes.sizes[boxes].prod(1).min())
                most = max(most, min(len(boxes), math.ceil(room / least)))
        return self.limit_loads(state, most)

    def limit_loads(self, state: Pallets, most: int) -> Pallets:
        """The state in which the load on boxes is limited from now on, of at most so many boxes a pallet."""
        shape, cells = state.number.shape, self.bin.cells if most else (0, 0)
        full: Any = partial(torch.full, device=self.device)
        return state._replace(
            top=full((*shape, *cells), -1, dtype=torch.int64),
            below=full((*shape, most, most), False, dtype=torch.bool),
            left=full((*shape, most), math.inf, dtype=torch.float32),
            boxes=full(shape, 0, dtype=torch.int64),
        )

    def set_heightmap(self, state: Pallets, row: int, slot: int, heightmap: Tensor) -> Pallets:
        """The state with a measured heightmap (X, Y) of one pallet, metres above the pallet's top."""
        wanted = arguments.tensor("Packer", "heightmap", heightmap, torch.float32, self.bin.cells)
        maps = state.heightmap.clone()
        maps[row, slot] = torch.maximum(wanted.to(self.device) + self.pallet.deck, self.floor)
        return state._replace(heightmap=maps)

    def clear(self, state: Pallets, chosen: Tensor) -> Pallets:
        """The state with empty pallets, under their old numbers, in place of those chosen, (R, M) bool."""
        maps = chosen[..., None, None]
        return state._replace(
            heightmap=torch.where(maps, self.floor, state.heightmap),
            weight=torch.where(chosen, 0.0, state.weight),
            volume=torch.where(chosen, 0.0, state.volume),
            bears=torch.where(maps, self.bearing, state.bears),
            top=torch.where(maps, -1, state.top),
            left=torch.where(chosen[..., None], math.inf, state.left),
            boxes=torch.where(chosen, 0, state.boxes),
        )

    def choose(self, state: Pallets, prepared: PreparedBoxes, offered: Tensor) -> Choice:
        """The best placement of each row among boxes offered (R, K) int64, −1 for none."""
        pallets, rows = self.open_pallets, len(offered)
        row = torch.where(offered >= 0, prepared.row[offered.clamp_min(0)], -1)
        item = row.repeat_interleave(pallets, 0)  # (N, K), N = R·M
        heightmap = state.heightmap.flatten(0, 1)
        weight = torch.where(offered >= 0, prepared.weight[offered.clamp_min(0)], 0.0)
        z_map, legal = self.maps(state, prepared, item, weight.repeat_interleave(pallets, 0))
        light = state.weight[:, :, None] + weight[:, None] <= self.pallet.weight * (1 + 1e-6)  # (R, M, K)
        open_ = (light & (state.number >= 0)[..., None]).flatten(0, 1)
        legal = legal & open_[..., None, None, None]
        action = self._action(heightmap, prepared, item, z_map, legal)
        fits = self.kernels.any_legal(legal).view(rows, pallets)
        placed = self._placement(prepared, item, action, z_map)
        after = self.kernels.place(heightmap, placed, prepared.catalogue, self.bin.dropped)
        rise = (after - heightmap).sum((1, 2)).double() * self.bin.cell_area
        hollow = rise - prepared.catalogue.volume[placed.item_id.clamp_min(0)]
        hollow = torch.where(fits, hollow.view(rows, pallets), torch.inf)
        slot = hollow.argmin(1)
        some = fits.any(1)
        # Nothing fits: a new pallet, beside those that are open, or in place of the fullest of them.
        fullest = torch.where(state.number < 0, torch.inf, state.volume).argmax(1)
        slot = torch.where(some, slot, fullest)
        at = torch.arange(rows, device=self.device, dtype=torch.int64) * pallets + slot
        each = action[at] // legal[0, 0].numel()
        waiting = (row >= 0) & (prepared.first[row.clamp_min(0)] >= 0)
        each = torch.where(some, each, waiting.byte().argmax(1))
        chosen = offered.gather(1, each[:, None])[:, 0]
        fresh = ~some & waiting.any(1)
        number = torch.where(fresh, state.opened, state.number.gather(1, slot[:, None])[:, 0])
        begun = self._begun(prepared, row.gather(1, each[:, None])[:, 0])
        turn, x, y, z = (torch.where(some, now[at], then) for now, then in zip(placed[1:], begun[1:], strict=True))
        box = torch.where(some | fresh, chosen, -1)
        return Choice(box, each, slot, number, fresh, turn, x, y, z - self.pallet.deck)

    def place(self, state: Pallets, prepared: PreparedBoxes, choice: Choice, weight: Tensor | None = None) -> Pallets:
        """The state after a choice of each row; the boxes have other weights (R,) than in `prepared` if given."""
        there, pallets, box = choice.box >= 0, self.open_pallets, choice.box.clamp_min(0)
        slots = torch.arange(pallets, device=self.device, dtype=torch.int64) == choice.slot[:, None]  # (R, M)
        fresh = slots & choice.fresh[:, None]
        state = self.clear(state, fresh)
        item = torch.where(there, prepared.row[box], -1)
        items = torch.where(slots, item[:, None], -1).flatten()
        each = choice.turn, choice.x, choice.y, choice.z + self.pallet.deck
        placed = Placement(items, *(number.repeat_interleave(pallets) for number in each))
        heightmap, bears = state.heightmap.flatten(0, 1), state.bears
        if self.bearing.numel():
            bears = self._bearing_after(heightmap, bears.flatten(0, 1), placed, prepared)
        after = self.kernels.place(heightmap, placed, prepared.catalogue, self.bin.dropped)
        put = slots & there[:, None]
        weight, volume = (
            prepared.weight[box] if weight is None else weight,
            prepared.catalogue.volume[item.clamp_min(0)],
        )
        if state.top.numel():
            kilograms = (each.repeat_interleave(pallets) for each in (weight, prepared.max_load[box]))
            loads = state.loads.add(*self._cells_below(heightmap, placed, prepared), *kilograms)
            shape = state.number.shape
            top, below, left, boxes = (each.unflatten(0, shape) for each in loads)
            state = state._replace(top=top, below=below, left=left, boxes=boxes)
        return state._replace(
            heightmap=after.view(state.heightmap.shape),
            number=torch.where(fresh, choice.number[:, None], state.number),
            weight=state.weight + torch.where(put, weight[:, None], 0.0),
            volume=state.volume + torch.where(put, volume[:, None], 0.0),
            opened=state.opened + choice.fresh,
            bears=bears.view(state.bears.shape),
        )

    def lay(self, state: Pallets, prepared: PreparedBoxes, lying: RestingBox) -> Pallets:
        """The state of one row and pallet after its box lies anywhere, on whole cells or between them."""
        box = torch.zeros(1, dtype=torch.int64, device=self.device)
        heights, level = state.heightmap[0, 0], lying.level + self.pallet.deck
        # What is higher than the base reaches into the cells from beside the box, and carries nothing of it.
        carries = lying.region & (heights <= level + self.bin.tolerance)
        touches = carries & lying.touching
        owned = lying.reached & (heights <= lying.top + self.pallet.deck)
        bears = state.bears
        if self.bearing.numel():
            bears = torch.where(owned, False, bears[0, 0])
            if bool(touches.any()):
                held = self._held(heights, state.bears[0, 0] & touches, lying.touching, level)
                bears = torch.where(lying.touching & owned, held, bears)
            bears = bears[None, None]
        if state.top.numel():
            touched = carries & (heights >= level - self.bin.contact_tolerance)
            loads = state.loads.add(touched[None], owned[None], prepared.weight, prepared.max_load)
            top, below, left, boxes = (each[None] for each in loads)
            state = state._replace(top=top, below=below, left=left, boxes=boxes)
        after = torch.where(owned, lying.top + self.pallet.deck, heights)
        return state._replace(
            heightmap=after[None, None],
            weight=state.weight + prepared.weight,
            volume=state.volume + prepared.catalogue.volume[prepared.row[box]],
            bears=bears,
        )

    def _held(self, heights: Tensor, bears: Tensor, region: Tensor, level: float) -> Tensor:
        """Mask (X, Y) of the cells that bear load once a box lies on some cells (X, Y), at a height in metres.

        Inside the bounds of these cells; contacts are those that bear load already.
        """
        along_x, along_y = region.any(1).nonzero()[:, 0], region.any(0).nonzero()[:, 0]
        first = int(along_x[0]), int(along_y[0])
        extent = int(along_x[-1]) + 1 - first[0], int(along_y[-1]) + 1 - first[1]
        sides = torch.tensor([[[*extent, 1.0]]], dtype=torch.float64, device="cpu")
        bounds = Catalogue.of_boxes(sides, torch.ones(1, dtype=torch.float64, device="cpu")).to(self.device)
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        z = torch.full((1,), level, dtype=torch.float32, device=self.device)
        placed = Placement(zero, zero, zero + first[0], zero + first[1], z)
        return self.kernels.bear(heights[None], bears[None], placed, bounds, self.bin)[0]

    def _cells_below(self, heightmap: Tensor, placed: Placement, prepared: PreparedBoxes) -> tuple[Tensor, Tensor]:
        """Masks (N, X, Y) of the cells that placed boxes touch, and of all that they cover."""
        covered = self._covered(placed, prepared.catalogue)
        return covered & (heightmap >= (placed.z - self.bin.contact_tolerance)[:, None, None]), covered

    def _covered(self, placed: Placement, catalogue: Catalogue) -> Tensor:
        """Mask (N, X, Y) of the cells of placed boxes."""
        extent = catalogue.extent[placed.item_id.clamp_min(0), placed.orientation]  # (N, 2)
        inside = []
        for first, along, cells in zip((placed.x, placed.y), extent.unbind(1), self.bin.cells, strict=True):
            at = torch.arange(cells, device=self.device, dtype=torch.int64)
            inside.append((at >= first[:, None]) & (at < (first + along)[:, None]))
        return inside[0][:, :, None] & inside[1][:, None] & (placed.item_id >= 0)[:, None, None]

    def corner(self, choice: Choice, prepared: PreparedBoxes) -> tuple[Tensor, Tensor]:
        """Lower corners of the boxes themselves, metres from the pallet's own, and their sides as turned; (R, 3) each.

        A box lies in the middle of the cells that it takes.
        """
        sizes = prepared.boxes.sizes.to(self.device)[choice.box.clamp_min(0)]
        sides = torch.einsum("rij,rj->ri", self.rotations.to(self.device)[choice.turn], sizes)
        extent = prepared.catalogue.extent[prepared.row[choice.box.clamp_min(0)], choice.turn]
        first = torch.stack([choice.x, choice.y], 1).double() + extent / 2
        origin = torch.tensor(self.pallet.origin, dtype=torch.float64, device=self.device)
        at = origin + first * self.pallet.cell - sides[:, :2] / 2
        return torch.cat([at, choice.z.double()[:, None]], 1), sides

    # -- maps and policies ------------------------------------------------------------------------------------------

    def maps(self, state: Pallets, prepared: PreparedBoxes, item: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Rest heights and legality, but for the most weight of a pallet, (N, K, O, Gx, Gy) each; N pallets in all.

        Of rows (N, K) int64 of the catalogue, −1 for none, and their kilograms (N, K) float32; those of which it is not
        known, 0, go on no box of limited load.
        """
        heightmap = state.heightmap.flatten(0, 1)
        bears = state.bears.flatten(0, 1)
        if prepared.soles.is_whole or not self.bin.rule.tracks_bearing:
            z_map, legal = self.kernels.maps(Pile(heightmap, bears), item, prepared.catalogue, self.bin)
        else:
            z_map, legal = self.kernels.drop_map(heightmap, item, prepared.catalogue, self.bin.dropped)
            legal = self._upheld(heightmap, bears, z_map, legal, item, prepared)
        if state.top.numel():
            room = state.loads.room()[:, None]
            weak = room < torch.where(weight > 0, weight * (1 - 1e-6), torch.inf)[..., None, None]  # (N, K, X, Y)
            heights = torch.where(room <= 0, self.bin.size[2], heightmap[:, None])  # nothing fits above them
            weak_heights = torch.where(weak, heights, 0.0).flatten(0, 1)
            loose = self.bin.without_rule
            at = self.kernels.drop_map(weak_heights, item.reshape(-1, 1), prepared.catalogue, loose)[0].view(
                z_map.shape
            )
            legal = legal & ((at <= 0) | (at < z_map - self.bin.contact_tolerance))
        if self.turns == "axis":
            legal = legal & prepared.turns[item.clamp_min(0)][..., None, None]
        if self.pallet.deck:
            legal = legal & (z_map >= self.pallet.deck - self.bin.tolerance)  # beside the pallet there is no floor
        return z_map, legal

    def _upheld(
        self, heightmap: Tensor, bears: Tensor, z_map: Tensor, legal: Tensor, item: Tensor, prepared: PreparedBoxes
    ) -> Tensor:
        """Legal placements (N, K, O, Gx, Gy) of which the touched cells hold the box."""
        soles = prepared.soles
        row = item.clamp_min(0)
        # The kernels judge a sole at its own first cell, so that maps are moved there, and the verdict is moved back.
        first_x, first_y = soles.first_x[row], soles.first_y[row]
        at = (first_x[..., :, None] * self.bin.cells[1] + first_y[..., None, :]).flatten(-2)  # (N, K, O, Gx·Gy)
        shape = (*legal.shape[:3], self.bin.cells[0] * self.bin.cells[1])
        # Placements that do not fit are clamped to the last one that does, so that a legal one decides.
        none = torch.full(shape, torch.inf, dtype=z_map.dtype, device=self.device)
        z_if_legal = torch.where(legal, z_map, torch.inf).flatten(-2)
        z_of_soles = none.scatter_reduce(-1, at, z_if_legal, "amin")
        legal_of_soles = z_of_soles < torch.inf
        every = (*legal.shape[:3], *self.bin.cells)
        z_of_soles = z_of_soles.clamp_max(self.bin.size[2]).view(every)
        legal_of_soles = legal_of_soles.view(every)
        held = self.kernels.upheld(
            heightmap, bears, z_of_soles, legal_of_soles, item, soles.catalogue, self.bin.at_every_cell
        )
        held = held.flatten(-2).gather(-1, at).view(legal.shape)
        on_floor = z_map <= self.pallet.deck + self.bin.tolerance
        return legal & held & (on_floor | ~soles.is_small[row][..., None, None])

    def _bearing_after(self, heightmap: Tensor, bears: Tensor, placed: Placement, prepared: PreparedBoxes) -> Tensor:
        """Mask (N, X, Y) of the cells that bear load after placements (N,) of boxes."""
        soles = prepared.soles
        if soles.is_whole:
            return self.kernels.bear(heightmap, bears, placed, prepared.catalogue, self.bin)
        row = placed.item_id.clamp_min(0)
        rim = soles.rim[row, placed.orientation]
        touching = placed._replace(x=placed.x + rim[:, 0], y=placed.y + rim[:, 1])
        after = self.kernels.bear(heightmap, bears, touching, soles.catalogue, self.bin)
        covered = self._covered(placed, prepared.catalogue)
        touched = self._covered(touching, soles.catalogue) & ~soles.is_small[row, placed.orientation][:, None, None]
        return after & (touched | ~covered)

    def _action(self, heightmap: Tensor, prepared: PreparedBoxes, item: Tensor, z_map: Tensor, legal: Tensor) -> Tensor:
        """Actions (N,) that the policy takes; 0 where nothing is legal."""
        visible = item.shape[1]
        seen = {"box_heightmap": heightmap, "item_id": item, "z_map": z_map, "legal_mask": legal}
        seen |= {"action_mask": legal.flatten(1), "item_size": self._sizes(prepared.catalogue, item)}
        observed = TensorDict(seen, batch_size=[len(item)], device=self.device)
        env: Any = SimpleNamespace(
            catalogue=prepared.catalogue,
            bin=self.bin.dropped,
            kernels=self.kernels,
            device=self.device,
            action_shape=(visible, *legal.shape[2:]),
            include=("z_map",),
        )
        module = self.learned or BASELINES[self.policy][1](env)
        if visible > 1 and (self.learned is None or isinstance(self.learned.tables, LinearPlacementValues)):
            module = VolumeSorted(env, module)  # their scores compare places of one box
        chosen: Tensor = module(observed).get("action")
        return chosen

    def _sizes(self, catalogue: Catalogue, item: Tensor) -> Tensor:
        """Sides in each orientation, metres, and volume of items (N, K), as `PackingEnv` shows them."""
        row = item.clamp_min(0)
        sides = torch.cat([catalogue.extent * self.pallet.cell, catalogue.height[..., None]], -1)[row]
        sizes = torch.cat([sides, catalogue.volume[row][..., None, None].expand(*sides.shape[:-1], 1)], -1)
        return torch.where((item >= 0)[..., None, None], sizes, 0.0).float()

    def _placement(self, prepared: PreparedBoxes, item: Tensor, action: Tensor, z_map: Tensor) -> Placement:
        """Placements (N,) of actions among visible items (N, K)."""
        turns, (grid_x, grid_y) = prepared.catalogue.num_orientations, self.bin.grid
        place, rest = action % (grid_x * grid_y), action // (grid_x * grid_y)
        row = item.gather(1, (rest // turns)[:, None])[:, 0]
        z = z_map.flatten(1).gather(1, action[:, None])[:, 0]
        return placed_at(row, rest % turns, place, z, prepared.catalogue, self.bin)

    def _begun(self, prepared: PreparedBoxes, row: Tensor) -> Placement:
        """First placements (N,) of catalogue rows (N,) on an empty pallet."""
        action = prepared.first[row.clamp_min(0)].clamp_min(0)
        per_turn = self.bin.grid[0] * self.bin.grid[1]
        z = torch.full(row.shape, self.pallet.deck, dtype=torch.float32, device=self.device)
        turn, place = action // per_turn, action % per_turn
        return placed_at(row, turn, place, z, prepared.catalogue, self.bin)


def _kernels(device: torch.device) -> Kernels:
    """The fastest kernels, with the growth under boxes by sums over all cells: pallets have large footprints."""
    return get_kernels("auto", device)._replace(pile_growth=get_kernels("eager", device).pile_growth)
