"""Bin, item catalogue, batched state and its changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.system import arguments

# Metres in a unit of length.
UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3}
# Sides of a bin, metres: products of its sides stay far inside float32.
LEAST_SIDE = 1e-4
MOST_SIDE = 1e6
# Cells of any bin along a side.
MOST_CELLS = 4096
# The same by rules that count in sixteenths of a cell: products of offsets then fit int32.
MOST_CELLS_OF_SIXTEENTHS = 2047
# Cells of an item's map along a side: kernels number them in 16 bits.
MOST_MAP_CELLS = 32767
MOST_TILT = 45.0  # degrees
# Slope at which a box passes load on, degrees: what a millimetre makes of a box of 20 cm.
BEARING_TILT = 0.5
# Cells of height up to which sums of heights in float32 are exact to a thousandth of a cell.
_EXACT_CELLS = 151
_MOST_TOLERANCE = 0.25  # cells


class BinRule:
    """What a bin and its state must know of a stability rule.

    The rest of it is `stability.StabilityRule`.

    Attributes:
        name: The word for it in configs.
        options: Fields of `Bin` that this rule alone reads.
        tracks_bearing: Whether the rule reads which cells bear load, a mask that is then part of the state. Such a rule
            is for boxes.
        reads_centre: Whether the rule reads centres of mass.
        most_cells: Of a bin along a side.
    """

    name: str
    options: tuple[str, ...] = ()
    tracks_bearing: bool = False
    reads_centre: bool = False
    most_cells: int = MOST_CELLS

    def contact_gap(self, bin_: Bin) -> float:
        """Return the largest gap between item and pile that is contact, metres."""
        return bin_.tolerance

    def bearing_gap(self, bin_: Bin) -> float:
        """Return the largest gap across which a level item passes load on, metres."""
        return self.contact_gap(bin_)


# Every stability rule by name. `stability.register` fills the table; the rules themselves cannot stand here, as they
# read bins and catalogues.
STABILITY_RULES: dict[str, BinRule] = {}


def height_rules() -> tuple[str, ...]:
    """Return the names of the rules that read heights alone."""
    return tuple(name for name, rule in STABILITY_RULES.items() if not rule.tracks_bearing)


@dataclass(frozen=True)
class Bin:
    """Dimensions of a bin, its heightmap and placement grid, and its stability rule.

    Attributes:
        size: Length, width and height, metres.
        cells: Cells of the heightmap, X and Y.
        step: Cells between neighbouring placements.
        stability: Name of the rule, one of `STABILITY_RULES`.
        margin: Metres that the middle of a box must lie inside its support, by the rule "load_bearing".
        max_tilt: Degrees, the largest slope at which a box may come to lie, by the same rule.
        bearing_tilt: Degrees, the largest slope at which a box passes load on, by the same rule.
    """

    size: tuple[float, float, float]
    cells: tuple[int, int]
    step: int = 1
    stability: str = "none"
    margin: float = 0.03
    max_tilt: float = 0.0
    bearing_tilt: float = BEARING_TILT

    def __post_init__(self) -> None:
        size = _sizes_of(self.size)
        cells = _cells_of(self.cells)
        step = arguments.whole("Bin", "grid_step", self.step)
        if not 1 <= step <= min(cells):
            arguments.refuse("Bin", "grid_step", f"from 1 to the bin's {min(cells)} cells", step)
        # Plain numbers, whatever was given.
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "cells", cells)
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "margin", arguments.number("Bin", "margin", self.margin, 0))
        object.__setattr__(self, "max_tilt", arguments.number("Bin", "max_tilt", self.max_tilt, 0, MOST_TILT))
        bearing_tilt = arguments.number("Bin", "bearing_tilt", self.bearing_tilt, 0, MOST_TILT)
        object.__setattr__(self, "bearing_tilt", bearing_tilt)
        most = self.rule.most_cells
        if max(self.cells) > most:
            raise ValueError(f"Bin: stability {self.stability} allows at most {most} cells a side, not {self.cells}")

    @property
    def rule(self) -> BinRule:
        """The stability rule."""
        return STABILITY_RULES[arguments.choice("Bin", "stability", self.stability, STABILITY_RULES)]

    @property
    def cell(self) -> tuple[float, float]:
        """Metres per cell along x and y."""
        length, width, _ = self.size
        cells_x, cells_y = self.cells
        return length / cells_x, width / cells_y

    def per_unit(self, unit: str) -> tuple[float, float, float]:
        """Return the metres per unit along x, y and z.

        Args:
            unit: One of `UNITS`, or "cells", which are as high as they are long.
        """
        if unit == "cells":
            cell_x, cell_y = self.cell
            return cell_x, cell_y, cell_x
        metres = UNITS[unit]
        return metres, metres, metres

    @property
    def grid(self) -> tuple[int, int]:
        """Placements along x and y, (Gx, Gy)."""
        cells_x, cells_y = self.cells
        return -(-cells_x // self.step), -(-cells_y // self.step)

    @property
    def volume(self) -> float:
        """Volume of the bin, cubic metres."""
        return self.size[0] * self.size[1] * self.size[2]

    @property
    def cell_area(self) -> float:
        """Area of one heightmap cell, square metres."""
        return self.cell[0] * self.cell[1]

    @property
    def bearing_cells(self) -> tuple[int, int]:
        """Cells of the mask of what bears load, (0, 0) if the rule does not track it."""
        return self.cells if self.rule.tracks_bearing else (0, 0)

    @property
    def dropped(self) -> Bin:
        """The bin as `drop_map` takes it: without a rule that tracks what bears load.

        By such a rule `upheld` judges afterwards.
        """
        return self.without_rule if self.rule.tracks_bearing else self

    # Both are kept: kernels ask for them in every step, and a bin that is made checks its numbers.
    @cached_property
    def without_rule(self) -> Bin:
        """The bin with the stability rule "none"."""
        return replace(self, stability="none")

    @cached_property
    def at_every_cell(self) -> Bin:
        """The bin with a placement at every cell."""
        return replace(self, step=1)

    @property
    def tolerance(self) -> float:
        """Tolerance of height comparisons, metres.

        A thousandth of a cell, or more in a high bin. Heights are sums in float32, whose rounding grows as the square
        of the number of cells on top of each other.
        """
        cells = self.size[2] / min(self.cell)
        share = 1e-3 * max(1.0, (cells / _EXACT_CELLS) ** 2)
        return min(share, _MOST_TOLERANCE) * min(self.cell)

    @property
    def com_tolerance(self) -> float:
        """Largest gap that is contact by the rule `com`, metres.

        Half a cell, and `tolerance` for its rounding.
        """
        return 0.5 * min(self.cell) + self.tolerance

    @property
    def contact_tolerance(self) -> float:
        """Largest gap that is contact by the bin's own rule, metres."""
        return self.rule.contact_gap(self)

    @property
    def drops(self) -> tuple[float, float]:
        """How much lower contact may lie for each half cell from the middle.

        Metres along x and y, by `max_tilt`.
        """
        return self._drops_by(self.max_tilt)

    @property
    def bearing_tolerance(self) -> float:
        """Largest gap across which a level item passes load on by the rule, metres."""
        return self.rule.bearing_gap(self)

    @property
    def bearing_slack(self) -> float:
        """How much lower lies what holds a level item than what it passes load on to.

        Metres.
        """
        return self.contact_tolerance - self.bearing_tolerance

    @property
    def bearing_drops(self) -> tuple[float, float]:
        """How much lower what takes load may lie for each half cell from the middle.

        Metres along x and y, by `bearing_tilt`.
        """
        return self._drops_by(self.bearing_tilt)

    def _drops_by(self, degrees: float) -> tuple[float, float]:
        slope = math.tan(math.radians(degrees))
        cell_x, cell_y = self.cell
        return slope * cell_x / 2, slope * cell_y / 2


def _sizes_of(given: object) -> tuple[float, float, float]:
    wanted = "three positive lengths in metres"
    sides = arguments.listed("Bin", "bin_size", wanted, given)
    if len(sides) != 3:
        arguments.refuse("Bin", "bin_size", wanted, given)
    try:
        length = arguments.number("Bin", "bin_size", sides[0], above=0)
        width = arguments.number("Bin", "bin_size", sides[1], above=0)
        height = arguments.number("Bin", "bin_size", sides[2], above=0)
    except ValueError:
        arguments.refuse("Bin", "bin_size", wanted, given)
    if min(length, width, height) < LEAST_SIDE or max(length, width, height) > MOST_SIDE:
        arguments.refuse("Bin", "bin_size", f"three lengths from {LEAST_SIDE:g} to {MOST_SIDE:g} metres", given)
    return length, width, height


def _cells_of(given: object) -> tuple[int, int]:
    cells = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    wanted = "at least one cell along x and y"
    if len(cells) != 2:
        arguments.refuse("Bin", "resolution", wanted, cells)
    try:
        along_x = arguments.whole("Bin", "resolution", cells[0], 1)
        along_y = arguments.whole("Bin", "resolution", cells[1], 1)
    except ValueError:
        arguments.refuse("Bin", "resolution", wanted, cells)
    if max(along_x, along_y) > MOST_CELLS:
        arguments.refuse("Bin", "resolution", f"at most {MOST_CELLS} cells a side", given)
    return along_x, along_y


@dataclass
class PackingState:
    """State of a batch of packings.

    `z_map` and `legal` are derived from the rest, and held to save time.

    Attributes:
        heightmap: Metres, (N, X, Y) float32.
        item_id: Visible items, (N, K) int64, −1 for an empty slot.
        position: Number of the next item in the episode's sequence, (N,) int64.
        key: Names the episode's sequence, (N,) int64.
        episode: Episodes that have begun, (N,) int64.
        volume: Packed, cubic metres, (N,) float32.
        stable: Stability of the last placement by the environment's `stability_judge`, (N,) bool.
        num_packed: (N,) int64.
        step_count: (N,) int64.
        placements: Item, orientation, x and y in cells, in order of placement, (N, T, 4) int32.
        placement_z: Metres, (N, T) float32.
        z_map: Rest heights, metres, (N, K, O, Gx, Gy) float32.
        legal: (N, K, O, Gx, Gy) bool.
        bears: Mask of cells that bear load, (N, X, Y) bool; (N, 0, 0) by rules that do not track it.
    """

    heightmap: Tensor
    item_id: Tensor
    position: Tensor
    key: Tensor
    episode: Tensor
    volume: Tensor
    stable: Tensor
    num_packed: Tensor
    step_count: Tensor
    placements: Tensor
    placement_z: Tensor
    z_map: Tensor
    legal: Tensor
    bears: Tensor

    @staticmethod
    def blank(num_envs: int, visible_items: int, longest: int, catalogue: Catalogue, bin_: Bin) -> PackingState:
        """Return empty bins before their first episode, on the catalogue's device.

        Args:
            num_envs: N.
            visible_items: K.
            longest: Most items of an episode, T.
            catalogue: The items.
            bin_: The bin.
        """
        device = catalogue.extent.device
        heights = torch.zeros(num_envs, *bin_.cells, dtype=torch.float32, device=device)
        no_item = torch.full((num_envs, visible_items), -1, dtype=torch.int64, device=device)
        count = torch.zeros(num_envs, dtype=torch.int64, device=device)
        volume = torch.zeros(num_envs, dtype=torch.float32, device=device)
        placements = torch.zeros(num_envs, longest, 4, dtype=torch.int32, device=device)
        placement_z = torch.zeros(num_envs, longest, dtype=torch.float32, device=device)
        not_stable = count > 0
        maps = (num_envs, visible_items, catalogue.num_orientations, *bin_.grid)
        z_map = torch.full(maps, bin_.size[2], dtype=torch.float32, device=device)
        legal = torch.zeros(maps, dtype=torch.bool, device=device)
        bears = torch.full((num_envs, *bin_.bearing_cells), True, dtype=torch.bool, device=device)
        return PackingState(
            heightmap=heights,
            item_id=no_item,
            position=count,
            key=count.clone(),
            episode=count.clone(),
            volume=volume,
            stable=not_stable,
            num_packed=count.clone(),
            step_count=count.clone(),
            placements=placements,
            placement_z=placement_z,
            z_map=z_map,
            legal=legal,
            bears=bears,
        )


class Placement(NamedTuple):
    """One placement per environment.

    Attributes:
        item_id: (N,) int64; −1 places nothing.
        orientation: (N,) int64.
        x, y: First cell of the footprint, (N,) int64.
        z: Base of the item, metres, (N,) float32.
    """

    item_id: Tensor
    orientation: Tensor
    x: Tensor
    y: Tensor
    z: Tensor


class StoredMaps(NamedTuple):
    """Maps of an earlier heightmap, which a backend may reuse over unchanged cells.

    Attributes:
        z_map: Rest heights as `drop_map` gave them, metres, (N, K, O, Gx, Gy) float32.
        legal: The same for legality, bool.
        slot: The slot k of `z_map` that holds the item now in slot k, −1 for none, (N, K) int64.
        changed: Cells [x0, x1) × [y0, y1), as x0, y0, x1, y1, (N, 4) int64. Outside of them the heightmap is the
            earlier one, within them no cell is lower than it was.
    """

    z_map: Tensor
    legal: Tensor
    slot: Tensor
    changed: Tensor


class Moved(NamedTuple):
    """Result of an action in each environment.

    Attributes:
        state: After the action; its maps are still those from before.
        legal: Mask of legal actions, (N,) bool.
        slot: The slot in which each visible item was before, −1 for the one newly shown, (N, K) int64.
        changed: Cells [x0, x1) × [y0, y1) of the footprint, empty where nothing changed; x0, y0, x1, y1, (N, 4) int64.
    """

    state: PackingState
    legal: Tensor
    slot: Tensor
    changed: Tensor


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All items that can appear, in every orientation.

    An item is its top and its bottom heightmap above its own base. Boxes need no maps: the bottom of a box is 0 and its
    top its height, all over its extent.

    Attributes:
        extent: Cells along x and y of each item's own footprint, (M, O, 2) int64.
        height: Metres, (M, O) float32.
        volume: Cubic metres, (M,) float32.
        bounds: Largest extent of each orientation, ((P0, Q0), …), on the host.
        least: Smallest extent of each orientation, on the host.
        top: Highest material, metres, (M, O, P, Q) float32; 0 without material. None for boxes.
        bottom: Lowest material, metres, (M, O, P, Q) float32; +inf without material. None for boxes.
        unit: Metres of which every top and bottom is a whole multiple, if there is such a length: kernels may then
            count heights in integers.
        centre: Centre of mass along x and y, metres from the corner of the item's own footprint, (M, O, 2) float32.
            None for boxes, whose centre is the middle.
        centre_16ths: The same in sixteenths of a cell, (M, O, 2) int32. None before `kernels.balanced` has made it.
        stable_on_floor: Mask of the items that are stable on the bare floor by the rule `com`, (M, O) bool. None before
            `kernels.balanced` has made it.
    """

    extent: Tensor
    height: Tensor
    volume: Tensor
    bounds: tuple[tuple[int, int], ...]
    least: tuple[tuple[int, int], ...]
    top: Tensor | None = None
    bottom: Tensor | None = None
    unit: float | None = None
    centre: Tensor | None = None
    centre_16ths: Tensor | None = None
    stable_on_floor: Tensor | None = None

    def __post_init__(self) -> None:
        _check_catalogue(self)
        # Small, and kernels read them as they lie in memory.
        for name in ("extent", "height", "volume", "stable_on_floor"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else value.contiguous())

    @property
    def flat(self) -> bool:
        """Whether every item is a box."""
        return self.top is None

    @property
    def num_items(self) -> int:
        """Number of items, M."""
        return self.extent.shape[0]

    @property
    def num_orientations(self) -> int:
        """Number of orientations, O."""
        return self.extent.shape[1]

    @property
    def footprint(self) -> tuple[int, int]:
        """Cells that every map is padded to, (P, Q)."""
        largest_p = max(p for p, _ in self.bounds)
        largest_q = max(q for _, q in self.bounds)
        return largest_p, largest_q

    def to(self, device: torch.device) -> Catalogue:
        """Return the same catalogue on a device.

        A catalogue that is there already is returned itself, as kernels cache derived tensors by its identity.
        """
        moved: dict[str, Tensor] = {}
        is_there = True
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                moved[field.name] = value.to(device)
                is_there = is_there and moved[field.name] is value
        return self if is_there else replace(self, **moved)  # type: ignore[arg-type]

    def maps(self, item_id: Tensor, orientation: Tensor) -> tuple[Tensor, Tensor]:
        """Return top and bottom maps of items in given orientations, metres.

        Shape (…, P, Q) float32.

        Args:
            item_id: (…) int64; an id that is no row, such as −1, gives an item without material.
            orientation: (…) int64, broadcast against `item_id`.
        """
        item_id, orientation = torch.broadcast_tensors(item_id, orientation)
        row = item_id.clamp(0, self.num_items - 1)
        absent = (row != item_id)[..., None, None]
        if self.top is None or self.bottom is None:
            material = _inside(self.extent[row, orientation], self.footprint) & ~absent
            top = torch.where(material, self.height[row, orientation][..., None, None], 0.0)
            return top, torch.where(material, 0.0, math.inf).float()
        top = self.top[row, orientation]
        bottom = self.bottom[row, orientation]
        return torch.where(absent, 0.0, top), torch.where(absent, math.inf, bottom)

    def box_volume(self, bin_: Bin) -> Tensor:
        """Return the volume of each item's bounding box, cubic metres, (M,) float32.

        The box is that of the first orientation.
        """
        cells = self.extent[:, 0].prod(1)
        return cells * self.height[:, 0] * bin_.cell_area

    def separated(self) -> Catalogue:
        """Return a catalogue of each orientation as an item of its own.

        Rows are item · O + orientation, in one orientation.
        """
        of_orientations: dict[str, Tensor] = {}
        for name in ("extent", "height", "top", "bottom", "centre", "centre_16ths", "stable_on_floor"):
            value = getattr(self, name)
            if value is not None:
                of_orientations[name] = value.flatten(0, 1)[:, None]
        largest = self.footprint
        least_p = min(p for p, _ in self.least)
        least_q = min(q for _, q in self.least)
        volume = self.volume.repeat_interleave(self.num_orientations)
        changes: dict[str, object] = {
            "bounds": (largest,),
            "least": ((least_p, least_q),),
            "volume": volume,
            **of_orientations,
        }
        return replace(self, **changes)  # type: ignore[arg-type]

    @staticmethod
    def of_boxes(sizes: Tensor, volume: Tensor) -> Catalogue:
        """Return a catalogue of boxes.

        Args:
            sizes: Cells along x and y, and height in metres, (M, O, 3).
            volume: Cubic metres, (M,).
        """
        extent = sizes[..., :2].round().long()
        bounds = _pairs(extent.amax(0))
        least = _pairs(extent.amin(0))
        return Catalogue(extent, sizes[..., 2].float(), volume.float(), bounds, least)

    @staticmethod
    def of_maps(
        top: Tensor,
        bottom: Tensor,
        extent: Tensor,
        volume: Tensor,
        unit: float | None = None,
        centre: Tensor | None = None,
    ) -> Catalogue:
        """Return a catalogue of irregular items from their maps, shapes as in the class."""
        bounds = _pairs(extent.amax(0))
        least = _pairs(extent.amin(0))
        height = top.amax((-1, -2))
        return Catalogue(extent, height, volume.float(), bounds, least, top, bottom, unit, centre)


def _pairs(extent: Tensor) -> tuple[tuple[int, int], ...]:
    return tuple((int(p), int(q)) for p, q in extent.tolist())


def _inside(extent: Tensor, footprint: tuple[int, int]) -> Tensor:
    rows = torch.arange(footprint[0], device=extent.device, dtype=torch.int64)
    columns = torch.arange(footprint[1], device=extent.device, dtype=torch.int64)
    inside_rows = rows < extent[..., 0:1]  # (…, P)
    inside_columns = columns < extent[..., 1:2]  # (…, Q)
    return inside_rows[..., :, None] & inside_columns[..., None, :]


def _check_catalogue(c: Catalogue) -> None:
    """Raise ValueError unless dtypes, shapes and extents agree.

    Kernels index maps by them. The extents themselves are read on a CPU only, where every catalogue is made before it
    is moved.
    """
    where = "Catalogue"
    items = arguments.length(c.extent)
    orientations = arguments.length(c.extent, 1)
    if min(items, orientations) < 1:
        raise ValueError(
            f"{where}: extent has {items} items in {orientations} orientations; give at least one in one orientation"
        )
    each = (items, orientations)
    device = c.extent.device
    arguments.tensor(where, "extent", c.extent, torch.int64, (*each, 2), device)
    arguments.tensor(where, "height", c.height, torch.float32, each, device)
    arguments.tensor(where, "volume", c.volume, torch.float32, (items,), device)
    if c.centre_16ths is not None:
        arguments.tensor(where, "centre_16ths", c.centre_16ths, torch.int32, (*each, 2), device)
    if c.stable_on_floor is not None:
        arguments.tensor(where, "stable_on_floor", c.stable_on_floor, torch.bool, each, device)
    if (c.top is None) != (c.bottom is None):
        missing = "top" if c.top is None else "bottom"
        raise ValueError(f"{where}: {missing} is missing: give both maps of items, or neither for boxes")
    if c.unit is not None and not 0 < c.unit < math.inf:
        raise ValueError(f"{where}: unit must be a length in metres, not {c.unit}")
    if not len(c.bounds) == len(c.least) == orientations:
        given = f"{len(c.bounds)} and {len(c.least)}"
        raise ValueError(
            f"{where}: bounds and least hold {given} extents: give one for each of {orientations} orientations"
        )
    if c.top is not None and c.bottom is not None:
        _check_maps(c, c.top, c.bottom)
    if device.type == "cpu":
        _check_extents(c)


def _check_maps(c: Catalogue, top: Tensor, bottom: Tensor) -> None:
    where = "Catalogue"
    device = c.extent.device
    cells = arguments.length(bottom, 2), arguments.length(bottom, 3)
    shape = (c.num_items, c.num_orientations, *cells)
    arguments.tensor(where, "top", top, torch.float32, shape, device)
    arguments.tensor(where, "bottom", bottom, torch.float32, shape, device)
    if c.footprint[0] > cells[0] or c.footprint[1] > cells[1]:
        raise ValueError(f"{where}: maps of {cells} cells cannot hold footprints of {c.footprint}: pad them")
    if max(cells) > MOST_MAP_CELLS:
        raise ValueError(f"{where}: maps have {cells} cells; a side may have at most {MOST_MAP_CELLS}")


def _check_extents(c: Catalogue) -> None:
    smallest = c.extent.amin(0).tolist()  # (O, 2)
    largest = c.extent.amax(0).tolist()
    for o in range(c.num_orientations):
        for axis in (0, 1):
            low = smallest[o][axis]
            high = largest[o][axis]
            if not 1 <= c.least[o][axis] <= low <= high <= c.bounds[o][axis]:
                raise ValueError(
                    f"Catalogue: extent of orientation {o} goes from {low} to {high} cells along axis {axis}; it must"
                    f" be at least one cell and lie between {c.least[o]} and {c.bounds[o]}"
                )
