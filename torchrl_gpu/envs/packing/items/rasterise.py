"""Top and bottom of triangle meshes over the cells of their footprints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchrl_gpu.envs.packing.items.segments import EDGE, Surfaces, extremes

# Cells of maps that are made at a time.
_BLOCK = {"cpu": 1 << 24, "cuda": 1 << 28}

Mesh = tuple[np.ndarray, np.ndarray]
"""Vertices (V, 3) float64 and faces (F, 3) int64, triangles."""


class Heightmaps(NamedTuple):
    """Heightmaps of an item in every orientation.

    Heights are above the lowest point of the turned item. The corner of a footprint is at the least x and y of the
    turned item.

    Attributes:
        top: Metres, (O, P, Q) float32; 0 where there is no material.
        bottom: Metres, (O, P, Q) float32; +inf where there is no material.
        extent: Cells of the footprint, (O, 2) int64.
    """

    top: Tensor
    bottom: Tensor
    extent: Tensor


def rasterise(
    meshes: Sequence[Mesh], rotations: np.ndarray, cell: tuple[float, float], device: torch.device | str = "cpu"
) -> list[Heightmaps]:
    """Make the heightmaps of finite meshes in every orientation (O, 3, 3).

    Each vertex belongs to a face. The maps are made on `device` and stay there.

    P and Q are as large as the orientations of each mesh need. A mesh thinner than `EDGE` cells along x or y has no
    material there.
    """
    device = torch.device(device)
    found: list[Heightmaps] = []
    with _one_thread():
        for block in _blocks(meshes, len(rotations), cell, device):
            found += _block_maps(_surfaces(block, device), rotations, cell)
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limits torch to one thread within the context.

    Portions that fit the cache are too small for two threads, which on a busy machine wait for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def padded(maps: Sequence[Heightmaps]) -> tuple[Tensor, Tensor, Tensor]:
    """Pad top and bottom (M, O, P, Q) of all items to the largest footprint.

    The extents (M, O, 2) follow.
    """
    extent = torch.stack([each.extent for each in maps])
    p, q = extent.amax((0, 1)).tolist()
    top = torch.stack([resized(each.top, p, q, 0.0) for each in maps])
    return top, torch.stack([resized(each.bottom, p, q, torch.inf) for each in maps]), extent


def resized(maps: Tensor, p: int, q: int, value: float) -> Tensor:
    """Maps (…, rows, columns) cut off, or filled up with a value, to (…, P, Q)."""
    return functional.pad(maps, (0, q - maps.shape[-1], 0, p - maps.shape[-2]), value=value)


def turned_centres(centres: Sequence[np.ndarray], vertices: Sequence[np.ndarray], rotations: np.ndarray) -> Tensor:
    """Return points (3,) of items from the corners of their footprints.

    Along x and y, (M, O, 2) float32, metres.
    """
    sides = rotations[:, :2]  # (O, 2, 3)
    found = [sides @ point - (sides @ own.T).min(2) for point, own in zip(centres, vertices, strict=True)]
    return torch.from_numpy(np.stack(found)).float()


def joined(meshes: Sequence[Mesh]) -> Mesh:
    """All triangles of some meshes as one mesh."""
    starts = np.cumsum([0] + [len(vertices) for vertices, _ in meshes])
    faces = [faces + start for (_, faces), start in zip(meshes, starts, strict=False)]
    return np.concatenate([vertices for vertices, _ in meshes]), np.concatenate(faces)


def _surfaces(meshes: Sequence[Mesh], device: torch.device) -> Surfaces:
    vertices, faces = joined(meshes)
    sides = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), 1)
    code = np.unique(sides[:, 0] * len(vertices) + sides[:, 1])
    edges = np.stack(np.divmod(code, len(vertices)))
    mesh = np.repeat(np.arange(len(meshes)), [len(own) for own, _ in meshes])
    return Surfaces(
        _tensor(vertices.T, device),
        _tensor(faces.T, device),
        _tensor(edges, device),
        _tensor(mesh, device),
        len(meshes),
    )


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _blocks(
    meshes: Sequence[Mesh], orientations: int, cell: tuple[float, float], device: torch.device
) -> Iterator[Sequence[Mesh]]:
    """Blocks of consecutive meshes whose maps fit the memory."""
    # All maps of a block are as large as its largest one could be in any orientation: the diagonal of its bounds.
    start, largest = 0, 0.0
    for end, (vertices, _) in enumerate(meshes):
        side = float(np.linalg.norm(np.ptp(vertices, 0))) / min(cell) + 2
        largest = max(largest, side)
        if end > start and (end + 1 - start) * orientations * largest**2 > _BLOCK[device.type]:
            yield meshes[start:end]
            start, largest = end, side
    if meshes:
        yield meshes[start:]


def _block_maps(surfaces: Surfaces, rotations: np.ndarray, cell: tuple[float, float]) -> list[Heightmaps]:
    """Heightmaps of some meshes at once."""
    views: dict[int, _View] = {}
    for orientation, twin in _twins(rotations, square=abs(cell[0] - cell[1]) < 1e-9 * cell[0]):
        views[orientation] = _view(surfaces, rotations[orientation], cell)
        if twin is not None:
            # Seen from below, x and y are swapped, and z points down.
            view = views[orientation]
            height = view.height[:, None, None]
            top, bottom = (height - view.bottom).transpose(1, 2), (height - view.top).transpose(1, 2)
            views[twin] = _View(top, bottom, view.extent.flip(1), view.height)
    extent = torch.stack([views[o].extent for o in range(len(rotations))], 1)  # (M, O, 2)
    found = []
    for m, (p, q) in enumerate(extent.amax(1).tolist()):
        seen = [views[o] for o in range(len(rotations))]
        top = torch.stack([resized(view.top[m], p, q, 0.0) for view in seen]).clamp_min(0)
        bottom = torch.stack([resized(view.bottom[m], p, q, torch.inf) for view in seen])
        found.append(Heightmaps(top.float(), bottom.float(), extent[m].clone()))
    return found


def _twins(rotations: np.ndarray, square: bool) -> Iterator[tuple[int, int | None]]:
    """Yield the orientations to look at, each with its twin or None.

    A twin is the same orientation seen from below, with x and y swapped.
    """
    swap = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    index = {_key(rotation): o for o, rotation in enumerate(rotations)} if square else {}
    seen: set[int] = set()
    for o, rotation in enumerate(rotations):
        if o not in seen:
            twin = index.get(_key(swap @ rotation))
            seen |= {o} if twin is None else {o, twin}
            yield o, twin


def _key(rotation: np.ndarray) -> bytes:
    return (np.round(rotation, 9) + 0.0).tobytes()


class _View(NamedTuple):
    """Top and bottom maps of meshes in one orientation.

    Without material the top is −inf and the bottom +inf.
    """

    top: Tensor  # (M, P, Q) float64, metres
    bottom: Tensor  # (M, P, Q) float64, metres
    extent: Tensor  # (M, 2) int64
    height: Tensor  # (M,) float64, metres


def _view(surfaces: Surfaces, rotation: np.ndarray, cell: tuple[float, float]) -> _View:
    device = surfaces.vertices.device
    points = torch.from_numpy(rotation).to(device) @ surfaces.vertices
    mesh = surfaces.mesh.expand_as(points)
    least = points.new_full((3, surfaces.num_meshes), torch.inf).scatter_reduce_(1, mesh, points, "amin")
    points = points - least[:, surfaces.mesh]
    points /= torch.tensor([[cell[0]], [cell[1]], [1.0]], dtype=torch.float64, device=device)
    most = torch.zeros_like(least).scatter_reduce_(1, mesh, points, "amax")
    extent = ((most[:2] - EDGE).floor() + 1).clamp_min(1).long().T  # (M, 2)
    p, q = extent.amax(0).tolist()
    top, bottom = extremes(surfaces._replace(vertices=points), (p, q))
    return _View(top, bottom, extent, most[2])
