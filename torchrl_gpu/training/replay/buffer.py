"""Replay on the device, or staged through pinned host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import Sampler

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.clips import STORED_KEYS
from torchrl_gpu.envs.memory import Placement, Staging, place
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import section
from torchrl_gpu.training.collect.rollout import Codec
from torchrl_gpu.training.replay.draws import DrawNumbers, UniformSampler
from torchrl_gpu.training.replay.priorities import DevicePrioritySampler

ReplayFactory = Callable[[int, torch.device, bool], TensorDictReplayBuffer]
"""Makes the empty replay of a run.

As of `DeviceReplay`, its first arguments are the transitions of a sample, their device, and whether some will be left
out.
"""


class DeviceReplay(TensorDictReplayBuffer):
    """Transitions on the device, written, drawn and weighted without a host read.

    Where they do not fit, they are kept in host memory and staged: a sample is gathered into pinned memory and copied
    from there; indices and priorities stay on the device.

    Args:
        batch_size: Transitions of a sample.
        device: Of samples.
        masked: Whether transitions can be left out of samples, see `leave_out`.
        capacity: Transitions kept; the oldest are overwritten.
        prioritized: Whether transitions are drawn by `td_error` (Schaul et al. 2016); otherwise all are equally likely.
        alpha: Exponent of the priorities.
        beta: Exponent of the importance weights at the first update.
        beta_updates: Updates after which that exponent has gone to 1; None leaves it.
        storage: "device", "host", or "auto": the device where `capacity` transitions like the first ones fit into most
            of its free memory, else the host; the choice is logged.
    """

    leaves_out: ClassVar[bool] = False
    """Whether it leaves transitions out of samples by itself, `masked` or not."""

    def __init__(
        self,
        batch_size: int,
        device: torch.device,
        masked: bool = False,
        *,
        capacity: int = 100_000,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_updates: int | None = None,
        storage: Placement = "auto",
    ) -> None:
        where = type(self).__name__
        arguments.choice(where, "storage", storage, ("auto", "device", "host"))
        for name, count in (("capacity", capacity), ("batch_size", batch_size)):
            arguments.whole(where, name, count, 1)
        arguments.optional(arguments.whole, where, "beta_updates", beta_updates, 1)
        arguments.number(where, "alpha", alpha, 0, 1)
        arguments.number(where, "beta", beta, 0, 1)
        if not prioritized:
            exponents = {"alpha": (alpha, 0.6), "beta": (beta, 0.4), "beta_updates": (beta_updates, None)}
            arguments.check_effect(where, "prioritized", **exponents)
        self.prioritized = prioritized
        self._first_beta = beta
        self._beta_updates = beta_updates
        # Where transitions were asked for, and where they are.
        self._wanted = storage
        self._kind = storage
        self._device = torch.device(device)
        self._numbers: DrawNumbers | None = None
        sampler: Sampler = UniformSampler()
        if prioritized or masked or self.leaves_out:
            used = (alpha, beta) if prioritized else (0.0, 0.0)
            sampler = DevicePrioritySampler(capacity, *used, device=self._device)
        if storage == "host":
            memory: LazyTensorStorage = HostStorage(capacity, self._device)
        else:
            # Of a storage that is not compilable each write would read its cursor back.
            memory = LazyTensorStorage(capacity, device=self._device, compilable=True)
        super().__init__(
            storage=memory,
            sampler=sampler,
            batch_size=batch_size,
            priority_key="td_error",
            pin_memory=False,
            prefetch=None,
        )

    @property
    def capacity(self) -> int:
        """Transitions kept, at most."""
        return self.storage.max_size

    @property
    def num_bytes(self) -> int:
        """Memory that it takes on the device of samples."""
        if self._kind == "host" or not len(self):
            return 0
        size = len(self)
        filled = self.storage[:size]
        return filled.bytes() // size * self.capacity

    def extend(self, transitions: TensorDictBase, **kwargs: object) -> Tensor:
        """Add transitions (B,), and give their indices (B,)."""
        if self._kind == "auto":
            # Only now is it known how large a transition is.
            per_transition = transitions.bytes() // max(1, len(transitions))
            needed = per_transition * self.capacity
            home = place(type(self).__name__, "transitions", needed, self._device)
            self._kind = "device" if home == self._device else "host"
            if self._kind == "host":
                self.set_storage(HostStorage(self.capacity, self._device), self._collate_fn)
                self.storage.attach(self)
                # `set_storage` leaves the writer with the old storage.
                self.writer.register_storage(self.storage)
        index = super().extend(transitions, **kwargs)
        if self._kind == "device" and self._device.type == "cuda":
            self.keep_numbers_on_device()
        return index

    def keep_numbers_on_device(self) -> None:
        """Let draws read all that changes between them from the device.

        A CUDA graph can hold them then.
        """
        sampler = self.sampler
        if self._numbers is None:
            self._numbers = sampler.numbers = DrawNumbers(self._device)
            if self.prioritized:
                sampler.beta = self._first_beta
                sampler.beta_updates = self._beta_updates
        self._numbers.set_size(len(self))

    @property
    def draws_on_device(self) -> bool:
        """Whether draws read nothing of the host, so that a CUDA graph can hold them."""
        return self._numbers is not None

    def written_by_draws(self) -> list[Tensor]:
        """Tensors that draws and new errors change."""
        sampler = self.sampler
        own = sampler.written() if isinstance(sampler, DevicePrioritySampler) else []
        if self._numbers is None:
            return own
        return [*own, self._numbers.updates]

    def sample(self, *args: object, **kwargs: object) -> TensorDictBase:
        """Transitions (B,) with their `index`.

        They have a `priority_weight` where they are not equally likely.
        """
        if self._numbers is None or args or kwargs:
            return super().sample(*args, **kwargs)
        index, info = self.sampler.sample(self.storage, self.batch_size)
        # The whole of the memory: as much of it as is full would be another size at every draw.
        batch = self.storage._storage[index]
        for name, value in {"index": index, **info}.items():
            batch.set(name, value)
        return batch

    def codec_for(self, env: BatchedEnv) -> Codec | None:
        """Codec of a rollout for an environment's transitions, if any are packed.

        See `Rollout`.
        """
        if set(STORED_KEYS) <= set(env.stored_keys):
            raise ValueError(
                f"{type(self).__name__}: {type(env).__name__} shows clips, of which it keeps"
                f" {', '.join(env.stored_keys)}: take torchrl_gpu.training.ClipReplay"
            )
        return None

    def extra_state(self) -> dict[str, object]:
        """State for checkpoints, but transitions, priorities and the write position."""
        return {}

    def load_extra_state(self, where: str, state: Mapping[str, object]) -> None:
        """Restore a state from `extra_state`.

        Raises:
            ValueError: It is something else. Nothing has changed then.
        """

    def leave_out(self, index: Tensor, rows: Tensor) -> None:
        """Never draw those of the transitions `index` (B,) that `rows` names.

        Args:
            index: Of transitions, (B,) int64.
            rows: Mask of those left out, (B,) or (B, 1) bool.
        """
        cast("DevicePrioritySampler", self.sampler).leave_out(index, rows)

    def set_updates(self, updates: int) -> None:
        """Let the exponent of the importance weights follow the number of updates."""
        if self._numbers is not None and self._beta_updates is not None:
            self._numbers.set_updates(updates)
        elif self.prioritized:
            share = 0.0 if self._beta_updates is None else min(1.0, updates / self._beta_updates)
            beta = self._first_beta + (1 - self._first_beta) * share
            cast("DevicePrioritySampler", self.sampler).beta = beta

    def update_priority(self, index: Tensor, priority: Tensor, **kwargs: object) -> None:
        """Take the new errors (B,) or (B, 1) of transitions.

        It does nothing where all are equally likely.
        """
        if self.prioritized:
            super().update_priority(index, priority, **kwargs)


class HostStorage(LazyTensorStorage):
    """Transitions in host memory, read onto a device.

    They go through pinned memory where that can be had.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        super().__init__(capacity, device="cpu", compilable=True)
        self._stage = Staging("DeviceReplay", "samples", device)

    def get(self, index: object) -> TensorDictBase:
        found = super().get(index.cpu() if isinstance(index, Tensor) else index)
        # A slice is read to be saved.
        if not isinstance(index, Tensor):
            return found
        with section("transfer"):
            return self._stage(found)

    def set(self, cursor: object, data: object, **kwargs: object) -> None:
        cursor = cursor.cpu() if isinstance(cursor, Tensor) else cursor
        with section("transfer"):
            data = data.to("cpu") if isinstance(data, TensorDictBase) else data
        super().set(cursor, data, **kwargs)


def replay_buffer(
    capacity: int,
    batch_size: int,
    device: str | torch.device = "cpu",
    *,
    prioritized: bool = False,
    alpha: float = 0.6,
    beta: float = 0.4,
    masked: bool = False,
) -> DeviceReplay:
    """A `DeviceReplay` for loops of one's own, with the arguments of the class."""
    return DeviceReplay(
        batch_size,
        torch.device(device),
        masked,
        capacity=capacity,
        prioritized=prioritized,
        alpha=alpha,
        beta=beta,
        storage="device",
    )
