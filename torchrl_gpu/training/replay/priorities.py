"""Prioritised sampling on the device, without a host read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tensordict import NestedKey
from torch import Tensor
from torchrl.data.replay_buffers.samplers import Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_gpu.envs.state_validation import Bounds, Entry, check_entries
from torchrl_gpu.training.replay.draws import DrawNumbers

# Priorities that are summed together.
_BLOCK = 128
_PRIORITIES = Bounds(0, 1e100)


class DevicePrioritySampler(Sampler):
    """Proportional prioritised sampling on the device (Schaul et al. 2016).

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
        self.alpha = alpha
        self.beta = beta
        self.eps = eps
        # What the host would be asked for, on the device; None on a CPU.
        self.numbers: DrawNumbers | None = None
        # Draws after which `beta` has gone to 1, where there are `numbers`.
        self.beta_updates: int | None = None
        # Whether a priority of 0 is that of a transition that is left out.
        self._leaves_out = False
        num_blocks = -(-capacity // _BLOCK)
        self._blocks = torch.zeros(num_blocks, _BLOCK, device=device, dtype=torch.float64)
        # Of each block.
        self._sums = torch.zeros(num_blocks, device=device, dtype=torch.float64)
        self.priority = self._blocks.view(-1)[:capacity]
        self.largest = torch.ones((), device=device, dtype=torch.float64)

    # A draw is a search in a prefix sum of all priorities. One sum over all of them would be simpler, and would be made
    # anew for every batch: a million additions for some hundred draws. So sums of blocks are kept as priorities change;
    # a draw searches in the prefix sum of the blocks, and then in that of its own block.
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict]:
        """Draw indices (B,) int64, with `priority_weight` (B,) float32, at most 1.

        A weight is 0 where all transitions are left out.
        """
        ends = self._sums.cumsum(0)
        total = ends[-1]
        share = torch.rand(batch_size, device=total.device, dtype=total.dtype)
        stratum = torch.arange(batch_size, device=total.device, dtype=torch.int64)
        spot = (stratum + share) / batch_size * total
        # Rounded up to the total, it would lie behind it.
        spot = _below(spot, total)
        found = torch.searchsorted(ends, spot, right=True)
        block = found.clamp_max(len(ends) - 1)
        # Of each draw, the sums within its block.
        inner = self._blocks[block].cumsum(1)
        # A block begins at its end minus its sum, which rounding may put behind the spot.
        before_end = spot - ends[block]
        rest = (before_end + self._sums[block]).clamp_min(0)
        rest = _below(rest, inner[:, -1])
        place = torch.searchsorted(inner, rest[:, None], right=True).squeeze(1)
        index = block * inner.shape[1] + place
        size = len(storage) if self.numbers is None else self.numbers.size
        index = index.clamp_max(size - 1)
        chance = self.priority[index] / total
        weight = (size * chance).clamp_min(1e-12) ** -self._beta_now()
        if self.numbers is not None:
            self.numbers.count_draw()
        # Only where all is left out one such is drawn.
        weight = torch.where(self.priority[index] > 0, weight, 0.0)
        # If all transitions are left out, all weights are 0, and 0 / 0 would be NaN.
        largest = weight.max().clamp_min(1e-300)
        return index, {"priority_weight": (weight / largest).float(), "index": index}

    def _beta_now(self) -> float | Tensor:
        """Exponent of the importance weights at this draw."""
        if self.numbers is None or self.beta_updates is None:
            return self.beta
        share = (self.numbers.updates.double() / self.beta_updates).clamp_max(1.0)
        return self.beta + (1 - self.beta) * share

    def written(self) -> list[Tensor]:
        """Tensors that draws and new errors change."""
        return [self._blocks, self._sums, self.largest]

    def extend(self, index: Tensor | Sequence[int]) -> None:
        """Give new transitions the largest priority so far."""
        index = torch.as_tensor(index, device=self.priority.device)
        self.priority[index] = self.largest
        self._sum_up(index)

    def leave_out(self, index: Tensor, rows: Tensor) -> None:
        """Never draw those of the transitions `index` (B,) that `rows` names.

        Args:
            index: Of transitions, (B,) int64.
            rows: Mask of those left out, (B,) or (B, 1) bool.
        """
        self._leaves_out = True
        self.priority[index] = torch.where(rows.reshape(-1), 0.0, self.priority[index])
        self._sum_up(index)

    def leave_out_first(self, rows: Tensor) -> None:
        """Leave out those of the first transitions that `rows`, (B,) bool, names."""
        self._leaves_out = True
        self.priority[: len(rows)].masked_fill_(rows, 0.0)
        torch.sum(self._blocks, 1, out=self._sums)

    def add(self, index: Tensor | Sequence[int]) -> None:
        self.extend(index)

    def update_priority(self, index: Tensor, priority: Tensor, **kwargs: object) -> None:
        error = priority.reshape(-1).double()
        value = (error + self.eps) ** self.alpha
        if self._leaves_out:
            value = torch.where(self.priority[index] > 0, value, 0.0)
        self.priority[index] = value
        self.largest.copy_(torch.maximum(self.largest, value.max()))
        self._sum_up(torch.as_tensor(index, device=self.priority.device))

    def _sum_up(self, index: Tensor) -> None:
        """Sum the blocks of some priorities anew."""
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

    def state_dict(self) -> dict[str, object]:
        return {"priority": self.priority, "sums": self._sums, "largest": self.largest}

    def check_state_dict(self, state_dict: object) -> dict[NestedKey, Tensor]:
        """Return the entries of a state that `load_state_dict` takes, or raise ValueError."""
        wanted = {"priority": self.priority, "largest": self.largest}
        if isinstance(state_dict, Mapping) and "sums" in state_dict:
            wanted["sums"] = self._sums
        entries: dict[NestedKey, Entry] = {}
        for name, value in wanted.items():
            entries[name] = Entry(value.dtype, tuple(value.shape), _PRIORITIES)
        return check_entries("DevicePrioritySampler.load_state_dict", state_dict, entries)

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take priorities, or with an `alpha` of 0 only what is left out."""
        found = self.check_state_dict(state_dict)
        # A state does not say whether it leaves transitions out: a priority of 0 in it must stay 0.
        self._leaves_out = True
        priority = found["priority"]
        largest = found["largest"]
        # All are then equally likely, whatever drew before.
        if not self.alpha:
            priority = priority > 0
            largest = torch.ones_like(largest)
        self.priority.copy_(priority)
        self.largest.copy_(largest)
        torch.sum(self._blocks, 1, out=self._sums)
        if self.alpha and "sums" in found:
            self._sums.copy_(found["sums"])

    def dumps(self, path: str | Path) -> None:
        raise NotImplementedError("DevicePrioritySampler: save DeviceReplay.state_dict()")

    def loads(self, path: str | Path) -> None:
        raise NotImplementedError("DevicePrioritySampler: use DeviceReplay.load_state_dict()")


def _below(values: Tensor, bound: Tensor) -> Tensor:
    """Values, or the largest number below the bound where they reach it."""
    return torch.minimum(values, bound.nextafter(bound - 1))
