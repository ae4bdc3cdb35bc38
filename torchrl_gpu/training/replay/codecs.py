"""Lossless packing of heightmaps in replay: as whole counts, where the items have a unit."""

from __future__ import annotations

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.state_validation import Bounds, Entry

_KEY = "box_heightmap"


class HeightmapCodec:
    """Packs heightmaps of transitions into bytes or 16-bit counts, where the environment's items have a unit.

    A quarter or half of the memory, exact to the last count; items without a unit keep float32.
    """

    def __init__(self, env: PackingEnv) -> None:
        self.unit, self._height = env.catalogue.unit, env.bin.size[2]
        most = 0.0 if self.unit is None else env.bin.size[2] / self.unit + 1
        self.dtype = torch.float32 if self.unit is None else torch.uint8 if most < 255 else torch.int16
        if most > 32_000:
            self.unit, self.dtype = None, torch.float32

    def packed(self, transitions: TensorDictBase) -> TensorDictBase:
        """The same transitions with packed heightmaps; in place. Those that are packed already stay so."""
        for part in self._parts(transitions):
            if self.unit is not None and part[_KEY].is_floating_point():
                part[_KEY] = (part[_KEY] / self.unit).round().to(self.dtype)
        return transitions

    def unpacked(self, transitions: TensorDictBase) -> TensorDictBase:
        """The inverse of `packed`, in metres; in place."""
        for part in self._parts(transitions):
            if self.unit is not None:
                part[_KEY] = part[_KEY].float() * self.unit
        return transitions

    def entries(self, shown: dict[NestedKey, Entry]) -> dict[NestedKey, Entry]:
        if self.unit is None or _KEY not in shown:
            return shown
        most = round(self._height / self.unit) + 1
        return shown | {_KEY: Entry(self.dtype, shown[_KEY].shape, Bounds(0, most))}

    def _parts(self, transitions: TensorDictBase) -> list[TensorDictBase]:
        return [part for part in (transitions, transitions["next"]) if _KEY in part.keys()]  # noqa: SIM118
