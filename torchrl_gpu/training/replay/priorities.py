"""Prioritised sampling on the device, without a host read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_gpu.envs.state_validation import Bounds, Entry, check_entries
from torchrl_gpu.training.replay.draws import DrawNumbers

_BLOCK = 128  # priorities that are summed together
_PRIORITIES = Bounds(0, 1e100)


class DevicePrioritySampler(Sampler):
    """Proportional prioritised sampling from one tensor of priorities on the device (Schaul et al. 2016).

    TorchRL's sampler keeps segment trees on the host, and its wheels have none for the GPU; prefix sums and sorted
    searches, over the sums of blocks and then within a block, read nothing back and have static shapes. Draws are
    stratified: one from each of B equal shares of the total.

    Args:
        capacity: Transitions of the storage.
        alpha: Exponent of the priorities.
        beta: Exponent of the importance weights.
        eps: Added to every priority.
        device: Where the storage is.
    """

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-3,
        device: str | torch.device = "cpu",
    ) -> None:
        self.alpha, self.beta, self.eps = alpha, beta, eps
        self.numbers: DrawNumbers | None = None  # of the host, on the device; None on a CPU
        self.beta_updates: int | None = None  # draws after which `beta` has gone to 1, where there are `numbers`
        self._leaves_out = False  # whether a priority of 0 is that of a transition that is left out
        self._blocks = torch.zeros(-(-capacity // _BLOCK), _BLOCK, device=device, dtype=torch.float64)
        self._sums = torch.zeros(len(self._blocks), device=device, dtype=torch.float64)  # of each block as it is
        self.priority = self._blocks.view(-1)[:capacity]
        self.largest = torch.ones((), device=device, dtype=torch.float64)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict]:
        """Indices (B,) int64, and `priority_weight` (B,) float32, at most 1; 0 where all transitions are left out."""
        ends = self._sums.cumsum(0)
        total = ends[-1]
        share = torch.rand(batch_size, device=total.device, dtype=total.dtype)
        spot = (torch.arange(batch_size, device=total.device, dtype=torch.int64) + share) / batch_size * total
        spot = _below(spot, total)  # rounded up to the total, it would lie behind it
        block = torch.searchsorted(ends, spot, right=True).clamp_max(len(ends) - 1)
        inner = self._blocks[block].cumsum(1)  # (B, priorities of a block)
        rest = _below((spot - ends[block] + self._sums[block]).clamp_min(0), inner[:, -1])
        index = block * inner.shape[1] + torch.searchsorted(inner, rest[:, None], right=True).squeeze(1)
        size = len(storage) if self.numbers is None else self.numbers.size
        index = index.clamp_max(size - 1)
        chance = self.priority[index] / total
        weight = (size * chance).clamp_min(1e-12) ** -self._beta_now()
        if self.numbers is not None:
            self.numbers.count_draw()
        weight = torch.where(self.priority[index] > 0, weight, 0.0)  # all is left out, where one such is drawn
        return index, {"priority_weight": (weight / weight.max().clamp_min(1e-300)).float(), "index": index}

    def _beta_now(self) -> float | Tensor:
        if self.numbers is None or self.beta_updates is None:
            return self.beta
        share = (self.numbers.updates.double() / self.beta_updates).clamp_max(1.0)
        return self.beta + (1 - self.beta) * share

    def written(self) -> list[Tensor]:
        """Tensors that draws and new errors change."""
        return [self._blocks, self._sums, self.largest]

    def extend(self, index: Any) -> None:
        """New transitions get the largest priority so far."""
        index = torch.as_tensor(index, device=self.priority.device)
        self.priority[index] = self.largest
        self._sum_up(index)

    def leave_out(self, index: Tensor, rows: Tensor) -> None:
        """Never draws those of the transitions `index` (B,) for which `rows`, bool (B,) or (B, 1), is true."""
        self._leaves_out = True
        self.priority[index] = torch.where(rows.reshape(-1), 0.0, self.priority[index])
        self._sum_up(index)

    def leave_out_first(self, rows: Tensor) -> None:
        """As `leave_out`, of as many transitions from the first on as there are `rows`, bool (B,)."""
        self._leaves_out = True
        self.priority[: len(rows)].masked_fill_(rows, 0.0)
        torch.sum(self._blocks, 1, out=self._sums)

    def add(self, index: Any) -> None:
        self.extend(index)

    def update_priority(self, index: Any, priority: Any, **kwargs: Any) -> None:
        value = (priority.reshape(-1).double() + self.eps) ** self.alpha
        if self._leaves_out:
            value = torch.where(self.priority[index] > 0, value, 0.0)
        self.priority[index] = value
        self.largest.copy_(torch.maximum(self.largest, value.max()))
        self._sum_up(torch.as_tensor(index, device=self.priority.device))

    def _sum_up(self, index: Tensor) -> None:
        blocks = self._blocks
        if index.numel() >= len(blocks):
            torch.sum(blocks, 1, out=self._sums)
        else:
            touched = index.reshape(-1) // blocks.shape[1]
            self._sums[touched] = blocks[touched].sum(1)

    def _empty(self) -> None:
        self._sums.zero_()
        self.priority.zero_()
        self.largest.fill_(1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"priority": self.priority, "sums": self._sums, "largest": self.largest}

    def check_state_dict(self, state_dict: Any) -> None:
        """Returns if `load_state_dict` would take it, else a ValueError."""
        wanted = {"priority": self.priority, "largest": self.largest}
        if isinstance(state_dict, Mapping) and "sums" in state_dict:
            wanted["sums"] = self._sums
        entries: dict[NestedKey, Entry] = {
            name: Entry(value.dtype, tuple(value.shape), _PRIORITIES) for name, value in wanted.items()
        }
        check_entries("DevicePrioritySampler.load_state_dict", state_dict, entries)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes priorities; where `alpha` is 0, only which transitions are left out."""
        self.check_state_dict(state_dict)
        self._leaves_out = True
        priority, largest = state_dict["priority"], state_dict["largest"]
        if not self.alpha:  # equally likely, whatever drew before
            priority, largest = priority > 0, torch.ones_like(largest)
        self.priority.copy_(priority)
        self.largest.copy_(largest)
        torch.sum(self._blocks, 1, out=self._sums)
        if self.alpha and "sums" in state_dict:
            self._sums.copy_(state_dict["sums"])

    def dumps(self, path: str | Path) -> None:
        raise NotImplementedError("DevicePrioritySampler: save DeviceReplay.state_dict()")

    def loads(self, path: str | Path) -> None:
        raise NotImplementedError("DevicePrioritySampler: use DeviceReplay.load_state_dict()")


def _below(values: Tensor, bound: Tensor) -> Tensor:
    return torch.minimum(values, bound.nextafter(bound - 1))
