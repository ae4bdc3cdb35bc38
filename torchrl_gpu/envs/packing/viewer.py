"""Pictures of bins being packed.

`render` and `frames` read an environment, on whatever device, and draw on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.plan import PackedBins
from torchrl_gpu.envs.packing.render.boxes import paint_boxes
from torchrl_gpu.envs.packing.render.camera import Camera
from torchrl_gpu.envs.packing.render.palette import item_colors
from torchrl_gpu.envs.packing.render.solids import SolidsPainting
from torchrl_gpu.envs.pictures import contact_sheet, save_gif, save_png

__all__ = ["BinView", "contact_sheet", "frames", "item_colors", "render", "save_gif", "save_png"]


def render(
    env: PackedBins,
    index: int | slice | Sequence[int] = 0,
    *,
    width: int = 640,
    height: int = 480,
    upto: int | None = None,
) -> Tensor:
    """Return pictures of bins in their current state, uint8 on the CPU.

    Args:
        env: Anything with the attributes of `PackedBins`.
        index: A number gives (H, W, 3), a slice or a list (B, H, W, 3).
        width, height: Pixels.
        upto: Number of placements that are drawn, the first ones; None for all.
    """
    if isinstance(index, int):
        return torch.from_numpy(BinView(env, index, width, height).picture(upto))
    numbers = range(len(env.num_packed))[index] if isinstance(index, slice) else index
    pictures = [BinView(env, number, width, height).picture(upto) for number in numbers]
    return torch.from_numpy(np.stack(pictures))


def frames(env: PackedBins, index: int = 0, *, width: int = 640, height: int = 480) -> Tensor:
    """Return the packing history of a bin.

    A picture of it empty, then one per placement. Uint8 (T + 1, H, W, 3).
    """
    view = BinView(env, index, width, height)
    number = int(env.num_packed[index])
    return torch.from_numpy(np.stack([view.picture(upto) for upto in range(number + 1)]))


class BinView:
    """Renderer of one bin of an environment.

    Solids drawn once are kept for the next picture.
    """

    def __init__(self, env: PackedBins, index: int, width: int, height: int) -> None:
        self._env = env
        self._index = index
        self._camera = Camera(env.bin.size, width, height)
        self._solids = None if env.catalogue.flat else SolidsPainting(env.bin.cell, self._camera)
        if env.catalogue.flat:
            extent = env.catalogue.extent.double()
            high = env.catalogue.height[..., None].double()
            # Cells, cells and metres, (M, O, 3).
            self._sizes = torch.cat([extent, high], -1).cpu().numpy()

    @torch.no_grad()
    def picture(self, upto: int | None = None) -> np.ndarray:
        """Return the picture of the first `upto` placements, or of all.

        Uint8 (H, W, 3).
        """
        env = self._env
        place = env.placements[self._index]
        z = env.placement_z[self._index]
        packed = env.num_packed[self._index]
        columns = [place, z[:, None], packed.expand(len(z), 1)]
        # All in one tensor (T, 6), so that the device is waited for once.
        read = torch.cat([column.double() for column in columns], 1).cpu().numpy()
        number = int(read[0, 5])
        if upto is not None:
            number = min(max(upto, 0), number)
        cell = np.array([*env.bin.cell, 1.0])
        rows = read[:number, :2].astype(int)
        corner = read[:number, 2:5] * cell
        if self._solids is None:
            sizes = self._sizes[rows[:, 0], rows[:, 1]] * cell
            return paint_boxes(corner, corner + sizes, self._camera)
        items = [(*which, *at) for which, at in zip(rows.tolist(), corner.tolist(), strict=True)]
        first = self._solids.keep(items)
        item_id, orientation = place[first:number, :2].long().unbind(1)
        tops, bottoms = env.catalogue.maps(item_id, orientation)
        tops_read = tops.float().cpu().numpy()
        bottoms_read = bottoms.float().cpu().numpy()
        for item, top, bottom in zip(items[first:], tops_read, bottoms_read, strict=True):
            self._solids.add(item, top, bottom)
        return self._solids.picture()
