"""`Packer`: where the next box of each row of open pallets goes.

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
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.device import get_device
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.kernels import Kernels, get_kernels
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement
from torchrl_gpu.palletizing.loads import Loads
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.prepared_boxes import ROUNDING, Boxes, PreparedBoxes, Soles
from torchrl_gpu.policies.packing.heuristics import (
    BASELINES,
    DeepestBottomLeft,
    FirstFit,
    HeightmapMinimization,
    LeastSurfaceArea,
    VolumeSorted,
)
from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
from torchrl_gpu.policies.packing.placements import PlacementHeuristic, placed_at
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments

# Heuristics that choose among all placements on a pallet, by the word for `policy`.
HEURISTICS: dict[str, type[PlacementHeuristic]] = {
    "first-fit": FirstFit,
    "dbl": DeepestBottomLeft,
    "hm": HeightmapMinimization,
    "lsah": LeastSurfaceArea,
}
# Elements of the maps of all placements that are made at once.
_CHUNK = 2**26
# Sums of weights in float32 may be this much over their limit, as a share of it.
WEIGHT_ROUNDING = 1e-6


class Pallets(NamedTuple):
    """Open pallets of R rows, M each.

    Attributes:
        heightmap: Metres, (R, M, X, Y) float32.
        number: Number of the pallet in its row, from 0, and −1 where none is open, (R, M) int64.
        weight: Kilograms, (R, M) float32.
        volume: Cubic metres of boxes, (R, M) float32.
        opened: Pallets so far, (R,) int64.
        bears: Mask of the cells that bear load, (R, M, X, Y) bool; (R, M, 0, 0) without the rule "load_bearing".
        top: See `Loads`, (R, M, X, Y) int64; (R, M, 0, 0) where no box limits the load on it.
        below: See `Loads`, (R, M, C, C) bool.
        left: See `Loads`, (R, M, C) float32.
        boxes: See `Loads`, (R, M) int64.
    """

    heightmap: Tensor
    number: Tensor
    weight: Tensor
    volume: Tensor
    opened: Tensor
    bears: Tensor
    top: Tensor
    below: Tensor
    left: Tensor
    boxes: Tensor

    def first(self, rows: int) -> Pallets:
        """The first rows, which go on while the others are done."""
        return Pallets(*(each[:rows] for each in self))

    @property
    def tracks_loads(self) -> bool:
        """Whether some box limits the load on it."""
        return bool(self.top.numel())

    @property
    def loads(self) -> Loads:
        """Loads of all pallets, N = R·M."""
        return Loads(
            top=self.top.flatten(0, 1),
            below=self.below.flatten(0, 1),
            left=self.left.flatten(0, 1),
            boxes=self.boxes.flatten(0, 1),
        )

    def replace_loads(self, loads: Loads) -> Pallets:
        """The same pallets with other loads, N = R·M."""
        shape = self.number.shape
        return self._replace(
            top=loads.top.unflatten(0, shape),
            below=loads.below.unflatten(0, shape),
            left=loads.left.unflatten(0, shape),
            boxes=loads.boxes.unflatten(0, shape),
        )


class Choice(NamedTuple):
    """One placement of each row, (R,) each.

    Attributes:
        box: Number of the box, −1 where none was offered, int64.
        offer: Its place among those offered, int64.
        slot: Which of the M pallets it goes on, int64.
        number: That pallet's number in its row, int64.
        fresh: Whether it is a new pallet, which stands where `slot` was, bool.
        turn: Orientation, int64.
        x, y: First cell, int64.
        z: Base above the pallet, metres, float32.
    """

    box: Tensor
    offer: Tensor
    slot: Tensor
    number: Tensor
    fresh: Tensor
    turn: Tensor
    x: Tensor
    y: Tensor
    z: Tensor


@dataclass(frozen=True)
class RestingBox:
    """A box that lies where it was measured, not on whole cells.

    Attributes:
        region: Mask of the cells that it covers to the half or more, its share of the gap included, (X, Y) bool.
        touching: Mask of the cells that lie wholly under it, (X, Y) bool.
        reached: Mask of all cells that it reaches into, (X, Y) bool.
        level: Height of what it lies on, metres above the pallet's top.
        top: Its own top, metres above the pallet's top.
    """

    region: Tensor
    touching: Tensor
    reached: Tensor
    level: float
    top: float


@dataclass(frozen=True)
class _Place:
    """Where a box goes, of each row or of each pallet.

    Attributes:
        turn: Orientation, int64.
        x, y: First cell, int64.
        z: Base above the zero of the heightmap, metres, float32.
    """

    turn: Tensor
    x: Tensor
    y: Tensor
    z: Tensor

    @staticmethod
    def of(placement: Placement) -> _Place:
        return _Place(placement.orientation, placement.x, placement.y, placement.z)

    def where(self, mask: Tensor, other: _Place) -> _Place:
        """This place where the mask is set, and the other elsewhere."""
        turn = torch.where(mask, self.turn, other.turn)
        x = torch.where(mask, self.x, other.x)
        y = torch.where(mask, self.y, other.y)
        z = torch.where(mask, self.z, other.z)
        return _Place(turn, x, y, z)

    def rows(self, index: Tensor) -> _Place:
        return _Place(self.turn[index], self.x[index], self.y[index], self.z[index])


@dataclass(frozen=True)
class _BestOnOpen:
    """Placement that the policy prefers on each open pallet, N = R·M.

    Attributes:
        action: Number among all places of all boxes that are offered, (N,) int64.
        placement: The same as box, turn and place, (N,).
        fits: Whether any box fits, (R, M) bool. If not, the others are of no placement.
        hollow: Room that the box would make unreachable, cubic metres, inf where none fits, (R, M) float64.
        places_of_box: Places of one box, by which actions count.
    """

    action: Tensor
    placement: Placement
    fits: Tensor
    hollow: Tensor
    places_of_box: int


@dataclass(frozen=True)
class _PalletPlaces:
    """What heuristics read of pallets, see `PackingPlaces`."""

    catalogue: Catalogue
    bin: Bin
    kernels: Kernels
    device: torch.device
    action_shape: tuple[int, ...]
    include: tuple[str, ...] = ("z_map",)


class Packer:
    """Chooses pallet, box, turn and place, and carries the choice out.

    Args:
        pallet: Of every row.
        open_pallets: M, pallets of a row that are open at a time.
        turns: "fixed", "yaw" (turned about the vertical) or "axis" (any side up). A box takes those orientations that
            leave a permitted side vertical.
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
        self.pallet = pallet
        self.device = get_device(device)
        self.open_pallets = arguments.whole("Packer", "open_pallets", open_pallets, 1, 64)
        self.turns = arguments.choice("Packer", "turns", turns, ("fixed", "yaw", "axis"))
        self.bin = pallet.bin(stability, step)
        self.kernels = _kernels(self.device)
        self.floor = pallet.floor(self.device)
        # Cells of the empty pallet that bear load: none under a rule that does not track them.
        tracked_x, tracked_y = self.bin.bearing_cells
        self.bearing = (self.floor >= pallet.deck)[:tracked_x, :tracked_y]
        self.rotations = torch.from_numpy(abs(orientation_set(self.turns, boxes=True)).round())  # (O, 3, 3)
        self.policy = policy
        self.learned: PackingPolicy | None = None
        if policy in BASELINES:
            arguments.choice("Packer", "policy", policy, HEURISTICS)
        else:
            self.learned = self._load_policy(policy)

    def _load_policy(self, name: str) -> PackingPolicy:
        # The environment gives the space of the policy. Its items are any, as the space has nothing of them.
        env = PackingEnv(
            1,
            bin_size=self.bin.size,
            resolution=self.bin.cells,
            grid_step=self.bin.step,
            items=RandomBoxes(1, 1),
            orientations=self.turns,
            stability=self.bin.dropped.stability,
            include=("z_map",),
            device=self.device,
        )
        return PackingPolicy.from_pretrained(name, self.device, space=AgentSpace.of(env))

    # -- boxes ------------------------------------------------------------------------------------------------------

    def prepare(self, boxes: Boxes, test_fit: bool = True) -> PreparedBoxes:
        """Prepare boxes for `choose`, on the packer's device.

        Args:
            boxes: As they are listed.
            test_fit: Find out which boxes fit an empty pallet, and why the others do not. This reads the device back.
                Boxes that are only placed again need no test.
        """
        # Equal boxes are judged once. Their weight tells nothing about where they fit.
        kinds = torch.cat([boxes.sizes, boxes.up, boxes.max_load[:, None], boxes.bottom_only[:, None]], 1)
        known, row = kinds.unique(dim=0, return_inverse=True)
        listed = known[:, :3]
        may_be_up = known[:, 3:6]
        turned = torch.einsum("oij,mj->moi", self.rotations, listed)  # (M, O, 3) metres
        needed = turned[..., :2] + self.pallet.gap
        extent = (needed / self.pallet.cell - ROUNDING).ceil()
        # Boxes larger than the pallet fit nowhere, however much larger they are.
        too_many = max(self.bin.cells) + 1
        extent = extent.clamp(1, too_many)
        # Heightmaps are float32, and the height is rounded as they will hold it.
        height = turned[..., 2:].float().double()
        volume = listed.prod(1)
        catalogue = Catalogue.of_boxes(torch.cat([extent, height], -1), volume)
        soles = Soles.of(turned, extent, volume, cell=self.pallet.cell, bin_=self.bin)
        # A turn is allowed where the side that it makes vertical may be.
        turns = may_be_up @ self.rotations[:, 2].T > 0.5  # (M, O)
        turns = turns.to(self.device)
        catalogue = catalogue.to(self.device)
        soles = soles.to(self.device)
        row = row.to(self.device)
        bottom_only = None
        if bool(boxes.bottom_only.any()):
            bottom_only = known[:, 7].bool().to(self.device)
        prepared = PreparedBoxes(
            boxes,
            catalogue,
            soles,
            row=row,
            turns=turns,
            # Stands for actions that are not tested.
            first=row,
            weight=_on_device(boxes.weights, self.device),
            max_load=_on_device(boxes.max_load, self.device),
            bottom_only=bottom_only,
            reasons=[],
        )
        if not test_fit:
            return prepared
        first = self._first_actions(prepared)
        may_turn = turns.any(1).cpu()
        least_height = turned.amin(1)[:, 2]
        fits = first.cpu() >= 0
        reasons = self._reasons(boxes, row.cpu(), may_turn=may_turn, least_height=least_height, fits=fits)
        return replace(prepared, first=first, reasons=reasons)

    def _first_actions(self, prepared: PreparedBoxes) -> Tensor:
        """Action of each catalogue row on an empty pallet, (M,) int64.

        It is −1 where none is legal.
        """
        room = prepared.catalogue.num_orientations * self.floor.numel()
        rows_at_once = max(1, _CHUNK // room)
        every = self._numbers(len(prepared.turns))
        found = []
        for rows in every.split(rows_at_once):
            item = rows[:, None]
            state = self.empty(len(rows), pallets=1)
            weightless = torch.zeros_like(item, dtype=torch.float32)
            z_map, legal = self.maps(state, prepared, item, weightless)
            action = self._actions(state.heightmap[:, 0], prepared, item=item, z_map=z_map, legal=legal)
            found.append(torch.where(legal.flatten(1).any(1), action, -1))
        return torch.cat(found)

    def _reasons(self, boxes: Boxes, row: Tensor, *, may_turn: Tensor, least_height: Tensor, fits: Tensor) -> list[str]:
        """Why each box (B,) cannot be placed on an empty pallet, "" where it can.

        Args:
            boxes: As they are listed.
            row: Row of each box in the catalogue, (B,) int64.
            may_turn: Whether a row may stand in some turn, (M,) bool.
            least_height: Height in the flattest turn, metres, (M,).
            fits: Whether a row fits an empty pallet, (M,) bool.
        """
        pallet = self.pallet
        length = pallet.length + 2 * pallet.overhang
        width = pallet.width + 2 * pallet.overhang
        is_heavy = (boxes.weights > pallet.weight).tolist()
        is_high = (least_height[row] > pallet.height + 1e-9).tolist()
        longest = boxes.sizes[:, :2].amax(1)
        is_long = (longest > max(length, width)).tolist()
        permitted = may_turn[row].tolist()
        reasons = []
        for i, is_placed in enumerate(fits[row].tolist()):
            if is_heavy[i]:
                reasons.append("heavier than a pallet may carry")
            elif not permitted[i]:
                reasons.append(f"may not stand as turns {self.turns} would have it")
            elif is_placed:
                reasons.append("")
            elif is_high[i]:
                reasons.append("higher than a load may be")
            elif is_long[i]:
                reasons.append("longer than the pallet")
            elif length == width:
                reasons.append("larger than the pallet")
            else:
                reasons.append("larger than the pallet in every turn")
        return reasons

    # -- states of pallets ------------------------------------------------------------------------------------------

    def empty(self, rows: int, pallets: int | None = None) -> Pallets:
        """State of rows before their first pallet is opened."""
        shape = (rows, self.open_pallets if pallets is None else pallets)
        zero = torch.zeros(shape, dtype=torch.float32, device=self.device)
        none = torch.full(shape, -1, dtype=torch.int64, device=self.device)
        heightmap = self.floor.expand(*shape, -1, -1).clone()
        bears = self.bearing.expand(*shape, -1, -1).clone()
        state = Pallets(
            heightmap,
            number=none,
            weight=zero,
            volume=zero.clone(),
            opened=torch.zeros(rows, dtype=torch.int64, device=self.device),
            bears=bears,
            # These four are of another shape: `limit_loads` below puts the tables of loads there.
            top=none,
            below=none,
            left=none,
            boxes=none,
        )
        return self.limit_loads(state, 0)

    def begin(self, prepared: PreparedBoxes, orders: Sequence[np.ndarray]) -> Pallets:
        """State of rows before the first box (…) int64 of each.

        It limits the loads on boxes where some box does.
        """
        state = self.empty(len(orders))
        numbers = [torch.from_numpy(order) for order in orders]
        max_load = prepared.boxes.max_load
        if not any(bool(max_load[boxes].isfinite().any()) for boxes in numbers):
            return state
        # The rows share one table of loads, so that it must hold the fullest pallet of any row: also of a row that
        # limits nothing. Boxes do not overlap, but for the tolerances by which cells and heights are compared.
        length, width, height = self.bin.size
        height += 2 * self.bin.tolerance
        room = length * width * height * (1 + 1e-5)
        most = 1
        for boxes in numbers:
            # No more boxes lie on a pallet than have room there if all were as small as the smallest.
            if len(boxes):
                least = float(prepared.boxes.sizes[boxes].prod(1).min())
                most = max(most, min(len(boxes), math.ceil(room / least)))
        return self.limit_loads(state, most)

    def limit_loads(self, state: Pallets, most: int) -> Pallets:
        """Limit the loads on boxes from now on.

        Boxes that lie there already count as the floor.

        Args:
            state: Of all pallets.
            most: Largest number of boxes on a pallet, for which there is room in the tables. 0 limits no load.
        """
        shape = state.number.shape
        cells = self.bin.cells if most else (0, 0)
        device = self.device
        top = torch.full((*shape, *cells), -1, dtype=torch.int64, device=device)
        below = torch.full((*shape, most, most), False, dtype=torch.bool, device=device)
        left = torch.full((*shape, most), math.inf, dtype=torch.float32, device=device)
        boxes = torch.full(shape, 0, dtype=torch.int64, device=device)
        return state._replace(top=top, below=below, left=left, boxes=boxes)

    def set_heightmap(self, state: Pallets, row: int, slot: int, heightmap: Tensor) -> Pallets:
        """Replace the heightmap of one pallet by a measured one.

        That is (X, Y), metres above the pallet's top.
        """
        measured = arguments.tensor("Packer", "heightmap", heightmap, torch.float32, self.bin.cells)
        maps = state.heightmap.clone()
        heights = measured.to(self.device) + self.pallet.deck
        maps[row, slot] = torch.maximum(heights, self.floor)
        return state._replace(heightmap=maps)

    def clear(self, state: Pallets, chosen: Tensor) -> Pallets:
        """Replace the chosen pallets (R, M) by empty ones, whose numbers stay."""
        maps = chosen[..., None, None]
        heightmap = torch.where(maps, self.floor, state.heightmap)
        weight = torch.where(chosen, 0.0, state.weight)
        volume = torch.where(chosen, 0.0, state.volume)
        bears = torch.where(maps, self.bearing, state.bears)
        # Rows of `below` need not be cleared: a box writes its own before any other reads it.
        top = torch.where(maps, -1, state.top)
        left = torch.where(chosen[..., None], math.inf, state.left)
        boxes = torch.where(chosen, 0, state.boxes)
        return state._replace(
            heightmap=heightmap, weight=weight, volume=volume, bears=bears, top=top, left=left, boxes=boxes
        )

    # -- a step -----------------------------------------------------------------------------------------------------

    def choose(self, state: Pallets, prepared: PreparedBoxes, offered: Tensor) -> Choice:
        """Choose the best placement of each row among the boxes that are offered.

        Args:
            state: Of R rows.
            prepared: Boxes, whose numbers `offered` has.
            offered: (R, K) int64, −1 for none.
        """
        row = torch.where(offered >= 0, prepared.row[offered.clamp_min(0)], -1)
        best = self._best_on_open(state, prepared, offered, row)
        some_fits = best.fits.any(1)
        # Of the pallets where a box fits the one that it leaves the least hollow on. Where none fits a new pallet is
        # opened, next to those that are open, or in place of the fullest of them.
        slot = best.hollow.argmin(1)
        fullest = torch.where(state.number < 0, torch.inf, state.volume).argmax(1)
        slot = torch.where(some_fits, slot, fullest)
        pallet = self._numbers(len(offered)) * self.open_pallets + slot
        # The action is a number among all places of all boxes that are offered. On a new pallet the first box goes that
        # fits one.
        offer = best.action[pallet] // best.places_of_box
        fits_empty = (row >= 0) & (prepared.first[row.clamp_min(0)] >= 0)
        offer = torch.where(some_fits, offer, fits_empty.byte().argmax(1))
        fresh = ~some_fits & fits_empty.any(1)
        box = torch.where(some_fits | fresh, _pick(offered, offer), -1)
        number = torch.where(fresh, state.opened, _pick(state.number, slot))
        first = self._first_placement(prepared, _pick(row, offer))
        place = _Place.of(best.placement).rows(pallet).where(some_fits, _Place.of(first))
        z = place.z - self.pallet.deck
        return Choice(box, offer, slot, number, fresh, place.turn, place.x, place.y, z)

    def _best_on_open(self, state: Pallets, prepared: PreparedBoxes, offered: Tensor, row: Tensor) -> _BestOnOpen:
        """Find the placement that the policy prefers on each open pallet.

        `row` (R, K) int64 are the catalogue rows of the boxes that are offered.
        """
        rows = len(offered)
        pallets = self.open_pallets
        item = row.repeat_interleave(pallets, 0)  # (N, K)
        heightmap = state.heightmap.flatten(0, 1)
        weight = torch.where(offered >= 0, prepared.weight[offered.clamp_min(0)], 0.0)
        z_map, legal = self.maps(state, prepared, item, weight.repeat_interleave(pallets, 0))
        loaded = state.weight[:, :, None] + weight[:, None]  # (R, M, K)
        is_light = loaded <= self.pallet.weight * (1 + WEIGHT_ROUNDING)
        may_take = (is_light & (state.number >= 0)[..., None]).flatten(0, 1)  # (N, K)
        legal = legal & may_take[..., None, None, None]
        action = self._actions(heightmap, prepared, item=item, z_map=z_map, legal=legal)
        fits = self.kernels.any_legal(legal).view(rows, pallets)
        placement = self._placement(prepared, item, action, z_map)
        hollow = self._hollow(heightmap, placement, prepared.catalogue)
        hollow = torch.where(fits, hollow.view(rows, pallets), torch.inf)
        return _BestOnOpen(action, placement, fits, hollow, places_of_box=legal[0, 0].numel())

    def _hollow(self, heightmap: Tensor, placement: Placement, catalogue: Catalogue) -> Tensor:
        """Room that boxes make unreachable below them, cubic metres, (N,) float64."""
        after = self.kernels.place(heightmap, placement, catalogue, self.bin.dropped)
        # The room that the heightmap rises by is the box and what it covers.
        rise = (after - heightmap).sum((1, 2)).double() * self.bin.cell_area
        return rise - catalogue.volume[placement.item_id.clamp_min(0)]

    def place(self, state: Pallets, prepared: PreparedBoxes, choice: Choice, weight: Tensor | None = None) -> Pallets:
        """Carry out a choice of each row.

        The boxes have other weights (R,) than in `prepared` if `weight` is given.
        """
        pallets = self.open_pallets
        there = choice.box >= 0
        box = choice.box.clamp_min(0)
        is_slot = self._numbers(pallets) == choice.slot[:, None]  # (R, M)
        fresh = is_slot & choice.fresh[:, None]
        state = self.clear(state, fresh)
        row = torch.where(there, prepared.row[box], -1)
        z = choice.z + self.pallet.deck
        item = torch.where(is_slot, row[:, None], -1).flatten()
        turn = choice.turn.repeat_interleave(pallets)
        x = choice.x.repeat_interleave(pallets)
        y = choice.y.repeat_interleave(pallets)
        placement = Placement(item, turn, x, y, z.repeat_interleave(pallets))
        heightmap = state.heightmap.flatten(0, 1)
        bears = state.bears
        if self.bearing.numel():
            bears = self._bearing_after(heightmap, bears.flatten(0, 1), placement, prepared)
        after = self.kernels.place(heightmap, placement, prepared.catalogue, self.bin.dropped)
        takes = is_slot & there[:, None]
        # A variant of a search stands for many boxes, whose weights differ.
        if weight is None:
            weight = prepared.weight[box]
        volume = prepared.catalogue.volume[row.clamp_min(0)]
        if state.tracks_loads:
            touched, covered = self._cells_below(heightmap, placement, prepared)
            weights = weight.repeat_interleave(pallets)
            max_loads = prepared.max_load[box].repeat_interleave(pallets)
            state = state.replace_loads(state.loads.add(touched, covered, weights, max_loads))
        number = torch.where(fresh, choice.number[:, None], state.number)
        kilograms = state.weight + torch.where(takes, weight[:, None], 0.0)
        cubic_metres = state.volume + torch.where(takes, volume[:, None], 0.0)
        return state._replace(
            heightmap=after.view(state.heightmap.shape),
            number=number,
            weight=kilograms,
            volume=cubic_metres,
            opened=state.opened + choice.fresh,
            bears=bears.view(state.bears.shape),
        )

    def lay(self, state: Pallets, prepared: PreparedBoxes, resting: RestingBox) -> Pallets:
        """Lay the box of one row and pallet anywhere, on whole cells or between them."""
        box = torch.zeros(1, dtype=torch.int64, device=self.device)
        heights = state.heightmap[0, 0]
        level = resting.level + self.pallet.deck
        top = resting.top + self.pallet.deck
        # What is higher than the base is a neighbour that reaches into these cells, and carries nothing of the box.
        carries = resting.region & (heights <= level + self.bin.tolerance)
        touches = carries & resting.touching
        owned = resting.reached & (heights <= top)
        bears = state.bears
        if self.bearing.numel():
            bears = torch.where(owned, False, bears[0, 0])
            if bool(touches.any()):
                touched = state.bears[0, 0] & touches
                # A measured height is off by millimetres: what is that near to the box counts as level.
                is_near = heights >= level - self.bin.contact_tolerance
                held = self._held(torch.where(is_near, level, heights), touched, resting.touching, level)
                bears = torch.where(resting.touching & owned, held, bears)
            bears = bears[None, None]
        if state.tracks_loads:
            touched = carries & (heights >= level - self.bin.contact_tolerance)
            loads = state.loads.add(touched[None], owned[None], prepared.weight, prepared.max_load)
            state = state.replace_loads(loads)
        after = torch.where(owned, top, heights)
        weight = state.weight + prepared.weight
        volume = state.volume + prepared.catalogue.volume[prepared.row[box]]
        return state._replace(heightmap=after[None, None], weight=weight, volume=volume, bears=bears)

    def _held(self, heights: Tensor, bears: Tensor, region: Tensor, level: float) -> Tensor:
        """Mask of the cells that bear load once a box lies there, (X, Y) bool.

        It is right inside the bounds of these cells alone. Contacts are the cells that bear load already.

        Args:
            heights: Of the pallet, metres, (X, Y).
            bears: Mask of the cells that bear load and that the box touches, (X, Y) bool.
            region: Mask of the cells that the box lies on, (X, Y) bool.
            level: Base of the box, metres.
        """
        along_x = region.any(1).nonzero()[:, 0]
        along_y = region.any(0).nonzero()[:, 0]
        first_x = int(along_x[0])
        first_y = int(along_y[0])
        extent_x = int(along_x[-1]) + 1 - first_x
        extent_y = int(along_y[-1]) + 1 - first_y
        # The kernels know boxes of a catalogue. This one is as large as the bounds, and of any height and volume.
        sides = torch.tensor([[[extent_x, extent_y, 1.0]]], dtype=torch.float64, device="cpu")
        volume = torch.ones(1, dtype=torch.float64, device="cpu")
        bounds = Catalogue.of_boxes(sides, volume).to(self.device)
        zero = torch.zeros(1, dtype=torch.int64, device=self.device)
        z = torch.full((1,), level, dtype=torch.float32, device=self.device)
        placement = Placement(zero, zero, zero + first_x, zero + first_y, z)
        return self.kernels.bear(heights[None], bears[None], placement, bounds, self.bin)[0]

    def _cells_below(self, heightmap: Tensor, placement: Placement, prepared: PreparedBoxes) -> tuple[Tensor, Tensor]:
        """Masks (N, X, Y) of cells that boxes touch, and of all that they cover."""
        covered = self._covered(placement, prepared.catalogue)
        lowest = placement.z - self.bin.contact_tolerance
        touched = covered & (heightmap >= lowest[:, None, None])
        return touched, covered

    def _covered(self, placement: Placement, catalogue: Catalogue) -> Tensor:
        """Mask (N, X, Y) of the cells of placed boxes."""
        item = placement.item_id
        extent = catalogue.extent[item.clamp_min(0), placement.orientation]
        extent_x, extent_y = extent.unbind(1)
        cells_x, cells_y = self.bin.cells
        inside_x = self._inside(placement.x, extent_x, cells_x)
        inside_y = self._inside(placement.y, extent_y, cells_y)
        inside = inside_x[:, :, None] & inside_y[:, None]
        return inside & (item >= 0)[:, None, None]

    def _inside(self, first: Tensor, extent: Tensor, cells: int) -> Tensor:
        """Mask (N, cells) of the cells along one axis from the first one (N,) on."""
        number = self._numbers(cells)
        end = first + extent
        return (number >= first[:, None]) & (number < end[:, None])

    def _numbers(self, count: int) -> Tensor:
        """Whole numbers from 0 on, (count,) int64."""
        return torch.arange(count, device=self.device, dtype=torch.int64)

    def corner(self, choice: Choice, prepared: PreparedBoxes) -> tuple[Tensor, Tensor]:
        """Lower corners of the boxes, and their sides as turned, metres, (R, 3) each.

        Corners are measured from the pallet's own. A box lies in the middle of the cells that it takes.
        """
        box = choice.box.clamp_min(0)
        sizes = prepared.boxes.sizes.to(self.device)[box]
        rotation = self.rotations.to(self.device)[choice.turn]
        sides = torch.einsum("rij,rj->ri", rotation, sizes)
        extent = prepared.catalogue.extent[prepared.row[box], choice.turn]
        first = torch.stack([choice.x, choice.y], 1).double()
        middle = first + extent / 2
        origin = torch.tensor(self.pallet.origin, dtype=torch.float64, device=self.device)
        middle = origin + middle * self.pallet.cell
        corner = middle - sides[:, :2] / 2
        base = choice.z.double()
        return torch.cat([corner, base[:, None]], 1), sides

    # -- maps and policies ------------------------------------------------------------------------------------------

    def maps(self, state: Pallets, prepared: PreparedBoxes, item: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Rest heights and legality of items on N pallets, (N, K, O, Gx, Gy) each.

        Legality leaves the most weight of a pallet out.

        Args:
            state: N pallets in all.
            prepared: Boxes. The items are rows of their catalogue.
            item: Rows, −1 for none, (N, K) int64.
            weight: Kilograms, (N, K) float32. An item of unknown weight, 0, may not go on a box of limited load.
        """
        heightmap = state.heightmap.flatten(0, 1)
        bears = state.bears.flatten(0, 1)
        catalogue = prepared.catalogue
        if prepared.soles.is_whole or not self.bin.rule.tracks_bearing:
            pile = Pile(heightmap, bears)
            z_map, legal = self.kernels.maps(pile, item, catalogue, self.bin)
        else:
            z_map, legal = self.kernels.drop_map(heightmap, item, catalogue, self.bin.dropped)
            legal = self._upheld(heightmap, bears, prepared, item=item, z_map=z_map, legal=legal)
        if state.tracks_loads:
            within = self._is_within_loads(
                state.loads, catalogue, heightmap=heightmap, z_map=z_map, item=item, weight=weight
            )
            legal = legal & within
        if self.turns == "axis":
            legal = legal & prepared.turns[item.clamp_min(0)][..., None, None]
        if prepared.bottom_only is not None:
            stays_down = prepared.bottom_only[item.clamp_min(0)][..., None, None, None]
            legal = legal & (~stays_down | (z_map <= self.pallet.deck + self.bin.tolerance))
        if self.pallet.deck:
            # Around the pallet there is no floor.
            legal = legal & (z_map >= self.pallet.deck - self.bin.tolerance)
        return z_map, legal

    def _is_within_loads(
        self, loads: Loads, catalogue: Catalogue, *, heightmap: Tensor, z_map: Tensor, item: Tensor, weight: Tensor
    ) -> Tensor:
        """Whether placements (N, K, O, Gx, Gy) load no box with more than it may bear.

        Each footprint would have to look for weak boxes among those that it touches. The drop kernel does so at once:
        on a map of the weak cells alone, every other cell on the floor, an item comes to rest on the highest weak cell
        below it. It may go where that is lower than its base, as it then touches no weak box.
        """
        room = loads.room()[:, None]
        needed = torch.where(weight > 0, weight * (1 - WEIGHT_ROUNDING), torch.inf)
        is_weak = room < needed[..., None, None]  # (N, K, X, Y)
        # Nothing fits above boxes on which nothing may lie, so that they count as high as the bin.
        heights = torch.where(room <= 0, self.bin.size[2], heightmap[:, None])
        weak_heights = torch.where(is_weak, heights, 0.0).flatten(0, 1)
        # Every item has a map of weak cells of its own.
        items = item.reshape(-1, 1)
        highest_weak, _ = self.kernels.drop_map(weak_heights, items, catalogue, self.bin.without_rule)
        highest_weak = highest_weak.view(z_map.shape)
        return (highest_weak <= 0) | (highest_weak < z_map - self.bin.contact_tolerance)

    def _upheld(
        self, heightmap: Tensor, bears: Tensor, prepared: PreparedBoxes, *, item: Tensor, z_map: Tensor, legal: Tensor
    ) -> Tensor:
        """Legal placements (N, K, O, Gx, Gy) whose touched cells hold the box.

        The kernels judge a sole at its own first cell, which lies a rim behind the first cell of its box. So maps are
        moved there, and the verdict is moved back.
        """
        soles = prepared.soles
        row = item.clamp_min(0)
        cells_x, cells_y = self.bin.cells
        first_x = soles.first_x[row]
        first_y = soles.first_y[row]
        at = first_x[..., :, None] * cells_y + first_y[..., None, :]
        at = at.flatten(-2)  # (N, K, O, Gx·Gy)
        # Placements that do not fit are clamped to the last one that does, so that a legal one decides.
        shape = (*legal.shape[:3], cells_x * cells_y)
        none = torch.full(shape, torch.inf, dtype=z_map.dtype, device=self.device)
        z_if_legal = torch.where(legal, z_map, torch.inf).flatten(-2)
        z_of_soles = none.scatter_reduce(-1, at, z_if_legal, "amin")
        legal_of_soles = z_of_soles < torch.inf
        every = (*legal.shape[:3], cells_x, cells_y)
        z_of_soles = z_of_soles.clamp_max(self.bin.size[2]).view(every)
        legal_of_soles = legal_of_soles.view(every)
        held = self.kernels.upheld(
            heightmap, bears, z_of_soles, legal_of_soles, item, soles.catalogue, self.bin.at_every_cell
        )
        held = held.flatten(-2).gather(-1, at).view(legal.shape)
        on_floor = z_map <= self.pallet.deck + self.bin.tolerance
        is_large = ~soles.is_small[row]
        return legal & held & (on_floor | is_large[..., None, None])

    def _bearing_after(self, heightmap: Tensor, bears: Tensor, placement: Placement, prepared: PreparedBoxes) -> Tensor:
        """Mask (N, X, Y) of the cells that bear load after placements (N,) of boxes."""
        soles = prepared.soles
        if soles.is_whole:
            return self.kernels.bear(heightmap, bears, placement, prepared.catalogue, self.bin)
        row = placement.item_id.clamp_min(0)
        rim = soles.rim[row, placement.orientation]
        first_x = placement.x + rim[:, 0]
        first_y = placement.y + rim[:, 1]
        of_sole = placement._replace(x=first_x, y=first_y)
        after = self.kernels.bear(heightmap, bears, of_sole, soles.catalogue, self.bin)
        covered = self._covered(placement, prepared.catalogue)
        is_small = soles.is_small[row, placement.orientation]
        touched = self._covered(of_sole, soles.catalogue) & ~is_small[:, None, None]
        return after & (touched | ~covered)

    def _actions(
        self, heightmap: Tensor, prepared: PreparedBoxes, *, item: Tensor, z_map: Tensor, legal: Tensor
    ) -> Tensor:
        """Actions (N,) that the policy takes, 0 where nothing is legal."""
        seen = {
            "box_heightmap": heightmap,
            "item_id": item,
            "z_map": z_map,
            "legal_mask": legal,
            "action_mask": legal.flatten(1),
            "item_size": self._sizes(prepared.catalogue, item),
        }
        observed = TensorDict(seen, batch_size=[len(item)], device=self.device)
        visible = item.shape[1]
        policy = self._policy(prepared.catalogue, (visible, *legal.shape[2:]))
        chosen: Tensor = policy(observed).get("action")
        return chosen

    def _policy(self, catalogue: Catalogue, action_shape: tuple[int, ...]) -> TensorDictModuleBase:
        """Return the policy for boxes of a catalogue."""
        visible = action_shape[0]
        # Values of bins compare places of all boxes. Scores of heuristics and of placement values compare places of one
        # box alone, so that the largest box that fits goes first.
        compares_boxes = self.learned is not None and not isinstance(self.learned.tables, LinearPlacementValues)
        places = _PalletPlaces(catalogue, self.bin.dropped, self.kernels, self.device, action_shape)
        policy = self.learned or HEURISTICS[self.policy](places)
        if visible == 1 or compares_boxes:
            return policy
        return VolumeSorted(places, policy)

    def _sizes(self, catalogue: Catalogue, item: Tensor) -> Tensor:
        """Sides in each orientation, metres, and volume of items (N, K).

        They are as `PackingEnv` shows them.
        """
        row = item.clamp_min(0)
        bottom = catalogue.extent * self.pallet.cell
        sides = torch.cat([bottom, catalogue.height[..., None]], -1)[row]
        volume = catalogue.volume[row][..., None, None]
        volume = volume.expand(*sides.shape[:-1], 1)
        sizes = torch.cat([sides, volume], -1)
        return torch.where((item >= 0)[..., None, None], sizes, 0.0).float()

    def _placement(self, prepared: PreparedBoxes, item: Tensor, action: Tensor, z_map: Tensor) -> Placement:
        """Placements (N,) of actions among visible items (N, K)."""
        turns = prepared.catalogue.num_orientations
        per_turn = self.bin.grid[0] * self.bin.grid[1]
        place = action % per_turn
        offer_and_turn = action // per_turn
        row = _pick(item, offer_and_turn // turns)
        z = _pick(z_map.flatten(1), action)
        return placed_at(row, offer_and_turn % turns, place, z, prepared.catalogue, self.bin)

    def _first_placement(self, prepared: PreparedBoxes, row: Tensor) -> Placement:
        """First placements (N,) of catalogue rows (N,) on an empty pallet."""
        action = prepared.first[row.clamp_min(0)].clamp_min(0)
        per_turn = self.bin.grid[0] * self.bin.grid[1]
        turn = action // per_turn
        place = action % per_turn
        z = torch.full(row.shape, self.pallet.deck, dtype=torch.float32, device=self.device)
        return placed_at(row, turn, place, z, prepared.catalogue, self.bin)


def _on_device(values: Tensor, device: torch.device) -> Tensor:
    return values.float().to(device)


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """Pick one element (R,) of each row of values (R, K)."""
    return values.gather(1, index[:, None])[:, 0]


def _kernels(device: torch.device) -> Kernels:
    """Return the fastest kernels, with the eager growth under boxes.

    That one takes sums over all cells, which is faster for the large footprints on pallets.
    """
    fastest = get_kernels("auto", device)
    return fastest._replace(pile_growth=get_kernels("eager", device).pile_growth)
