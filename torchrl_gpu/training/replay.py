"""Replay on the device, uniform or prioritised, without a host read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey, TensorDict
from torch import Tensor
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler, Sampler
from torchrl.data.replay_buffers.storages import Storage

from torchrl_gpu.arguments import shown, whole
from torchrl_gpu.envs.entries import Bounds, Entry, check_entries

_ENTRIES = {"capacity", "size", "transitions", "writer", "sampler"}


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
        self._blocks = torch.zeros(-(-capacity // _BLOCK), _BLOCK, device=device, dtype=torch.float64)
        self._sums = torch.zeros(len(self._blocks), device=device, dtype=torch.float64)  # of each block as it is
        self.priority = self._blocks.view(-1)[:capacity]
        self.largest = torch.ones((), device=device, dtype=torch.float64)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict]:
        """Indices (B,) int64, and `priority_weight` (B,) float32, at most 1."""
        ends = self._sums.cumsum(0)
        total = ends[-1]
        share = torch.rand(batch_size, device=total.device, dtype=total.dtype)
        spot = (torch.arange(batch_size, device=total.device) + share) / batch_size * total
        spot = _below(spot, total)  # rounded up to the total, it would lie behind it
        block = torch.searchsorted(ends, spot, right=True).clamp_max(len(ends) - 1)
        inner = self._blocks[block].cumsum(1)  # (B, priorities of a block)
        rest = _below((spot - ends[block] + self._sums[block]).clamp_min(0), inner[:, -1])
        index = block * inner.shape[1] + torch.searchsorted(inner, rest[:, None], right=True).squeeze(1)
        index = index.clamp_max(len(storage) - 1)
        chance = self.priority[index] / total
        weight = (len(storage) * chance).clamp_min(1e-12) ** -self.beta
        return index, {"priority_weight": (weight / weight.max()).float(), "index": index}

    def extend(self, index: Any) -> None:
        """New transitions get the largest priority so far."""
        index = torch.as_tensor(index, device=self.priority.device)
        self.priority[index] = self.largest
        self._sum_up(index)

    def leave_out(self, index: Tensor, rows: Tensor) -> None:
        """Never draws those of the transitions `index` (B,) for which `rows`, bool (B,) or (B, 1), is true."""
        self.priority[index] = torch.where(rows.reshape(-1), 0.0, self.priority[index])
        self._sum_up(index)

    def add(self, index: Any) -> None:
        """As `extend`, for one."""
        self.extend(index)

    def update_priority(self, index: Any, priority: Any, **kwargs: Any) -> None:
        """Takes new errors (B,) or (B, 1)."""
        value = (priority.reshape(-1).double() + self.eps) ** self.alpha
        self.priority[index] = value
        self.largest = torch.maximum(self.largest, value.max())
        self._sum_up(torch.as_tensor(index, device=self.priority.device))

    def _sum_up(self, index: Tensor) -> None:
        """Sums again the blocks of some priorities that have changed."""
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
        """Priorities, and their sums as they were rounded."""
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
        """Takes priorities; where `alpha` is 0, only which transitions are left out.

        Raises:
            ValueError: They are no priorities of this many transitions; nothing has changed then.
        """
        self.check_state_dict(state_dict)
        priority, largest = state_dict["priority"], state_dict["largest"]
        if not self.alpha:  # equally likely, whatever drew before
            priority, largest = priority > 0, torch.ones_like(largest)
        self.priority.copy_(priority)
        self.largest.copy_(largest)
        torch.sum(self._blocks, 1, out=self._sums)
        if self.alpha and "sums" in state_dict:
            self._sums.copy_(state_dict["sums"])

    def dumps(self, path: str | Path) -> None:
        """Not used: see `replay_state`."""
        raise NotImplementedError("DevicePrioritySampler: save a replay with replay_state")

    def loads(self, path: str | Path) -> None:
        """Not used: see `restore_replay`."""
        raise NotImplementedError("DevicePrioritySampler: load a replay with restore_replay")


def _below(values: Tensor, bound: Tensor) -> Tensor:
    """The same, but less than a bound."""
    return torch.minimum(values, bound.nextafter(bound - 1))


def replay_buffer(
    capacity: int,
    batch_size: int,
    device: torch.device,
    *,
    prioritized: bool = False,
    alpha: float = 0.6,
    beta: float = 0.4,
    masked: bool = False,
) -> TensorDictReplayBuffer:
    """A `TensorDictReplayBuffer` whose storage, indices and priorities are on `device`.

    Args:
        capacity: Transitions kept.
        batch_size: Transitions of a sample.
        device: Of everything.
        prioritized: Whether it draws by `td_error`; otherwise all are equally likely.
        alpha, beta: As in `DevicePrioritySampler`.
        masked: Whether transitions can be left out by `sampler.leave_out`.
    """
    sampler: Sampler = RandomSampler()
    if prioritized or masked:
        sampler = DevicePrioritySampler(capacity, *((alpha, beta) if prioritized else (0.0, 0.0)), device=device)
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity, device=device, compilable=True),  # else each write reads its cursor back
        sampler=sampler,
        batch_size=batch_size,
        priority_key="td_error",
        pin_memory=False,
        prefetch=None,
    )


def replay_state(replay: TensorDictReplayBuffer) -> dict[str, Any]:
    """A replay as tensors and plain values: transitions, where the next go, priorities.

    TorchRL's own `dumps` leaves a pickle that its `loads` would run; this can be read with `weights_only`.
    """
    size, capacity = len(replay), replay.storage.max_size
    transitions = replay.storage[:size] if size else TensorDict(batch_size=[0])
    return {
        "capacity": capacity,
        "size": size,
        "transitions": (transitions if size == capacity else transitions.clone()).to_dict(),  # a view saves all of it
        "writer": replay.writer.state_dict(),
        "sampler": replay.sampler.state_dict(),
    }


def restore_replay(
    replay: TensorDictReplayBuffer,
    state: Any,
    where: str = "replay",
    entries: Mapping[NestedKey, Entry] | None = None,
) -> None:
    """Fills an empty replay with what `replay_state` gave.

    Args:
        replay: The empty one.
        state: That state.
        where: Names it in errors.
        entries: What a transition must hold, without batch axes, such as `Rollout.transition_entries` gives.

    Args:
        replay: The empty one.
        checkpoint: The file that the replay lies beside.
        entries: What a transition must hold, without batch axes, such as `Rollout.transition_entries` gives.

    Raises:
        ValueError: It is something else, a replay of another size, or transitions that cannot be of this run. Nothing
            has changed then.
    """
    if not isinstance(state, dict) or (missing := _ENTRIES - set(state)):
        got = f"no {sorted(missing)[0]} in it" if isinstance(state, dict) else f"a {type(state).__name__}"
        raise ValueError(f"{where}: want what replay_state gives; got {got}")
    most = replay.storage.max_size
    capacity = whole(where, "capacity", state["capacity"], 0)
    if capacity != most:
        raise ValueError(f"{where}: want one for {most} transitions, as this run keeps; got one for {capacity}")
    size = whole(where, "size", state["size"], 0, most)
    transitions = _checked_transitions(where, state["transitions"], size, entries or {}) if size else None
    writer = _checked_writer(where, replay.writer.state_dict(), state["writer"], most)
    if state["sampler"] and isinstance(replay.sampler, DevicePrioritySampler):
        try:
            replay.sampler.check_state_dict(state["sampler"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    if transitions is not None:
        replay.extend(transitions.to(replay.storage.device))
    replay.writer.load_state_dict(writer)
    if state["sampler"]:  # else the run that wrote it drew uniformly, and all are equally likely
        replay.sampler.load_state_dict(state["sampler"])


def _checked_transitions(where: str, given: Any, size: int, entries: Mapping[NestedKey, Entry]) -> TensorDict:
    check_entries(where, given, {key: entry.behind(size) for key, entry in entries.items()}, more=True)
    try:
        return TensorDict(given, batch_size=[size])
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: want entries of {size} transitions; got {str(error).splitlines()[0]}") from error


def _checked_writer(where: str, present: Mapping[str, Any], given: Any, most: int) -> dict[str, int]:
    if not isinstance(given, Mapping) or set(given) != set(present):
        raise ValueError(f"{where}: want a writer of {sorted(present)}; got {shown(given)}")
    limits = {"_cursor": most}
    return {name: whole(where, f"writer {name}", value, 0, limits.get(name, 2**62)) for name, value in given.items()}
