"""Bins to watch while they are packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.drawing.camera import Camera
from torchrl_gpu.envs.packing.drawing.relief import Relief, ReliefSketch
from torchrl_gpu.envs.packing.drawing.sketch import sketch_boxes
from torchrl_gpu.envs.packing.env import PackingEnv
from torchrl_gpu.envs.packing.reward import objective

_MOST_SKETCHES = 16  # kept, so that only what has come since must be drawn; 6 MB each at 640×480


class ViewablePacking:
    """The bins of a `PackingEnv`.

    On CUDA the viewer draws on the device. On a CPU, where it takes a tenth of a second for a picture of boxes and more
    than one of solids, boxes are sketched and solids shown as reliefs of their upper sides.

    Args:
        env: Looked at whenever something is asked.
    """

    def __init__(self, env: PackingEnv) -> None:
        self.env = env
        self._sketches: dict[tuple[int, Camera], ReliefSketch] = {}

    @property
    def num_envs(self) -> int:
        """N."""
        return self.env.num_envs

    @torch.no_grad()
    def figures(self) -> Mapping[str, Tensor]:
        """`step`, `episode`, `return`, `utilization` and `num_packed`, (N,) each.

        Rewards of a packing are gains, so that the state alone tells their sum.
        """
        env, s = self.env, self.env.state
        utilization = s.volume / env.bin.volume
        reached = utilization
        if env.reward == "objective":
            weights = env.objective_weights
            reached = objective(s.heightmap, s.volume, s.stable, env.bin, weights)  # type: ignore[arg-type]
        return {
            "step": s.step_count,
            "episode": s.episode,
            "return": reached,
            "utilization": utilization,
            "num_packed": s.num_packed,
        }

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor | np.ndarray:
        """uint8 (B, H, W, 3)."""
        if self.env.device.type != "cpu":
            return viewer.render(self.env, index, width=width, height=height)
        camera = Camera(self.env.bin_size, width, height)
        if not self.env.catalogue.flat:
            return np.stack([self._sketch(each, camera).picture(self._reliefs(each)) for each in index])
        return np.stack([sketch_boxes(*self._boxes(each), camera) for each in index])

    def _boxes(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Opposite corners of the boxes of one bin, metres, float64 (M, 3), in order of placement."""
        env = self.env
        number = int(env.num_packed[index])
        place = env.placements[index, :number].long()
        item, orientation = place[:, 0], place[:, 1]
        corner = torch.cat([place[:, 2:] * torch.tensor(env.cell), env.placement_z[index, :number, None]], 1)
        extent = env.catalogue.extent[item, orientation] * torch.tensor(env.cell)
        size = torch.cat([extent, env.catalogue.height[item, orientation][:, None]], 1)
        return corner.double().numpy(), (corner + size).double().numpy()

    def _sketch(self, index: int, camera: Camera) -> ReliefSketch:
        found = self._sketches.pop((index, camera), None) or ReliefSketch(self.env.cell, camera)
        self._sketches[index, camera] = found
        if len(self._sketches) > _MOST_SKETCHES:
            self._sketches.pop(next(iter(self._sketches)))  # the one that was not asked for the longest
        return found

    def _reliefs(self, index: int) -> list[Relief]:
        """The solids of one bin, in order of placement."""
        env, found = self.env, []
        assert env.catalogue.top is not None
        assert env.catalogue.bottom is not None
        rows = env.placements[index, : int(env.num_packed[index])].tolist()
        for (item, orientation, x, y), z in zip(rows, env.placement_z[index].tolist(), strict=False):
            p, q = env.catalogue.extent[item, orientation].tolist()
            top, bottom = (maps[item, orientation, :p, :q] for maps in (env.catalogue.top, env.catalogue.bottom))
            shown = torch.where(bottom < torch.inf, top, -1.0).numpy()
            found.append(Relief((item, orientation), shown, (x * env.cell[0], y * env.cell[1], z)))
        return found


def viewable(env: PackingEnv) -> ViewablePacking:
    """What `torchrl_gpu.envs.viewable` looks for."""
    return ViewablePacking(env)
