"""Three-dimensional pictures of bins being packed, drawn on the device that holds them.

`render` and `frames` read an environment, `render_boxes` and `render_solids` take plain tensors. They return uint8
tensors on the device of their input; all but `frames` never wait for it. Only `save_png` and `save_gif` draw text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.drawing.boxes import trace_boxes
from torchrl_gpu.envs.packing.drawing.camera import AZIMUTH_DEG, ELEVATION_DEG, Camera, Vector
from torchrl_gpu.envs.packing.drawing.palette import item_colors
from torchrl_gpu.envs.packing.drawing.pictures import save_gif, save_png
from torchrl_gpu.envs.packing.drawing.shading import compose
from torchrl_gpu.envs.packing.drawing.solids import trace_solids
from torchrl_gpu.envs.packing.drawing.stage import BACKGROUND
from torchrl_gpu.envs.packing.drawing.volume import fill_volume

__all__ = [
    "PackedItems",
    "PackingView",
    "contact_sheet",
    "frames",
    "item_colors",
    "render",
    "render_boxes",
    "render_solids",
    "save_gif",
    "save_png",
]

RESOLUTION = 100  # voxels along the longest axis of the volume that solids are drawn from
CUDA_SCENES = 8  # bins drawn in one pass: bounds the memory; on a CPU one at a time keeps to its cache


class PackedItems(Protocol):
    """What the viewer reads of a catalogue."""

    @property
    def flat(self) -> bool: ...  # every item is a box

    @property
    def extent(self) -> Tensor: ...  # (M, O, 2) int64, cells

    @property
    def height(self) -> Tensor: ...  # (M, O) float32, metres

    def maps(self, item_id: Tensor, orientation: Tensor) -> tuple[Tensor, Tensor]: ...  # top, bottom: (…, P, Q)


class PackingView(Protocol):
    """What the viewer reads of an environment."""

    @property
    def placements(self) -> Tensor: ...  # (N, T, 4) int32: item, orientation, x and y in cells, in order of placement

    @property
    def placement_z(self) -> Tensor: ...  # (N, T) float32, metres

    @property
    def num_packed(self) -> Tensor: ...  # (N,) int64

    @property
    def catalogue(self) -> PackedItems: ...

    @property
    def cell(self) -> tuple[float, float]: ...  # metres

    @property
    def bin_size(self) -> Vector: ...  # metres


def render(
    env: PackingView,
    index: int | slice | Sequence[int] = 0,
    *,
    width: int = 640,
    height: int = 480,
    upto: int | None = None,
    azimuth_deg: float = AZIMUTH_DEG,
    elevation_deg: float = ELEVATION_DEG,
    supersample: int = 2,
) -> Tensor:
    """Bins of an environment as they stand.

    Args:
        env: A `PackingEnv`, or anything with the attributes of `PackingView`.
        index: Which of its environments: one, a slice or a list.
        width, height: Pixels.
        upto: Draw only the first so many placements; None draws all.
        azimuth_deg: Where the viewer stands about the bin, from +x towards +y.
        elevation_deg: How far above the floor the viewer looks from, 5 to 90.
        supersample: Samples per pixel along each side.

    Returns:
        uint8 on the environment's device, (H, W, 3) for an int index, else (B, H, W, 3).
    """
    camera = Camera(_size(env.bin_size), width, height, azimuth_deg, elevation_deg, supersample)
    pictures = _draw_env(env, [index] if isinstance(index, int) else index, camera, upto)
    return pictures[0] if isinstance(index, int) else pictures


def frames(
    env: PackingView,
    index: int = 0,
    *,
    width: int = 640,
    height: int = 480,
    azimuth_deg: float = AZIMUTH_DEG,
    elevation_deg: float = ELEVATION_DEG,
    supersample: int = 2,
) -> Tensor:
    """Every stage of one bin, from empty to all that it holds now. Reads the number of items from the device.

    Returns:
        uint8 (items + 1, H, W, 3) on the environment's device. Arguments as for `render`.
    """
    camera = Camera(_size(env.bin_size), width, height, azimuth_deg, elevation_deg, supersample)
    stages = range(int(env.num_packed[index]) + 1)
    return torch.cat([_draw_env(env, [index], camera, stage) for stage in stages])


@torch.no_grad()
def render_boxes(
    lower: Tensor,
    upper: Tensor,
    present: Tensor,
    colors: Tensor,
    bin_size: Vector,
    *,
    width: int = 640,
    height: int = 480,
    azimuth_deg: float = AZIMUTH_DEG,
    elevation_deg: float = ELEVATION_DEG,
    supersample: int = 2,
) -> Tensor:
    """Boxes in bins.

    Args:
        lower, upper: Opposite corners, metres, (B, M, 3). What lies outside the bin may be cut off.
        present: Boxes to draw, bool (B, M).
        colors: sRGB in [0, 1], (B, M, 3); see `item_colors`.
        bin_size: Metres; all bins have the same. The rest as for `render`.

    Returns:
        uint8 (B, H, W, 3) on the device of `lower`.
    """
    camera = Camera(_size(bin_size), width, height, azimuth_deg, elevation_deg, supersample)
    _check("render_boxes", present, lower=(lower, (3,)), upper=(upper, (3,)), colors=(colors, (3,)))
    return _draw_boxes(lower.float(), upper.float(), present, colors.float(), camera)


@torch.no_grad()
def render_solids(
    top: Tensor,
    bottom: Tensor,
    origin: Tensor,
    present: Tensor,
    colors: Tensor,
    bin_size: Vector,
    cell: tuple[float, float],
    *,
    width: int = 640,
    height: int = 480,
    azimuth_deg: float = AZIMUTH_DEG,
    elevation_deg: float = ELEVATION_DEG,
    supersample: int = 2,
    resolution: int = RESOLUTION,
) -> Tensor:
    """Solids of any shape in bins.

    Args:
        top, bottom: Upper and lower side of each item above its own base, metres, (B, M, P, Q); where there is no
            material top is 0 and bottom is +inf.
        origin: Corner of each item's maps and height of its base, metres, (B, M, 3).
        present: Items to draw, bool (B, M).
        colors: sRGB in [0, 1], (B, M, 3); see `item_colors`.
        bin_size: Metres; all bins have the same.
        cell: Metres per cell of the maps along x and y.
        resolution: Most voxels along an axis of the volume that the items are drawn from. The rest as for `render`.

    Returns:
        uint8 (B, H, W, 3) on the device of `top`.
    """
    camera = Camera(_size(bin_size), width, height, azimuth_deg, elevation_deg, supersample)
    shape = tuple(top.shape[2:])
    _check("render_solids", present, top=(top, shape), bottom=(bottom, shape), origin=(origin, (3,)))
    _check("render_solids", present, colors=(colors, (3,)))
    if resolution < 1:
        raise ValueError(f"render_solids: resolution must be at least 1; got {resolution}")
    maps = top.float(), bottom.float()
    return _draw_solids(*maps, origin.float(), present, colors.float(), camera, (cell[0], cell[1]), resolution)


def contact_sheet(pictures: Tensor, columns: int, gap: int = 8) -> Tensor:
    """Pictures side by side, row after row, on the viewer's background.

    Args:
        pictures: uint8 (B, H, W, 3), B ≥ 1.
        columns: Pictures per row.
        gap: Pixels between them.

    Returns:
        uint8 (rows·(H + gap) − gap, columns·(W + gap) − gap, 3).
    """
    if columns < 1 or not len(pictures):
        raise ValueError(f"contact_sheet: needs at least one picture and one column; got {len(pictures)} and {columns}")
    count, height, width, _ = pictures.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    sheet = pictures.new_empty(rows * (height + gap) - gap, columns * (width + gap) - gap, 3)
    for channel in range(3):
        sheet[..., channel] = int(BACKGROUND[1 + 2 * channel : 3 + 2 * channel], 16)
    for i, picture in enumerate(pictures):
        row, column = (i // columns) * (height + gap), (i % columns) * (width + gap)
        sheet[row : row + height, column : column + width] = picture
    return sheet


@torch.no_grad()
def _draw_env(env: PackingView, index: slice | Sequence[int], camera: Camera, upto: int | None) -> Tensor:
    """The first `upto` placements of some environments, (B, H, W, 3)."""
    longest = env.placements.shape[1]
    last = longest if upto is None else min(max(upto, 0), longest)
    place, z, count = (_rows(t, index) for t in (env.placements[:, :last], env.placement_z[:, :last], env.num_packed))
    slot = torch.arange(last, device=place.device, dtype=torch.int64)
    present = slot < count[:, None]  # (B, M)
    colors = item_colors(slot).expand(len(place), -1, -1)
    item, orientation = place[..., 0].to(torch.int64).clamp_min(0), place[..., 1].to(torch.int64)
    corner = torch.stack((place[..., 2] * env.cell[0], place[..., 3] * env.cell[1], z), dim=-1)  # (B, M, 3)
    if not env.catalogue.flat:
        top, bottom = env.catalogue.maps(item, orientation)
        return _draw_solids(top, bottom, corner, present, colors, camera, env.cell, RESOLUTION)
    cells, tall = env.catalogue.extent[item, orientation], env.catalogue.height[item, orientation]
    size = torch.stack((cells[..., 0] * env.cell[0], cells[..., 1] * env.cell[1], tall), dim=-1)
    return _draw_boxes(corner, corner + size, present, colors, camera)


def _draw_boxes(lower: Tensor, upper: Tensor, present: Tensor, colors: Tensor, camera: Camera) -> Tensor:
    pictures = []
    for low, high, here, paint in _parts(lower, upper, present, colors):
        pictures.append(compose(trace_boxes(low, high, here, camera), paint, camera))
    return torch.cat(pictures)


def _draw_solids(
    top: Tensor,
    bottom: Tensor,
    origin: Tensor,
    present: Tensor,
    colors: Tensor,
    camera: Camera,
    cell: tuple[float, float],
    resolution: int,
) -> Tensor:
    pictures = []
    for high, low, corner, here, paint in _parts(top, bottom, origin, present, colors):
        volume = fill_volume(high, low, corner, here, bin_size=camera.bin_size, cell=cell, resolution=resolution)
        pictures.append(compose(trace_solids(volume, camera), paint, camera))
    return torch.cat(pictures)


def _rows(tensor: Tensor, index: slice | Sequence[int]) -> Tensor:
    if isinstance(index, slice):
        return tensor[index]
    # Stacked: a list as an index would be copied to the device, which waits for it.
    return torch.stack([tensor[i] for i in index])


def _parts(*tensors: Tensor) -> zip[tuple[Tensor, ...]]:
    """The tensors in slices of scenes; where there is no item, one that is absent takes its place."""
    filled = [t if t.shape[1] else t.new_zeros(t.shape[0], 1, *t.shape[2:]) for t in tensors]
    scenes = 1 if filled[0].device.type == "cpu" else CUDA_SCENES
    return zip(*(t.split(scenes) for t in filled), strict=True)


def _size(bin_size: Vector) -> Vector:
    length, width, height = (float(side) for side in bin_size)
    return length, width, height


def _check(where: str, present: Tensor, **wanted: tuple[Tensor, tuple[int, ...]]) -> None:
    if present.ndim != 2 or present.dtype != torch.bool:
        raise ValueError(f"{where}: present must be bool of shape (B, M); got {present.dtype} {tuple(present.shape)}")
    for name, (tensor, tail) in wanted.items():
        if tuple(tensor.shape) != (*present.shape, *tail):
            raise ValueError(f"{where}: {name} must have shape {(*present.shape, *tail)}; got {tuple(tensor.shape)}")
