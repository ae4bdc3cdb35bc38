"""`PlacementHeuristic`: the legal placement with the least score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.kernels import Kernels
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement
from torchrl_gpu.system import arguments

# Dtype of an entry, and its shape without batch.
Form = tuple[torch.dtype, Sequence[int | None]]


class Placements(NamedTuple):
    """Every placement of every visible item.

    Fields are (N, K, O, Gx, Gy) or broadcast to it. Lengths along x and y are in cells. `z` and `height` are whole
    multiples of the bin's tolerance, held in float64: heights that differ by rounding alone are equal, so that ties are
    ties on every machine.

    Attributes:
        heightmap: (N, X, Y) float32, metres.
        item_id: (N, K) int64.
        z_map: (N, K, O, Gx, Gy) float32, metres.
        legal: (N, K, O, Gx, Gy) bool.
        x: First cell of the footprint, (N, K, O, Gx, 1) int64.
        y: First cell of the footprint, (N, K, O, 1, Gy) int64.
        extent_x, extent_y: (N, K, O, 1, 1) int64.
        z: (N, K, O, Gx, Gy) float64, tolerances.
        height: (N, K, O, 1, 1) float64, tolerances.
    """

    heightmap: Tensor
    item_id: Tensor
    z_map: Tensor
    legal: Tensor
    x: Tensor
    y: Tensor
    extent_x: Tensor
    extent_y: Tensor
    z: Tensor
    height: Tensor

    @property
    def reach(self) -> Tensor:
        """x + y, cells, (N, K, O, Gx, Gy) float64, 0 in the corner of the bin."""
        return self.x.double() + self.y.double()


class PackingPlaces(Protocol):
    """What heuristics read of a `PackingEnv`, or of another packer.

    Attributes:
        catalogue: Items, by their numbers.
        bin: That they go into.
        kernels: That judge placements.
        device: Of all tensors.
        action_shape: (K, O, Gx, Gy), of placements of all visible items.
        include: Entries that are shown besides the usual ones: "z_map" or not.
    """

    @property
    def catalogue(self) -> Catalogue: ...

    @property
    def bin(self) -> Bin: ...

    @property
    def kernels(self) -> Kernels: ...

    @property
    def device(self) -> torch.device | None: ...

    @property
    def action_shape(self) -> Sequence[int]: ...

    @property
    def include(self) -> Sequence[str]: ...


class PlacementHeuristic(TensorDictModuleBase, ABC):
    """Stateless policy that scores every legal placement at once.

    It reads `legal_mask`, `box_heightmap`, `item_id` and, if the environment shows it, `z_map` (which it otherwise
    makes again), over any batch shape. It writes `action`, int64, the lowest of equally good ones, and 0 if nothing is
    legal. An id that is no row of the catalogue counts as an empty slot. It keeps the items, the bin and the kernels of
    the environment, which an `AgentSpace` does not hold, and nothing of its state.
    """

    def __init__(self, env: PackingPlaces) -> None:
        super().__init__()
        self.catalogue = env.catalogue
        self.bin = env.bin
        self.kernels = env.kernels
        # Without the number of visible items: `VolumeSorted` shows one alone.
        self._device = env.device
        self._maps = env.action_shape[1:]
        self.in_keys = ["legal_mask", "box_heightmap", "item_id"]
        if "z_map" in env.include:
            self.in_keys.append("z_map")
        self.out_keys = ["action"]

    @abstractmethod
    def choose(self, placements: Placements) -> Tensor:
        """Actions (N,) int64, 0 if nothing is legal."""

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        legal = tensordict.get("legal_mask")
        action = self.choose(self._placements(tensordict))
        return tensordict.set("action", action.view(legal.shape[:-4]))

    def _placements(self, tensordict: TensorDictBase) -> Placements:
        given = tensordict.get("item_id", None)
        z_map = tensordict.get("z_map", None)
        num_slots = None
        if isinstance(given, Tensor) and given.ndim:
            num_slots = given.shape[-1]
        slots = (num_slots,)
        maps = (*slots, *self._maps)
        forms: dict[str, Form] = {
            "item_id": (torch.int64, slots),
            "legal_mask": (torch.bool, maps),
            "box_heightmap": (torch.float32, self.bin.cells),
        }
        if z_map is not None:
            forms["z_map"] = (torch.float32, maps)
        where = type(self).__name__
        entries = checked_entries(where, tensordict, forms, self._device)
        item_id, legal, heightmap, *_ = entries
        heightmap = heightmap.reshape(-1, *self.bin.cells)
        item_id = item_id.reshape(-1, item_id.shape[-1])
        row = item_id.clamp(0, self.catalogue.num_items - 1)
        # Ids outside of the catalogue become −1, which the kernels take for no item.
        item_id = torch.where(item_id == row, item_id, -1)
        if z_map is None:
            bin_ = self.bin.dropped
            z_map, _ = self.kernels.drop_map(heightmap, item_id, self.catalogue, bin_)
        z_map = z_map.reshape(-1, *legal.shape[-4:])
        legal = legal.reshape(-1, *legal.shape[-4:])
        extent_x, extent_y = self.catalogue.extent[row].unbind(-1)  # (N, K, O)
        cells_x, cells_y = self.bin.cells
        step = self.bin.step
        x, _ = grid_positions(extent_x, cells_x, step)
        y, _ = grid_positions(extent_y, cells_y, step)
        x = x[..., :, None]
        y = y[..., None, :]
        extent_x = extent_x[..., None, None]
        extent_y = extent_y[..., None, None]
        z = self.levels(z_map)
        height = self.levels(self.catalogue.height[row])
        height = height[..., None, None]
        return Placements(heightmap, item_id, z_map, legal, x, y, extent_x, extent_y, z, height)

    def levels(self, metres: Tensor) -> Tensor:
        """Heights as whole multiples of the bin's tolerance, float64."""
        return (metres.double() / self.bin.tolerance).round_()


def placed_at(
    item: Tensor, orientation: Tensor, place: Tensor, z: Tensor, catalogue: Catalogue, bin_: Bin
) -> Placement:
    """Placements of items at places of the grid, flattened.

    Args:
        item: Catalogue rows, (…) int64, −1 for none.
        orientation: (…) int64.
        place: gx · Gy + gy, (…) int64.
        z: Base, metres, (…).
        catalogue, bin_: What the items are, and where they go.
    """
    sides = catalogue.extent[item.clamp_min(0), orientation]
    along_y = bin_.grid[1]
    x = _cell_at(place // along_y, sides[..., 0], bin_.cells[0], bin_.step)
    y = _cell_at(place % along_y, sides[..., 1], bin_.cells[1], bin_.step)
    return Placement(item.flatten(), orientation.flatten(), x.flatten(), y.flatten(), z.flatten())


def _cell_at(place: Tensor, side: Tensor, cells: int, step: int) -> Tensor:
    """First cell, along one axis, of footprints at places of the grid."""
    positions, _ = grid_positions(side, cells, step)
    return positions.gather(-1, place[..., None])[..., 0]


def checked_entries(
    where: str, tensordict: TensorDictBase, forms: Mapping[str, Form], device: torch.device | None
) -> list[Tensor]:
    """Tensors of a tensordict, checked for dtype and for shape behind the batch.

    See `arguments.tensor`.
    """
    entries = []
    for name, (dtype, shape) in forms.items():
        value = tensordict.get(name, None)
        whole_shape = (*tensordict.shape, *shape)
        entries.append(arguments.tensor(where, name, value, dtype, whole_shape, device))
    return entries


def join_batch(values: Sequence[Tensor], num_batch_axes: int) -> list[Tensor]:
    """Reshape tensors (…, rest) to (B, rest), with one axis for all axes of the batch."""
    joined = []
    for value in values:
        rest = value.shape[num_batch_axes:]
        joined.append(value.reshape(-1, *rest))
    return joined


def first_best(scores: Sequence[Tensor], legal: Tensor) -> Tensor:
    """Return the legal element with the least scores, or the first of equal ones.

    The first score decides before the second and so on. Scores have no NaN, broadcast to the shape of `legal` (N, …)
    and are compared as float64.

    Returns:
        Indices (N,) int64 into the flattened rest of the shape, 0 where nothing is legal.
    """
    # In float64, in which all whole numbers of tolerances and cells are exact.
    wide = [score.expand(legal.shape).double() for score in scores]
    if native.runs_on(legal):
        return native.first_best(wide, legal)
    # Score after score, only the placements that are still tied stay: a lexicographic order without a common number for
    # all scores, which could overflow.
    tied = legal.flatten(1)
    for score in wide:
        score = score.flatten(1)
        least = torch.where(tied, score, torch.inf).amin(1, keepdim=True)
        tied = tied & (score == least)
    return tied.byte().argmax(1)
