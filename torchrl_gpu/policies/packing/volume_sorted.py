"""Which of several visible items to pack: the largest."""

from __future__ import annotations

from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu import arguments
from torchrl_gpu.envs import PackingEnv

_PER_ITEM = ("item_id", "legal_mask", "z_map", "item_top", "item_bottom")


@final
class VolumeSorted(TensorDictModuleBase):
    """The visible item of largest volume that has a legal placement, placed by another policy.

    The other policy sees that item alone, as an environment with K = 1 would show it. Of equal volumes the first slot
    goes first; where nothing is legal the action is 0.

    Args:
        env: Gives the volumes.
        inner: Places the item; reads and writes what a policy of an environment with K = 1 does.
        by: "volume", or "box" for that of the bounding box.
    """

    def __init__(self, env: PackingEnv, inner: TensorDictModuleBase, by: str = "volume") -> None:
        super().__init__()
        if by not in ("volume", "box"):
            raise ValueError(f"VolumeSorted: by must be volume or box; got {by!r}")
        self.volume = env.catalogue.box_volume(env.bin) if by == "box" else env.catalogue.volume
        self._maps, self.inner = env.action_shape, inner
        self.in_keys = list(dict.fromkeys(["legal_mask", "item_id", *inner.in_keys]))
        self.out_keys = ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action`, of the batch shape of `tensordict`."""
        where, batch = "VolumeSorted", tensordict.shape
        legal, item_id = tensordict.get("legal_mask", None), tensordict.get("item_id", None)
        arguments.tensor(where, "legal_mask", legal, torch.bool, (*batch, *self._maps), self.volume.device)
        arguments.tensor(where, "item_id", item_id, torch.int64, (*batch, self._maps[0]), self.volume.device)
        z_map = tensordict.get("z_map", None)
        if z_map is not None:
            arguments.tensor(where, "z_map", z_map, torch.float32, (*batch, *self._maps), self.volume.device)
        per_item = legal.shape[-3:].numel()
        slot = self._largest(item_id, legal)  # (…)
        shown = tensordict.select(*self.in_keys, strict=False).items()
        seen = {key: _take(value, slot) if key in _PER_ITEM else value for key, value in shown}
        seen["action_mask"] = seen["legal_mask"].flatten(len(batch))
        placed = self.inner(TensorDict(seen, batch_size=batch, device=tensordict.device)).get("action")
        return tensordict.set("action", slot * per_item + placed)

    def _largest(self, item_id: Tensor, legal: Tensor) -> Tensor:
        """Slot (…) of the item to pack."""
        volume = self.volume[item_id.clamp(0, len(self.volume) - 1)]  # (…, K)
        return torch.where(legal.flatten(-3).any(-1), volume, -1.0).argmax(-1)


def _take(value: Tensor, slot: Tensor) -> Tensor:
    """The `slot` (…) of `value` (…, K, rest), kept as an axis of one."""
    index = slot[(..., *[None] * (value.ndim - slot.ndim))]
    return value.take_along_dim(index.expand(*slot.shape, 1, *value.shape[slot.ndim + 1 :]), slot.ndim)
