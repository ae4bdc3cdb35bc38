"""Decoded demonstrations: every frame once, as uint8 on the device, and clips of them by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import NestedKey, TensorDict
from torch import Tensor

from torchrl_gpu.envs.memory import Staging
from torchrl_gpu.system import arguments


class Video(NamedTuple):
    """A video of a store, or one that was skipped."""

    name: str  # its path
    frames: int = 0  # in the store
    height: int = 0  # 0 where it is unknown, as width and fps
    width: int = 0
    fps: float = 0.0
    problem: str = ""  # why it was skipped; "" where it was not


class ClipStore:
    """F frames of E episodes, each stored once, and the rows recorded beside them.

    Frames are in the order of their episodes. Indices of frames are clamped to 0 … F − 1.

    Args:
        frames: (F, 3, H, W) uint8 RGB, on the device, or in host memory, from where clips are staged.
        lengths: Frames of each episode, E of them.
        rows: (F,) entries beside the frames, such as `action`.
        fps: Frames per second.
        device: Where clips are wanted; None for that of `frames`.
        image_key: TorchRL's key of the pictures in the dataset.
        tasks: Descriptions by `task_index`.
        stats: `mean`, `std`, `min`, `max` and the like by feature.
        videos: Sources of the frames, with those that were skipped.

    Attributes:
        episode: (F,) int64, index of the frame's episode.
        frame: (F,) int64, index of the frame in its episode.
        first: (F,) int64, index of the first frame of its episode.
    """

    def __init__(
        self,
        frames: Tensor,
        lengths: Sequence[int],
        rows: TensorDict,
        *,
        fps: float,
        device: torch.device | None = None,
        image_key: NestedKey = "pixels",
        tasks: Mapping[int, str] | None = None,
        stats: Mapping[str, Mapping[str, Any]] | None = None,
        videos: Sequence[Video] = (),
    ) -> None:
        where = type(self).__name__
        arguments.tensor(where, "frames", frames, torch.uint8, (None, 3, None, None))
        if not lengths or min(lengths) < 1 or sum(lengths) != len(frames) or tuple(rows.shape) != (len(frames),):
            wanted = "lengths of episodes that add up to the frames, and as many rows"
            raise ValueError(f"{where}: want {wanted}; got {sum(lengths)}, {len(frames)} and {tuple(rows.shape)}")
        self.device = device or frames.device
        self.frames, self.lengths, self.fps, self.image_key = frames, list(lengths), float(fps), image_key
        self.tasks, self.videos = dict(tasks or {}), list(videos)
        self._stage = Staging(where, "clips", self.device)
        real: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        self.stats = {
            feature: {word: torch.as_tensor(values, **real).float() for word, values in each.items()}
            for feature, each in (stats or {}).items()
        }
        self.rows = rows.to(self.device)
        length = torch.tensor(self.lengths, dtype=torch.int64, device="cpu")
        begin, number = length.cumsum(0) - length, torch.arange(len(length), dtype=torch.int64, device="cpu")
        self.first, self.episode = (each.repeat_interleave(length).to(self.device) for each in (begin, number))
        self.frame = torch.arange(len(frames), device=self.device, dtype=torch.int64) - self.first

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.lengths)

    @property
    def size(self) -> tuple[int, int]:
        """H and W."""
        return self.frames.shape[2], self.frames.shape[3]

    @property
    def skipped(self) -> dict[str, str]:
        """Reasons of the videos that were skipped, by name."""
        return {video.name: video.problem for video in self.videos if video.problem}

    def clips(self, index: Tensor, length: int) -> Tensor:
        """Clips (B, T, 3, H, W) uint8 that end with the frames `index` (B,) int64; `length` is T.

        An episode's first frame is repeated where there are fewer before it. Indices are read back only for staging.
        """
        index = index.to(self.device).clamp(0, len(self) - 1)
        back = torch.arange(1 - length, 1, device=self.device, dtype=torch.int64)
        at = torch.maximum(index[:, None] + back, self.first[index][:, None])  # (B, T)
        shape = (len(index), length, *self.frames.shape[1:])
        if self.frames.device == self.device:  # not frames[at], which copies byte by byte on a CPU
            return self.frames.index_select(0, at.flatten()).view(shape)
        return self._stage(self.frames.index_select(0, at.flatten().cpu()).view(shape))

    def batch(self, index: Tensor, length: int) -> TensorDict:
        """Clips that end with the frames `index`, and the rows of these: (B,)."""
        index = index.to(self.device).clamp(0, len(self) - 1)
        return self.rows[index].set("clip", self.clips(index, length))
