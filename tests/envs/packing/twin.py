"""A second packing environment: one bin in NumPy.

It is built only on the reference's work on one item.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import reference
from torchrl_gpu.envs.packing.types import Bin, Placement


class Twin:
    """Environment `index` of a batch, played by itself.

    It takes the catalogue and the sequences of items from `env`, and nothing of its state.
    """

    def __init__(self, env: PackingEnv, index: int) -> None:
        self.env = env
        self.index = index
        self.bin_ = env.bin.dropped
        self.episode = -1
        self.restart()

    def restart(self) -> None:
        self.episode += 1
        key = self.env.item_sequences.begin(self.env.seed, torch.tensor([self.index]), torch.tensor([self.episode]))
        items = self.env.item_sequences.items(key, torch.arange(self.env.num_items)[None])[0].tolist()
        self.waiting = [item for item in items if item >= 0]
        self.heights = np.zeros(self.bin_.cells, dtype=np.float32)
        self.bears = torch.ones(1, *self.bin_.cells, dtype=torch.bool)
        self.volume = 0.0
        self.num_packed = 0
        self.stable = False
        self.look()

    def look(self) -> None:
        shape = self.env.action_shape
        self.z_map = np.full(shape, self.bin_.size[2], dtype=np.float32)
        self.legal = np.zeros(shape, dtype=bool)
        self.drop(self.bin_, self.legal)
        if self.env.stability == "load_bearing":
            item_id = torch.tensor([self.visible + [-1] * (self.env.visible_items - len(self.visible))])
            maps = (torch.from_numpy(each)[None] for each in (self.z_map, self.legal))
            judged = reference.upheld(self.pile, self.bears, *maps, item_id, self.env.catalogue, self.env.bin)
            self.legal = judged[0].numpy()
        if self.env.fallback is not None and not self.legal.any():
            self.drop(replace(self.bin_, stability=self.env.fallback), self.legal)

    def drop(self, bin_: Bin, legal: np.ndarray) -> None:
        for k, item in enumerate(self.visible):
            for o in range(self.legal.shape[1]):
                turned = reference.item_of(self.env.catalogue, bin_, item, o)
                reference.drop_item(self.heights, turned, bin_, self.z_map[k, o], legal[k, o])

    @property
    def pile(self) -> torch.Tensor:
        return torch.from_numpy(self.heights)[None]

    @property
    def visible(self) -> list[int]:
        return self.waiting[: self.env.visible_items]

    def step(self, action: int) -> tuple[float, bool]:
        if self.env.skip_unplaceable and self.waiting and not self.legal.any():
            self.waiting.pop(0)
            self.look()
            return 0.0, not self.waiting
        if not 0 <= action < self.legal.size or not self.legal.flat[action]:
            return 0.0, True
        before = self.worth()
        k, o, gx, gy = np.unravel_index(action, self.legal.shape)
        item = self.waiting.pop(k)
        turned = reference.item_of(self.env.catalogue, self.bin_, item, int(o))
        rows, columns = turned.top.shape
        x = dict(reference.placements(rows, self.bin_.cells[0], self.bin_))[int(gx)]
        y = dict(reference.placements(columns, self.bin_.cells[1], self.bin_))[int(gy)]
        z = self.z_map[k, o, gx, gy]
        judged = reference.judge_item(self.heights, turned, x, y, z, self.bin_)
        self.stable = judged or self.env.stability_judge == "rule"
        if self.env.stability == "load_bearing":
            placement = Placement(*(torch.tensor([each]) for each in (item, int(o), x, y, z)))
            self.bears = reference.bear(self.pile, self.bears, placement, self.env.catalogue, self.env.bin)
        reference.place_item(self.heights, turned.top, turned.bottom, x, y, z)
        self.volume += float(self.env.catalogue.volume[item])
        self.num_packed += 1
        self.look()
        over = not self.waiting if self.env.skip_unplaceable else not self.legal.any()
        return self.worth() - before, over

    def worth(self) -> float:
        length, width, height = self.bin_.size
        if self.env.reward == "utilization":
            return self.volume / (length * width * height)
        if not self.num_packed:
            return 0.0
        floor = length * width
        compact = self.volume / (floor * float(self.heights.max()))
        pyramid = self.volume / (float(self.heights.astype(np.float64).mean()) * floor)
        return 0.75 * compact + 0.25 * pyramid + 0.25 * self.stable
