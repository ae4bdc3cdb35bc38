"""Heightmaps of transitions as bytes or 16-bit counts."""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.state_validation import Bounds, Entry

_KEY = "box_heightmap"

# Counts that fit a byte, and that fit 16 bits with room for rounding.
_MOST_IN_BYTE = 255
_MOST_IN_INT16 = 32_000


class HeightmapCodec:
    """Codec of heightmaps, where the environment's items have a unit.

    It takes a quarter or half of the memory, and is exact to the last count. Without a unit heightmaps stay float32.
    """

    def __init__(self, env: PackingEnv) -> None:
        self.unit = env.catalogue.unit
        self.dtype = torch.float32
        self._height = env.bin.size[2]
        if self.unit is None:
            return
        most = self._height / self.unit + 1
        if most > _MOST_IN_INT16:
            self.unit = None
        elif most < _MOST_IN_BYTE:
            self.dtype = torch.uint8
        else:
            self.dtype = torch.int16

    def packed(self, transitions: TensorDictBase) -> TensorDictBase:
        """Pack heightmaps in place, but those that are packed."""
        for part in self._parts(transitions):
            if self.unit is not None and part[_KEY].is_floating_point():
                counts = (part[_KEY] / self.unit).round()
                part[_KEY] = counts.to(self.dtype)
        return transitions

    def unpacked(self, transitions: TensorDictBase) -> TensorDictBase:
        """Inverse of `packed`, in metres, in place."""
        for part in self._parts(transitions):
            if self.unit is not None:
                part[_KEY] = part[_KEY].float() * self.unit
        return transitions

    def entries(self, shown: dict[NestedKey, Entry]) -> dict[NestedKey, Entry]:
        """Specs of packed transitions, given those of the observations."""
        if self.unit is None or _KEY not in shown:
            return shown
        most = round(self._height / self.unit) + 1
        packed = Entry(self.dtype, shown[_KEY].shape, Bounds(0, most))
        return shown | {_KEY: packed}

    def _parts(self, transitions: TensorDictBase) -> list[TensorDictBase]:
        # Iterating over a tensordict would give its rows.
        parts = (transitions, transitions["next"])
        return [part for part in parts if _KEY in part.keys()]  # noqa: SIM118
