"""Conversion of voxels to heightmaps, to boxes and to a surface."""

from __future__ import annotations

import numpy as np
import torch

from torchrl_gpu.envs.packing.items.rasterise import Mesh, padded, rasterise, resized, turned_centres
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.types import Bin, Catalogue


def heightmaps(solids: list[np.ndarray], rotations: np.ndarray, bin_: Bin) -> Catalogue:
    """Catalogue of solids given as cubic voxels (A, B, C) as long as a cell.

    Turns by π/2 carry voxels to voxels, and heights are whole multiples of a voxel; if there are other rotations, the
    voxels' surface is turned and rasterised. ValueError where a solid is empty, or fits the bin in no orientation.
    """
    if not all(solid.any() for solid in solids):
        raise ValueError("heightmaps: every solid must have material; one is empty")
    quarter = np.isclose(np.abs(rotations), np.round(np.abs(rotations))).all()
    catalogue = (_of_quarter_turns if quarter else _of_any_turns)(solids, rotations, bin_)
    _check_fit(catalogue, bin_)
    return catalogue


def boxes_of(voxels: np.ndarray) -> np.ndarray:
    """Fill voxels (A, B, C) with boxes that do not overlap.

    Boxes are (N, 2, 3) int64, first voxels and those past the last.

    They are few, not the fewest. Each starts at the first voxel that is left and grows along z, then y, then x.
    """
    left = voxels.copy()
    found: list[tuple[np.ndarray, np.ndarray]] = []
    place = 0
    while True:
        place += int(left.reshape(-1)[place:].argmax())
        if not left.reshape(-1)[place]:
            return np.array(found, dtype=np.int64).reshape(-1, 2, 3)
        low = np.array(np.unravel_index(place, left.shape))
        high = low + 1
        for axis in (2, 1, 0):
            ahead = tuple(slice(a, None if k == axis else b) for k, (a, b) in enumerate(zip(low, high, strict=True)))
            full = np.atleast_1d(left[ahead].all(tuple(k for k in range(3) if k != axis)))
            high[axis] = low[axis] + (len(full) if full.all() else int(full.argmin()))
        left[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = False
        found.append((low, high))


def corners_of(boxes: np.ndarray) -> np.ndarray:
    """Corners (N, 8, 3) float64 of boxes (N, 2, 3)."""
    pick = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij"), -1).reshape(8, 3)
    return boxes[:, pick, np.arange(3)].astype(np.float64)


def solid_of(name: str, voxels: np.ndarray, cell: float) -> Solid:
    """Make a solid of voxels (X, Y, Z) of `cell` metres.

    Boxes are its parts, their outer faces its surface.
    """
    vertices, faces = _surface(voxels)
    centre = (np.argwhere(voxels).mean(0) + 0.5) * cell
    parts = tuple(corners_of(boxes_of(voxels)) * cell)
    return Solid(name, parts, vertices * cell, faces, centre, float(voxels.sum() * cell**3))


def _of_quarter_turns(solids: list[np.ndarray], rotations: np.ndarray, bin_: Bin) -> Catalogue:
    cell = bin_.cell[0]
    views = []
    for solid in map(_cropped, solids):
        views += [_seen(_turned(solid, rotation)) for rotation in rotations]
    shape = len(solids), len(rotations)
    extent = torch.tensor([high.shape for high, _, _ in views], dtype=torch.int64, device="cpu").view(*shape, 2)
    p, q = extent.amax((0, 1)).tolist()
    top = torch.stack([resized(torch.from_numpy(high * cell), p, q, 0.0) for high, _, _ in views])
    bottom = torch.stack([resized(torch.from_numpy(low * cell), p, q, torch.inf) for _, low, _ in views])
    top, bottom = top.view(*shape, p, q), bottom.view(*shape, p, q)
    centre = torch.from_numpy(np.array([middle for _, _, middle in views]) * cell).float().view(*shape, 2)
    return Catalogue.of_maps(top, bottom, extent, _volumes(solids, bin_), unit=cell, centre=centre)


def _of_any_turns(solids: list[np.ndarray], rotations: np.ndarray, bin_: Bin) -> Catalogue:
    cell = bin_.cell[0]
    box_faces = Solid.of_box("", np.ones(3)).faces
    meshes = []
    for solid in solids:
        corners = corners_of(boxes_of(solid)) * cell  # (N, 8, 3)
        faces = box_faces + 8 * np.arange(len(corners))[:, None, None]
        meshes.append((corners.reshape(-1, 3), faces.reshape(-1, 3)))
    top, bottom, extent = padded(rasterise(meshes, rotations, bin_.cell))
    centres = [(np.argwhere(solid).mean(0) + 0.5) * cell for solid in solids]
    centre = turned_centres(centres, [vertices for vertices, _ in meshes], rotations)
    return Catalogue.of_maps(top, bottom, extent, _volumes(solids, bin_), centre=centre)


def _volumes(solids: list[np.ndarray], bin_: Bin) -> torch.Tensor:
    return torch.tensor(
        [int(solid.sum()) * bin_.cell_area * bin_.cell[0] for solid in solids], dtype=torch.float32, device="cpu"
    )


def _check_fit(catalogue: Catalogue, bin_: Bin) -> None:
    low_enough = catalogue.height <= bin_.size[2] + bin_.tolerance
    inside = (catalogue.extent <= torch.tensor(bin_.cells, dtype=torch.int64, device="cpu")).all(-1) & low_enough
    lost = (~inside.any(1)).nonzero()
    if len(lost):
        item = int(lost[0])
        raise ValueError(
            f"heightmaps: every item must fit the bin of {bin_.cells} cells × {bin_.size[2]} m in some orientation;"
            f" item {item} has {catalogue.extent[item, 0].tolist()} cells × {catalogue.height[item, 0].item():.3f} m"
        )


def _turned(solid: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """The voxels of a solid after a turn by multiples of π/2."""
    axes = np.abs(rotation).argmax(1)
    flipped = [axis for axis in range(3) if rotation[axis, axes[axis]] < 0]
    return np.flip(solid.transpose(axes), tuple(flipped))


def _cropped(solid: np.ndarray) -> np.ndarray:
    """The voxels of a solid without the empty slices around it."""
    used = [np.flatnonzero(solid.any(axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    return solid[tuple(slice(each[0], each[-1] + 1) for each in used)]


def _seen(solid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return top, bottom and centre of mass of a solid seen from above.

    Heights are voxels above the base, the centre (2,) counts from the corner of the footprint.
    """
    solid = np.ascontiguousarray(solid)
    filled = np.count_nonzero(solid, 2)
    low = np.where(filled > 0, solid.argmax(2), np.inf)
    high = np.where(filled > 0, solid.shape[2] - solid[:, :, ::-1].argmax(2), 0)
    sums = np.array([np.arange(len(filled)) @ filled.sum(1), np.arange(filled.shape[1]) @ filled.sum(0)])
    return high.astype(np.float32), low.astype(np.float32), sums / filled.sum() + 0.5


def _surface(voxels: np.ndarray) -> Mesh:
    """Outer faces of voxels of one metre, two triangles each."""
    padded_voxels = np.pad(voxels, 1)
    quads: list[np.ndarray] = []
    for axis in range(3):
        # u × v points along the axis.
        u = np.eye(3)[(axis + 1) % 3]
        v = np.eye(3)[(axis + 2) % 3]
        step = np.diff(padded_voxels.astype(np.int8), axis=axis)
        # Upper faces, then lower faces.
        for sign, ring in ((-1, (0 * u, u, u + v, v)), (1, (0 * u, v, u + v, u))):
            # Where the step is, the face lies at the coordinate of the first voxel behind it, padding taken off.
            face = np.argwhere(step == sign) - (1 - np.eye(3)[axis])
            quads.append(face[:, None] + np.array(ring))
    corners = np.concatenate(quads)  # (quads, 4, 3)
    vertices, index = np.unique(corners.reshape(-1, 3), axis=0, return_inverse=True)
    return vertices, index.reshape(-1, 4)[:, [[0, 1, 2], [0, 2, 3]]].reshape(-1, 3).astype(np.int64)
