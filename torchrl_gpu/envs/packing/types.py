"""Data types of packing: the bin, the item catalogue, the batched state and its changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

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
# Up to so many cells of height, sums of heights in float32 are exact to a thousandth of a cell.
_EXACT_CELLS = 151
_MOST_TOLERANCE = 0.25  # cells


class BinRule:
    """What a bin and its state must know of a stability rule; the rest of it is `stability.StabilityRule`.

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


# Every stability rule by name. `stability.register` fills the table; the rules themselves cannot stand here, as they
# read bins and catalogues.
STABILITY_RULES: dict[str, BinRule] = {}


def height_rules() -> tuple[str, ...]:
    """Return the names of the rules that read heights alone, not which cells bear load."""
    return tuple(name for name, rule in STABILITY_RULES.items() if not rule.tracks_bearing)


@dataclass(frozen=True)
class Bin:
    """Dimensions of a bin, its heightmap and placement grid, and its stability rule."""

    size: tuple[float, float, float]  # length, width, height in metres
    cells: tuple[int, int]  # (X, Y), cells of the heightmap
    step: int = 1  # cells between neighbouring placements
    stability: str = "none"  # one of `STABILITY_RULES`
    margin: float = 0.03  # metres that the centre must lie inside its support, by the rule "load_bearing"
    max_tilt: float = 0.0  # degrees: largest slope at which a box may come to lie, by the same rule

    def __post_init__(self) -> None:
        size, cells = _sizes_of(self.size), _cells_of(self.cells)
        step = arguments.whole("Bin", "grid_step", self.step)
        if not 1 <= step <= min(cells):
            arguments.refuse("Bin", "grid_step", f"from 1 to the bin's {min(cells)} cells", step)
        for name, value in (("size", size), ("cells", cells), ("step", step)):
            object.__setattr__(self, name, value)  # plain numbers, whatever came
        object.__setattr__(self, "margin", arguments.number("Bin", "margin", self.margin, 0))
        object.__setattr__(self, "max_tilt", arguments.number("Bin", "max_tilt", self.max_tilt, 0, MOST_TILT))
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
        return self.size[0] / self.cells[0], self.size[1] / self.cells[1]

    def per_unit(self, unit: str) -> tuple[float, float, float]:
        """Metres per unit along x, y and z; the unit is "cells", as high as they are long, or one of `UNITS`."""
        return (*self.cell, self.cell[0]) if unit == "cells" else (UNITS[unit],) * 3

    @property
    def grid(self) -> tuple[int, int]:
        """Placements along x and y, (Gx, Gy)."""
        return -(-self.cells[0] // self.step), -(-self.cells[1] // self.step)

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
        """Cells of the mask of what bears load: those of the heightmap if the rule tracks it, else (0, 0)."""
        return self.cells if self.rule.tracks_bearing else (0, 0)

    @property
    def dropped(self) -> Bin:
        """The bin as `drop_map` takes it: without a rule that tracks what bears load.

        By such a rule `upheld` judges afterwards.
        """
        return replace(self, stability="none") if self.rule.tracks_bearing else self

    @property
    def tolerance(self) -> float:
        """Tolerance of height comparisons, metres: a thousandth of a cell, or more in a high bin.

        Heights are sums in float32, whose rounding grows as the square of the number of cells on top of each other.
        """
        cells = self.size[2] / min(self.cell)
        return min(1e-3 * max(1.0, (cells / _EXACT_CELLS) ** 2), _MOST_TOLERANCE) * min(self.cell)

    @property
    def com_tolerance(self) -> float:
        """Largest gap that is contact by the rule `com`, metres: half a cell, and `tolerance` for its rounding."""
        return 0.5 * min(self.cell) + self.tolerance

    @property
    def contact_tolerance(self) -> float:
        """Largest gap that is contact by the bin's own rule, metres."""
        return self.rule.contact_gap(self)

    @property
    def drops(self) -> tuple[float, float]:
        """Metres by which contact may lie lower, by `max_tilt`, for each half cell from the middle along x and y."""
        x, y = (math.tan(math.radians(self.max_tilt)) * cell / 2 for cell in self.cell)
        return x, y


def _sizes_of(given: Any) -> tuple[float, float, float]:
    wanted = "three positive lengths in metres"
    sides = arguments.listed("Bin", "bin_size", wanted, given)
    try:
        length, width, height = (arguments.number("Bin", "bin_size", side, above=0) for side in sides)
    except ValueError:
        arguments.refuse("Bin", "bin_size", wanted, given)
    if not LEAST_SIDE <= min(length, width, height) <= max(length, width, height) <= MOST_SIDE:
        arguments.refuse("Bin", "bin_size", f"three lengths from {LEAST_SIDE:g} to {MOST_SIDE:g} metres", given)
    return length, width, height


def _cells_of(given: Any) -> tuple[int, int]:
    cells = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    try:
        along_x, along_y = (arguments.whole("Bin", "resolution", each, 1) for each in cells)
    except ValueError:
        came = arguments.shown(cells)
        raise ValueError(f"Bin: resolution must give at least one cell along x and y; got {came}") from None
    if max(along_x, along_y) > MOST_CELLS:
        arguments.refuse("Bin", "resolution", f"at most {MOST_CELLS} cells a side", given)
    return along_x, along_y


@dataclass
class PackingState:
    """State of a batch of packings; `z_map` and `legal` are derived from the rest, stored to save time."""

    heightmap: Tensor  # (N, X, Y) float32, metres
    item_id: Tensor  # (N, K) int64, −1 for an empty slot
    position: Tensor  # (N,) int64, next item of the episode's sequence
    key: Tensor  # (N,) int64, names the episode's sequence
    episode: Tensor  # (N,) int64, episodes begun
    volume: Tensor  # (N,) float32, cubic metres packed
    stable: Tensor  # (N,) bool, stability of the last placement by the environment's `stability_judge`
    num_packed: Tensor  # (N,) int64
    step_count: Tensor  # (N,) int64
    placements: Tensor  # (N, T, 4) int32: item, orientation, x, y in cells, in order of placement
    placement_z: Tensor  # (N, T) float32, metres
    z_map: Tensor  # (N, K, O, Gx, Gy) float32
    legal: Tensor  # (N, K, O, Gx, Gy) bool
    # (N, X, Y) bool, mask of cells that bear load; (N, 0, 0) by rules that do not track it
    bears: Tensor

    @staticmethod
    def blank(num_envs: int, visible_items: int, longest: int, catalogue: Catalogue, bin_: Bin) -> PackingState:
        """Empty bins before their first episode, which is of at most `longest` items, on the catalogue's device."""
        n, device = num_envs, catalogue.extent.device
        count = torch.zeros(n, dtype=torch.int64, device=device)
        counts = {name: count.clone() for name in ("position", "key", "episode", "num_packed", "step_count")}
        maps = (n, visible_items, catalogue.num_orientations, *bin_.grid)
        return PackingState(
            heightmap=torch.zeros(n, *bin_.cells, dtype=torch.float32, device=device),
            item_id=torch.full((n, visible_items), -1, dtype=torch.int64, device=device),
            **counts,
            volume=torch.zeros(n, dtype=torch.float32, device=device),
            stable=count > 0,
            placements=torch.zeros(n, longest, 4, dtype=torch.int32, device=device),
            placement_z=torch.zeros(n, longest, dtype=torch.float32, device=device),
            z_map=torch.full(maps, bin_.size[2], dtype=torch.float32, device=device),
            legal=torch.zeros(maps, dtype=torch.bool, device=device),
            bears=torch.full((n, *bin_.bearing_cells), True, dtype=torch.bool, device=device),
        )


class Placement(NamedTuple):
    """One placement per environment."""

    item_id: Tensor  # (N,) int64; −1 places nothing
    orientation: Tensor  # (N,) int64
    x: Tensor  # (N,) int64, first cell of the footprint
    y: Tensor  # (N,) int64
    z: Tensor  # (N,) float32, base of the item, metres


class StoredMaps(NamedTuple):
    """Maps of an earlier heightmap, of which a backend may reuse those over unchanged cells."""

    z_map: Tensor  # (N, K, O, Gx, Gy) float32, as `drop_map` gave it
    legal: Tensor  # (N, K, O, Gx, Gy) bool, likewise
    slot: Tensor  # (N, K) int64, the slot k of `z_map` that holds the item now in slot k; −1 where none does
    # (N, 4) int64, cells [x0, x1) × [y0, y1) outside which the heightmap is the earlier one, and within which none is
    # lower than it was: x0, y0, x1, y1
    changed: Tensor


class Moved(NamedTuple):
    """Result of an action in each environment."""

    state: PackingState  # the state after it; its maps are still those from before
    legal: Tensor  # (N,) bool, mask of legal actions
    slot: Tensor  # (N, K) int64, the slot in which each visible item was before; −1 for the one newly shown
    # (N, 4) int64, cells [x0, x1) × [y0, y1) of the footprint: x0, y0, x1, y1; empty where nothing changed
    changed: Tensor


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All items that can appear, in every orientation, as top and bottom heightmaps above the item's own base.

    Boxes need no maps: the bottom of a box is 0 and its top its height, all over its extent.
    """

    extent: Tensor  # (M, O, 2) int64, cells along x and y of each item's own footprint
    height: Tensor  # (M, O) float32, metres
    volume: Tensor  # (M,) float32, cubic metres
    bounds: tuple[tuple[int, int], ...]  # largest extent of each orientation, ((P0, Q0), …), on the host
    least: tuple[tuple[int, int], ...]  # smallest extent of each orientation, likewise
    top: Tensor | None = None  # (M, O, P, Q) float32, metres; 0 where there is no material. None for boxes.
    bottom: Tensor | None = None  # (M, O, P, Q) float32, metres; +inf where there is no material. None for boxes.
    # Metres of which every top and bottom is a whole multiple, where there is such a length: kernels may then count
    # heights in integers
    unit: float | None = None
    # (M, O, 2) float32, centre of mass along x and y, metres from the corner of the item's own footprint. None for
    # boxes, whose centre is the middle.
    centre: Tensor | None = None
    # (M, O, 2) int32, the centre of mass in sixteenths of a cell. Made by `kernels.balanced`; None before.
    centre_16ths: Tensor | None = None
    # (M, O) bool, mask of the items that are stable on the bare floor by the rule `com`; likewise
    stable_on_floor: Tensor | None = None

    def __post_init__(self) -> None:
        _check_catalogue(self)
        # Small, and kernels read them as they lie in memory.
        for name in ("extent", "height", "volume", "stable_on_floor"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else value.contiguous())

    @property
    def flat(self) -> bool:
        """True where every item is a box."""
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
        return max(p for p, _ in self.bounds), max(q for _, q in self.bounds)

    def to(self, device: torch.device) -> Catalogue:
        """The same catalogue on `device`; itself if it is there, as kernels cache derived tensors by its identity."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}
        return self if all(v is values[name] for name, v in moved.items()) else replace(self, **moved)

    def maps(self, item_id: Tensor, orientation: Tensor) -> tuple[Tensor, Tensor]:
        """Top and bottom maps (…, P, Q) of items (…) in given orientations, which broadcast against them, int64.

        An id that is no row, such as −1, gives an item without material.
        """
        item_id, orientation = torch.broadcast_tensors(item_id, orientation)
        row = item_id.clamp(0, self.num_items - 1)
        absent = (row != item_id)[..., None, None]
        if self.top is None or self.bottom is None:
            material = _inside(self.extent[row, orientation], self.footprint) & ~absent
            top = torch.where(material, self.height[row, orientation][..., None, None], 0.0)
            return top, torch.where(material, 0.0, math.inf).float()
        top, bottom = self.top[row, orientation], self.bottom[row, orientation]
        return torch.where(absent, 0.0, top), torch.where(absent, math.inf, bottom)

    def box_volume(self, bin_: Bin) -> Tensor:
        """Volume of each item's bounding box in the first orientation, cubic metres; (M,) float32."""
        return self.extent[:, 0].prod(1) * self.height[:, 0] * bin_.cell_area

    def separated(self) -> Catalogue:
        """Catalogue of each orientation as its own item: row item · O + orientation, one orientation, shared maps."""
        of_orientations = {
            name: value.flatten(0, 1)[:, None]
            for name in ("extent", "height", "top", "bottom", "centre", "centre_16ths", "stable_on_floor")
            if (value := getattr(self, name)) is not None
        }
        bounds, least = (
            ((choose(p for p, _ in sides), choose(q for _, q in sides)),)
            for choose, sides in ((max, self.bounds), (min, self.least))
        )
        volume = self.volume.repeat_interleave(self.num_orientations)
        return replace(self, volume=volume, bounds=bounds, least=least, **of_orientations)

    @staticmethod
    def of_boxes(sizes: Tensor, volume: Tensor) -> Catalogue:
        """Catalogue of boxes of sizes (M, O, 3), cells along x and y and height in metres, and volumes (M,)."""
        extent = sizes[..., :2].round().long()
        return Catalogue(extent, sizes[..., 2].float(), volume.float(), _pairs(extent.amax(0)), _pairs(extent.amin(0)))

    @staticmethod
    def of_maps(
        top: Tensor,
        bottom: Tensor,
        extent: Tensor,
        volume: Tensor,
        unit: float | None = None,
        centre: Tensor | None = None,
    ) -> Catalogue:
        """Catalogue of irregular items from their maps, shapes as in the class."""
        bounds, least = _pairs(extent.amax(0)), _pairs(extent.amin(0))
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
    """Validates dtypes, shapes and extents against each other, as kernels index maps by them; else a ValueError.

    The extents themselves are read on a CPU only, where every catalogue is made before it is moved.
    """
    where = "Catalogue"
    items, orientations = arguments.length(c.extent), arguments.length(c.extent, 1)
    if min(items, orientations) < 1:
        raise ValueError(f"{where}: want at least one item in one orientation; got {items} in {orientations}")
    each, device = (items, orientations), c.extent.device
    for name, dtype, shape in (
        ("extent", torch.int64, (*each, 2)),
        ("height", torch.float32, each),
        ("volume", torch.float32, (items,)),
        ("centre_16ths", torch.int32, (*each, 2)),
        ("stable_on_floor", torch.bool, each),
    ):
        value = getattr(c, name)
        if value is not None or name not in ("centre_16ths", "stable_on_floor"):
            arguments.tensor(where, name, value, dtype, shape, device)
    if (c.top is None) != (c.bottom is None):
        came = "tops" if c.bottom is None else "bottoms"
        raise ValueError(f"{where}: want tops and bottoms, or neither; got the {came} only")
    if c.unit is not None and not 0 < c.unit < math.inf:
        raise ValueError(f"{where}: want a unit in metres above 0; got {c.unit}")
    if not len(c.bounds) == len(c.least) == orientations:
        came = f"{len(c.bounds)}, {len(c.least)}"
        raise ValueError(f"{where}: want bounds and least extents of {orientations} orientations; got {came}")
    if c.top is not None and c.bottom is not None:
        maps = (*each, arguments.length(c.bottom, 2), arguments.length(c.bottom, 3))
        arguments.tensor(where, "top", c.top, torch.float32, maps, device)
        arguments.tensor(where, "bottom", c.bottom, torch.float32, maps, device)
        if any(most > cells for most, cells in zip(c.footprint, maps[2:], strict=True)):
            raise ValueError(f"{where}: want maps that hold footprints of {c.footprint} cells; got {maps[2:]}")
        if max(maps[2:]) > MOST_MAP_CELLS:
            raise ValueError(f"{where}: want maps of at most {MOST_MAP_CELLS} cells a side; got {maps[2:]}")
    if device.type == "cpu":
        low, high = _pairs(c.extent.amin(0)), _pairs(c.extent.amax(0))
        for found, least, bound in zip(zip(low, high, strict=True), c.least, c.bounds, strict=True):
            for smallest, largest, at_least, at_most in zip(*found, least, bound, strict=True):
                if not 1 <= at_least <= smallest <= largest <= at_most:
                    wanted = f"extents of at least one cell, from {least} to {bound}"
                    raise ValueError(f"{where}: want {wanted}; got {smallest} to {largest}")
