"""Replay of clips, whose frames are kept once, as bytes on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.clips import STORED_KEYS
from torchrl_gpu.envs.memory import Placement, Staging, place
from torchrl_gpu.envs.state_validation import Bounds, Entry, check_entries
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.training.replay.buffer import DeviceReplay
from torchrl_gpu.training.replay.priorities import DevicePrioritySampler

# Frames per transition: the last picture of an episode belongs to no action.
_MORE = 1.02
_LAST = 2**62


class ClipReplay(DeviceReplay):
    """A `DeviceReplay` of environments that show clips.

    It keeps the frames, each once, and gathers clips from them. Of T frames a clip, that is a T-th of what stacked
    clips take, and a 2T-th where next clips are kept, too. A clip crosses neither the beginning of an episode nor to
    another environment; transitions whose frames have been overwritten are never drawn. Frames are kept for episodes of
    50 steps or more; of shorter ones, which have more last pictures, somewhat fewer than `capacity` transitions can be
    drawn.

    Frames go to the device, or to pinned host memory from which clips are staged, by `storage`.

    Args:
        batch_size, device, masked, capacity, prioritized, alpha, beta, beta_updates: As in `DeviceReplay`.
        storage: As there; "auto" is decided for frames and for the rest of transitions each by itself.
    """

    # Transitions that have lost frames.
    leaves_out = True
    frames: FrameStore
    """Made by `codec_for`."""

    def codec_for(self, env: BatchedEnv) -> FrameStore:
        """Codec that takes the frames out of an environment's steps."""
        names = [str(key) for key in env.stored_keys]
        if not set(STORED_KEYS) <= set(names):
            raise ValueError(
                f"ClipReplay: {type(env).__name__} must show clips and keep {' and '.join(STORED_KEYS)}, and keeps"
                f" {', '.join(names)}"
            )
        picture = env.observation_spec["frame"].shape[1:]
        of_transitions = int(-(-self.capacity * _MORE // env.num_envs))
        per_env = of_transitions + env.observation_spec["clip"].shape[1]
        self.frames = FrameStore(env.num_envs, per_env, picture, self._device, self._wanted)
        return self.frames

    @property
    def num_bytes(self) -> int:
        """Memory that it takes on the device of samples, frames included."""
        if self.frames.staged:
            return super().num_bytes
        return super().num_bytes + self.frames.num_bytes

    def extend(self, transitions: TensorDictBase, **kwargs: object) -> Tensor:
        """Add transitions (B,) without their frames, and give their indices (B,).

        `codec_for(env).packed` has taken the frames.
        """
        index = super().extend(transitions, **kwargs)
        # On the host, where the storage is there.
        kept = self.storage[: len(self)]
        end = kept.get("frame_at").to(self._device)
        next_end = kept.get(("next", "frame_at")).to(self._device)
        lost = ~self.frames.has(end, next_end)
        cast("DevicePrioritySampler", self.sampler).leave_out_first(lost)
        return index

    def clips(self, frame_at: Tensor, length: int) -> Tensor:
        """Clips (B, T, C, H, W) uint8 of T frames that end at `frame_at`, (B, 3).

        See `envs.clips.clip_specs`.
        """
        return self.frames.clips(frame_at, length)

    def extra_state(self) -> dict[str, object]:
        return {"frames": self.frames.state_dict()}

    def load_extra_state(self, where: str, state: Mapping[str, object]) -> None:
        self.frames.load_state_dict(state.get("frames"), where)


class FrameStore:
    """The last pictures of each environment, in a ring of its own.

    They are found by environment and number.

    Args:
        num_envs: N.
        capacity: Pictures kept of each environment, F.
        picture: Their shape, (C, H, W).
        device: Of what is given and read.
        storage: As in `ClipReplay`.
    """

    def __init__(
        self, num_envs: int, capacity: int, picture: torch.Size, device: torch.device, storage: Placement = "auto"
    ) -> None:
        self.capacity = capacity
        self.device = torch.device(device)
        shape = num_envs, capacity, *picture
        home = place("ClipReplay", "frames", math.prod(shape), self.device, storage)
        self.staged = storage == "host" or home != self.device
        self._stage = Staging("ClipReplay", "clips", self.device)
        # Zeros, since it is saved whole, and leftovers of memory are nobody's business.
        self.pictures = torch.zeros(shape, dtype=torch.uint8, device=home)
        self._newest = torch.full((num_envs,), -1, dtype=torch.int64, device=self.device)
        self._first = torch.full_like(self._newest, _LAST)

    @property
    def num_bytes(self) -> int:
        """Memory of the pictures."""
        return self.pictures.nbytes

    # -- what a rollout does with it: see `Rollout`'s `store` --------------------------------------------------------

    def packed(self, steps: TensorDictBase) -> TensorDictBase:
        """Keep the pictures of steps (N, S), in order, and take them out, in place.

        Steps without any stay so.
        """
        # Iterating over a tensordict would give its rows.
        if "frame" not in steps.keys():  # noqa: SIM118
            return steps
        after = steps.get("next")
        for part in (after, steps):
            self._write(part.get("frame"), part.get("frame_at")[..., 1])
        earliest = steps.get("frame_at")[:, 0, 1]
        self._first = torch.minimum(self._first, earliest)
        self._newest = after.get("frame_at")[:, -1, 1].clone()
        steps.set("next", after.exclude("frame"))
        return steps.exclude("frame", inplace=True)

    def entries(self, shown: dict[NestedKey, Entry]) -> dict[NestedKey, Entry]:
        most = torch.tensor([len(self.pictures) - 1, _LAST, self.capacity - 1], dtype=torch.int64, device="cpu")
        kept = {key: entry for key, entry in shown.items() if key not in ("frame", "clip")}
        bounds = Bounds(torch.zeros_like(most), most)
        return kept | {"frame_at": Entry(torch.int64, (3,), bounds)}

    def _write(self, frames: Tensor, number: Tensor) -> None:
        row = torch.arange(len(frames), device=number.device, dtype=torch.int64)[:, None]
        at = number.remainder(self.capacity)
        if self.staged:
            row = row.cpu()
            at = at.cpu()
            frames = frames.cpu()
        self.pictures[row, at] = frames

    # -- what a replay does with it ---------------------------------------------------------------------------------

    def has(self, frame_at: Tensor, later: Tensor) -> Tensor:
        """Mask (B,) of clips whose pictures, and next ones, are all there.

        Args:
            frame_at: Ends of the clips, (B, 3).
            later: Ends of the next clips, (B, 3).
        """
        row, number, earlier = frame_at.unbind(1)
        oldest_in_ring = self._newest - self.capacity + 1
        oldest = torch.maximum(self._first, oldest_in_ring)
        return (number - earlier >= oldest[row]) & (later[:, 1] <= self._newest[row])

    def clips(self, frame_at: Tensor, length: int) -> Tensor:
        """Clips as `ClipReplay.clips` gives them.

        A row that there is not is read as the nearest, as a bad index would end CUDA.
        """
        row, number, earlier = frame_at.unbind(1)
        back = torch.arange(length - 1, -1, -1, device=frame_at.device, dtype=torch.int64)
        # Pictures before the first of an episode are another one's: the first stands in for them.
        place = (number[:, None] - torch.minimum(back, earlier[:, None])).remainder(self.capacity)
        ring = row.clamp(0, len(self.pictures) - 1)[:, None] * self.capacity
        at = (ring + place).flatten().to(self.pictures.device)
        # Each picture is selected as a whole, which is five times as fast as by index.
        pictures = self.pictures.flatten(2).flatten(0, 1)
        found = pictures.index_select(0, at).view(len(row), length, *self.pictures.shape[2:])
        return self._stage(found) if self.staged else found

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        used = min(self.capacity, int(self._newest.max()) + 1)
        # A view would save all of them.
        frames = self.pictures if used == self.capacity else self.pictures[:, :used].clone()
        return {"frames": frames, "newest": self._newest, "first": self._first}

    def load_state_dict(self, state: object, where: str = "FrameStore.load_state_dict") -> None:
        """Restore a state from `state_dict`.

        Raises:
            ValueError: It is something else. Nothing has changed then.
        """
        frames = state.get("frames") if isinstance(state, Mapping) else None
        used = frames.shape[1] if isinstance(frames, Tensor) and frames.ndim == self.pictures.ndim else 0
        if not 0 <= used <= self.capacity:
            raise ValueError(f"{where}: more than {self.capacity} frames of an environment: {shown(frames)}")
        shape = self.pictures.shape
        rows = tuple(self._newest.shape)
        # Unless the ring is full, the newest picture of every environment is among those of the file.
        most = _LAST if used == self.capacity else used - 1
        wanted: dict[NestedKey, Entry] = {}
        wanted["frames"] = Entry(torch.uint8, (shape[0], used, *shape[2:]))
        wanted["newest"] = Entry(torch.int64, rows, Bounds(-1, most))
        wanted["first"] = Entry(torch.int64, rows, Bounds(0, _LAST))
        found = check_entries(f"{where}: frames", state, wanted)
        self.pictures[:, :used] = found["frames"]
        self._newest.copy_(found["newest"])
        self._first.copy_(found["first"])
