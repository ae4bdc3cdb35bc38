"""Replay of clips: every frame is kept once, as bytes on the device, and clips are gathered by index."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

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

_MORE = 1.02  # frames per transition: the last picture of an episode belongs to no action
_LAST = 2**62


class ClipReplay(DeviceReplay):
    """A `DeviceReplay` of environments that show clips: it keeps the frames, each once, and gathers clips from them.

    Of T frames a clip, that is a T-th of what stacked clips take, and a 2T-th where next clips are kept, too. A clip
    crosses neither the beginning of an episode nor to another environment; transitions whose frames have been
    overwritten are never drawn. Frames are kept for episodes of 50 steps or more; of shorter ones, which have more last
    pictures, somewhat fewer than `capacity` transitions can be drawn.

    Frames go to the device, or to pinned host memory from which clips are staged, by `storage`.

    Args:
        batch_size, device, masked, capacity, prioritized, alpha, beta, beta_updates: As in `DeviceReplay`.
        storage: As there; "auto" is decided for frames and for the rest of transitions each by itself.
    """

    leaves_out = True  # those that have lost frames
    frames: FrameStore
    """Made by `codec_for`."""

    def codec_for(self, env: BatchedEnv) -> FrameStore:
        """Codec that takes the frames out of an environment's steps, before they become transitions."""
        names = [str(key) for key in env.stored_keys]
        if not set(STORED_KEYS) <= set(names):
            raise ValueError(
                f"ClipReplay: want an environment that shows clips, and keeps {' and '.join(STORED_KEYS)};"
                f" {type(env).__name__} keeps {', '.join(names)}"
            )
        picture = env.observation_spec["frame"].shape[1:]
        per_env = int(-(-self.capacity * _MORE // env.num_envs)) + env.observation_spec["clip"].shape[1]
        self.frames = FrameStore(env.num_envs, per_env, picture, self._device, self._wanted)
        return self.frames

    @property
    def num_bytes(self) -> int:
        """Memory that it takes on the device of samples, frames included."""
        return super().num_bytes + self.frames.num_bytes * (not self.frames.staged)

    def extend(self, transitions: TensorDictBase, **kwargs: Any) -> Tensor:
        """Adds transitions (B,) without their frames, which `codec_for(env).packed` has taken; their indices (B,)."""
        index = super().extend(transitions, **kwargs)
        kept = self.storage[: len(self)]  # of a host storage on the host
        ends = [kept.get(key).to(self._device) for key in ("frame_at", ("next", "frame_at"))]
        lost = ~self.frames.has(*ends)
        cast("DevicePrioritySampler", self.sampler).leave_out_first(lost)
        return index

    def clips(self, frame_at: Tensor, length: int) -> Tensor:
        """Clips (B, T, C, H, W) uint8 of T frames that end at `frame_at`, (B, 3), see `envs.clips.clip_specs`."""
        return self.frames.clips(frame_at, length)

    def extra_state(self) -> dict[str, Any]:
        return {"frames": self.frames.state_dict()}

    def load_extra_state(self, where: str, state: Mapping[str, Any]) -> None:
        self.frames.load_state_dict(state.get("frames"), where)


class FrameStore:
    """The last pictures of each environment, in a ring of its own, found by environment and number.

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
        self.capacity, self.device = capacity, torch.device(device)
        shape = num_envs, capacity, *picture
        home = place("ClipReplay", "frames", math.prod(shape), self.device, storage)
        self.staged = storage == "host" or home != self.device
        self._stage = Staging("ClipReplay", "clips", self.device)
        self._frames = torch.zeros(shape, dtype=torch.uint8, device=home)  # saved whole: no leftovers of memory
        self._newest = torch.full((num_envs,), -1, dtype=torch.int64, device=self.device)
        self._first = torch.full_like(self._newest, _LAST)

    @property
    def num_bytes(self) -> int:
        return self._frames.nbytes

    # -- what a rollout does with it: see `Rollout`'s `store` --------------------------------------------------------

    def packed(self, steps: TensorDictBase) -> TensorDictBase:
        """Keeps the pictures of steps (N, S), in order, and takes them out; in place. Those without any stay so."""
        if "frame" not in steps.keys():  # noqa: SIM118  # of a tensordict
            return steps
        after = steps.get("next")
        for part in (after, steps):
            self._write(part.get("frame"), part.get("frame_at")[..., 1])
        self._first = torch.minimum(self._first, steps.get("frame_at")[:, 0, 1])
        self._newest = after.get("frame_at")[:, -1, 1].clone()
        steps.set("next", after.exclude("frame"))
        return steps.exclude("frame", inplace=True)

    def entries(self, shown: dict[NestedKey, Entry]) -> dict[NestedKey, Entry]:
        most = torch.tensor([len(self._frames) - 1, _LAST, self.capacity - 1], dtype=torch.int64, device="cpu")
        kept = {key: entry for key, entry in shown.items() if key not in ("frame", "clip")}
        return kept | {"frame_at": Entry(torch.int64, (3,), Bounds(torch.zeros_like(most), most))}

    def _write(self, frames: Tensor, number: Tensor) -> None:
        row = torch.arange(len(frames), device=number.device, dtype=torch.int64)[:, None]
        at = number.remainder(self.capacity)
        if self.staged:
            row, at, frames = row.cpu(), at.cpu(), frames.cpu()
        self._frames[row, at] = frames

    # -- what a replay does with it ---------------------------------------------------------------------------------

    def has(self, frame_at: Tensor, later: Tensor) -> Tensor:
        """Mask (B,) of clips, given their ends `frame_at` (B, 3), whose pictures and next ones are all there."""
        row, number, earlier = frame_at.unbind(1)
        oldest = torch.maximum(self._first, self._newest - self.capacity + 1)
        return (number - earlier >= oldest[row]) & (later[:, 1] <= self._newest[row])

    def clips(self, frame_at: Tensor, length: int) -> Tensor:
        """As `ClipReplay.clips`; a row that there is not is read as the nearest, as a bad index would end CUDA."""
        row, number, earlier = frame_at.unbind(1)
        back = torch.arange(length - 1, -1, -1, device=frame_at.device, dtype=torch.int64)
        at = (number[:, None] - torch.minimum(back, earlier[:, None])).remainder(self.capacity)
        at = (row.clamp(0, len(self._frames) - 1)[:, None] * self.capacity + at).flatten().to(self._frames.device)
        pictures = self._frames.flatten(2).flatten(0, 1)  # one as a whole: five times as fast as by index
        found = pictures.index_select(0, at).view(len(row), length, *self._frames.shape[2:])
        return self._stage(found) if self.staged else found

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        used = min(self.capacity, int(self._newest.max()) + 1)
        frames = self._frames if used == self.capacity else self._frames[:, :used].clone()  # a view saves all of it
        return {"frames": frames, "newest": self._newest, "first": self._first}

    def load_state_dict(self, state: Any, where: str = "FrameStore.load_state_dict") -> None:
        """Restores a state from `state_dict`; ValueError, and no change, where it is something else."""
        frames = state.get("frames") if isinstance(state, Mapping) else None
        used = frames.shape[1] if isinstance(frames, Tensor) and frames.ndim == self._frames.ndim else 0
        if not 0 <= used <= self.capacity:
            raise ValueError(f"{where}: want at most {self.capacity} frames of an environment; got {shown(frames)}")
        shape, rows = self._frames.shape, tuple(self._newest.shape)
        most = _LAST if used == self.capacity else used - 1
        wanted: dict[NestedKey, Entry] = {
            "frames": Entry(torch.uint8, (shape[0], used, *shape[2:])),
            "newest": Entry(torch.int64, rows, Bounds(-1, most)),
            "first": Entry(torch.int64, rows, Bounds(0, _LAST)),
        }
        check_entries(f"{where}: frames", state, wanted)
        self._frames[:, : state["frames"].shape[1]] = state["frames"]
        self._newest.copy_(state["newest"])
        self._first.copy_(state["first"])
