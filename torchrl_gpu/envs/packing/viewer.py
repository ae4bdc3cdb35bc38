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
    """Pictures of bins of an environment in their current state, uint8 on the CPU.

    The environment may be anything with the attributes of `PackedBins`. An int index gives (H, W, 3), a slice or a list
    (B, H, W, 3). `upto` draws only the first so many placements.
    """
    numbers = range(len(env.num_packed))[index] if isinstance(index, slice) else index
    if isinstance(numbers, int):
        return torch.from_numpy(BinView(env, numbers, width, height).picture(upto))
    return torch.from_numpy(np.stack([BinView(env, each, width, height).picture(upto) for each in numbers]))


def frames(env: PackedBins, index: int = 0, *, width: int = 640, height: int = 480) -> Tensor:
    """Packing history of a bin: a picture of it empty, then one per placement.

    Uint8 (T + 1, H, W, 3).
    """
    view = BinView(env, index, width, height)
    return torch.from_numpy(np.stack([view.picture(upto) for upto in range(int(env.num_packed[index]) + 1)]))


class BinView:
    """Renderer of one bin of an environment.

    Solids drawn once are kept for the next picture.
    """

    def __init__(self, env: PackedBins, index: int, width: int, height: int) -> None:
        self._env, self._index, self._camera = env, index, Camera(env.bin.size, width, height)
        self._solids = None if env.catalogue.flat else SolidsPainting(env.bin.cell, self._camera)
        if env.catalogue.flat:
            sides = env.catalogue.extent.double(), env.catalogue.height[..., None].double()
            self._sizes = torch.cat(sides, -1).cpu().numpy()  # (M, O, 3): cells, cells and metres

    @torch.no_grad()
    def picture(self, upto: int | None = None) -> np.ndarray:
        """Picture of the first `upto` placements, or of all.

        Uint8 (H, W, 3).
        """
        env, index = self._env, self._index
        place, z, packed = env.placements[index], env.placement_z[index], env.num_packed[index]
        columns = [each.double() for each in (place, z[:, None], packed.expand(len(z), 1))]
        read = torch.cat(columns, 1).cpu().numpy()  # (T, 6), so that the device is waited for once
        number = int(read[0, 5])
        number = number if upto is None else min(max(upto, 0), number)
        cell = np.array([*env.bin.cell, 1.0])
        of, corner = read[:number, :2].astype(int), read[:number, 2:5] * cell
        if self._solids is None:
            return paint_boxes(corner, corner + self._sizes[of[:, 0], of[:, 1]] * cell, self._camera)
        items = [(*which, *at) for which, at in zip(of.tolist(), corner.tolist(), strict=True)]
        first = self._solids.keep(items)
        maps = env.catalogue.maps(*place[first:number, :2].long().unbind(1))
        for each, top, bottom in zip(items[first:], *(side.float().cpu().numpy() for side in maps), strict=True):
            self._solids.add(each, top, bottom)
        return self._solids.picture()
