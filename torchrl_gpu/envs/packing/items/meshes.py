"""Items from the user's own mesh files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from torchrl_gpu.device import get_device
from torchrl_gpu.envs.packing.items.mesh_cache import MeshCache, cache_key
from torchrl_gpu.envs.packing.items.mesh_files import find_meshes, read_groups
from torchrl_gpu.envs.packing.items.procedural import scale_of
from torchrl_gpu.envs.packing.items.rasterise import Heightmaps, Mesh, padded, rasterise, turned_centres
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.items.source import Built, EndlessSequences, ItemSource
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import UNITS, Bin, Catalogue
from torchrl_gpu.system import arguments
from torchrl_gpu.system.extras import how_to_install

if TYPE_CHECKING:
    from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape

_LOG = logging.getLogger(__name__)
MOST_SCALES = 100_000


class MeshItem(NamedTuple):
    """An object at one scale."""

    shape: MeshShape
    scale: float

    @property
    def vertices(self) -> np.ndarray:
        """Vertices (V, 3), metres."""
        return self.shape.mesh[0] * self.scale


class MeshItems(ItemSource):
    """Objects from mesh files. Needs the extra `meshes`.

    Formats are OBJ, STL, PLY and GLB, and the collision geometry of URDFs.

    A file is one object: one closed surface, or a union of closed parts, which may overlap. It keeps the orientation
    that its file gives it, z up.

    Args:
        path: A file, a folder, which is searched with all below it, or a list of them.
        unit: Of the files' coordinates: "m", "cm" or "mm". URDFs are in metres.
        scale: Smallest and largest factor on the sides, drawn for each item.
        num_scales: Items made of each object, each with a scale of its own.
        skip_invalid: Leave out what cannot be used, report it in one logged line and in `skipped`; else it is an error.
        cache: Folder that keeps the heightmaps from one process to the next.
        device: Where the heightmaps are made, as in `get_device`.
        seed: Decides the scales.

    Attributes:
        items: Objects at their scales, in order: all scales of the first object, of the second, ….
        skipped: (path, reason) of what was left out.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: A folder holds no mesh; a file is no mesh, empty, not finite, not closed or without volume; and,
            from `build`, an object fits the bin in no orientation.
        ImportError: The packages of the extra are missing.
    """

    boxes = False

    def __init__(
        self,
        path: str | Path | list[str] | list[Path],
        unit: str = "m",
        scale: tuple[float, float] = (0.8, 1.2),
        num_scales: int = 1,
        skip_invalid: bool = False,
        cache: str | Path | None = None,
        device: str | torch.device = "auto",
        seed: int = 0,
    ) -> None:
        where = "MeshItems"
        self.unit = arguments.choice(where, "unit", unit, UNITS)
        self.scale = scale_of(where, scale)
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"MeshItems: scales must be positive and in order; got {tuple(scale)}")
        self.num_scales = arguments.whole(where, "num_scales", num_scales, 1, MOST_SCALES)
        self.path = path
        self.skip_invalid = arguments.flag(where, "skip_invalid", skip_invalid)
        self.cache = cache
        self.device = get_device(device)
        self.seed = arguments.seed(where, "seed", seed, low=0)
        for each in path if isinstance(path, list) else [path]:
            if not isinstance(each, str | Path):
                arguments.refuse(where, "path", "a file, a folder, or a list of them", path)
        if not (cache is None or isinstance(cache, str | Path)):
            arguments.refuse(where, "cache", "a folder, or none", cache)
        self.skipped: list[tuple[Path, str]] = []
        self._cache = MeshCache(None if cache is None else Path(cache).expanduser())
        self._rows: dict[Bin, list[int]] = {}
        paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
        shapes = self._read(find_meshes([each.expanduser() for each in paths]))
        factors = np.random.default_rng(self.seed).uniform(*self.scale, (len(shapes), self.num_scales))
        self.items: list[MeshItem] = []
        for shape, own in zip(shapes, factors, strict=True):
            self.items += [MeshItem(shape, float(factor)) for factor in own]

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        rotations = orientation_set(orientations, boxes=False)
        maps = self._heightmaps(rotations, bin_)
        rows = self._fitting(maps, bin_)
        if self._rows.setdefault(bin_, rows) != rows:
            raise ValueError(
                "MeshItems: other items fit this bin in these orientations than in those of an earlier environment,"
                " and `solid` knows items by their row; make a second MeshItems"
            )
        top, bottom, extent = padded([maps[row] for row in rows])
        items = [self.items[row] for row in rows]
        centres = [item.shape.centre * item.scale for item in items]
        centre = turned_centres(centres, [item.vertices for item in items], rotations)
        exact = torch.tensor([item.shape.volume * item.scale**3 for item in items], dtype=torch.float64, device="cpu")
        # No more than between bottom and top in any orientation: a pile cannot hold more than its heights say.
        thick = torch.where(bottom.isfinite(), top - bottom, 0.0).sum((-1, -2), dtype=torch.float64)  # (M, O)
        volume = torch.minimum(exact, (thick.amin(1) * bin_.cell_area).cpu())
        catalogue = Catalogue.of_maps(top, bottom, extent, volume, centre=centre)
        return catalogue.to(self.device), EndlessSequences(catalogue.num_items, num_items)

    def solid(self, item: int, bin_: Bin) -> Solid:
        shape, scale = self._item(item, bin_)
        return shape.solid(scale)

    def label(self, item: int, bin_: Bin) -> dict[str, object]:
        shape, scale = self._item(item, bin_)
        return {"item": item, "name": shape.name, "scale": scale}

    def _item(self, item: int, bin_: Bin) -> MeshItem:
        return self.items[self._rows[bin_][item] if bin_ in self._rows else item]

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(self, files: list[Path]) -> list[MeshShape]:
        shape_of = _shapes()
        shapes = []
        for file in files:
            try:
                shapes.append(shape_of(str(file), read_groups(file, self.unit)))
            except ValueError as error:
                self._refuse(file, str(error))
        self._report(len(self.skipped), len(files), "files")
        if not shapes:
            raise ValueError(f"MeshItems: {self.path}: no usable mesh among {len(files)} files")
        return shapes

    def _refuse(self, file: str | Path, reason: str) -> None:
        if not self.skip_invalid:
            raise ValueError(f"MeshItems: {file}: {reason}")
        self.skipped.append((Path(file), reason))

    def _report(self, number: int, of: int, what: str) -> None:
        if number:
            path, reason = self.skipped[-number]
            _LOG.warning("MeshItems: skipped %d of %d %s, the first of them %s: %s", number, of, what, path, reason)

    # -- heightmaps -------------------------------------------------------------------------------------------------

    def _heightmaps(self, rotations: np.ndarray, bin_: Bin) -> dict[int, Heightmaps]:
        """Return heightmaps by item number, from the cache where it has them.

        Items that are far too large have none.
        """
        room = np.array(bin_.size) + max(bin_.cell)
        # Items of the same shape and scale share a key, so that their heightmaps are made once.
        keys = {}
        for row, item in enumerate(self.items):
            # Heightmaps of an item in millimetres that are taken for metres would fill any memory.
            if any((np.ptp(item.vertices @ rotation.T, 0) <= room).all() for rotation in rotations):
                keys[row] = cache_key(item.shape.digest, item.scale, rotations, bin_.cell)
        found = {key: self._cache.get(key, len(rotations), self.device) for key in dict.fromkeys(keys.values())}
        missing = {key: self.items[row] for row, key in keys.items() if found[key] is None}
        meshes = [(item.vertices, item.shape.mesh[1]) for item in missing.values()]
        for key, made in zip(missing, rasterise(meshes, rotations, bin_.cell, self.device), strict=True):
            self._cache.put(key, made)
            found[key] = made
        by_row = {row: found[key] for row, key in keys.items()}
        return {row: maps for row, maps in by_row.items() if maps is not None}

    def _fitting(self, maps: dict[int, Heightmaps], bin_: Bin) -> list[int]:
        rows, before = [], len(self.skipped)
        for row, item in enumerate(self.items):
            reason = _misfit(maps.get(row), item, bin_, self.unit)
            if not reason:
                rows.append(row)
            elif not self.skip_invalid or bin_ not in self._rows:
                self._refuse(item.shape.name, reason)
        self._report(len(self.skipped) - before, len(self.items), "items")
        if not rows:
            raise ValueError(f"MeshItems: {self.path}: no item fits the bin")
        return rows


def _shapes() -> Callable[[str, Sequence[Mesh]], MeshShape]:
    """`MeshShape.of`, which needs packages that a plain install lacks."""
    try:
        import trimesh  # noqa: F401

        from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape
    except ImportError as error:
        raise ImportError(f"MeshItems: {error}; an extra brings it: {how_to_install('meshes')}") from error
    return MeshShape.of


def _misfit(maps: Heightmaps | None, item: MeshItem, bin_: Bin, unit: str) -> str:
    """Return why an item cannot be packed, or "" if it can.

    Lengths are in `unit`. An item without heightmaps is too large.
    """
    if maps is not None:
        height = maps.top.amax((1, 2))  # (O,)
        cells = torch.tensor(bin_.cells, device=height.device, dtype=torch.int64)
        if not maps.bottom.isfinite().flatten(1).any(1).all():
            return f"the item at scale {item.scale:.3g} is thinner than a ten-thousandth of a cell"
        inside = (maps.extent <= cells).all(-1) & (height <= bin_.size[2] + bin_.tolerance)
        if inside.any():
            return ""
    size = np.ptp(item.vertices, 0)
    return (
        f"an item of {_lengths(size, unit)} at scale {item.scale:.3g} fits the bin of"
        f" {_lengths(bin_.size, unit)} in no orientation"
    )


def _lengths(size: Iterable[float], unit: str) -> str:
    return " × ".join(f"{float(f'{s / UNITS[unit]:.3g}'):g}" for s in size) + f" {unit}"
