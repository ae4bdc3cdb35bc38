"""Choice of the largest among several visible items."""

from __future__ import annotations

from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.env import SORT_KEYS
from torchrl_gpu.policies.packing.placements import Form, checked_entries
from torchrl_gpu.system import arguments

_PER_ITEM = ("item_id", "legal_mask", "z_map", "item_top", "item_bottom")


@final
class VolumeSorted(TensorDictModuleBase):
    """Wrapper policy: the visible item of largest volume that has a legal placement, placed by another policy.

    The other policy sees that item alone, as an environment with K = 1 would show it. Of equal volumes the first slot
    goes first; where nothing is legal the action is 0.

    Args:
        env: Gives the volumes of the items, which an `AgentSpace` does not hold.
        inner: Places the item; reads and writes what a policy of an environment with K = 1 does.
        by: "volume", or "box" for that of the bounding box.
    """

    def __init__(self, env: PackingEnv, inner: TensorDictModuleBase, by: str = "volume") -> None:
        super().__init__()
        key = SORT_KEYS[arguments.choice("VolumeSorted", "by", by, SORT_KEYS)]
        self.volume = key(env.catalogue, env.bin)
        self._maps, self.inner = env.action_shape, inner
        self.in_keys = list(dict.fromkeys(["legal_mask", "item_id", *inner.in_keys]))
        self.out_keys = ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        batch = tensordict.shape
        forms: dict[str, Form] = {"legal_mask": (torch.bool, self._maps), "item_id": (torch.int64, self._maps[:1])}
        if tensordict.get("z_map", None) is not None:
            forms["z_map"] = torch.float32, self._maps
        legal, item_id, *_ = checked_entries("VolumeSorted", tensordict, forms, self.volume.device)
        volume = self.volume[item_id.clamp(0, len(self.volume) - 1)]  # (…, K)
        slot = torch.where(legal.flatten(-3).any(-1), volume, -1.0).argmax(-1)
        entries = tensordict.select(*self.in_keys, strict=False).items()
        alone = {key: _take(value, slot) if key in _PER_ITEM else value for key, value in entries}
        alone["action_mask"] = alone["legal_mask"].flatten(len(batch))
        placed = self.inner(TensorDict(alone, batch_size=batch, device=tensordict.device)).get("action")
        return tensordict.set("action", slot * legal.shape[-3:].numel() + placed)


def _take(value: Tensor, slot: Tensor) -> Tensor:
    """The `slot` (…) of `value` (…, K, rest), kept as an axis of one."""
    index = slot[(..., *[None] * (value.ndim - slot.ndim))]
    return value.take_along_dim(index.expand(*slot.shape, 1, *value.shape[slot.ndim + 1 :]), slot.ndim)
