"""Decoded demonstrations: every frame once, as uint8, and clips by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from tensordict import NestedKey, TensorDict
from torch import Tensor

from torchrl_gpu.demonstrations.recordings import Stats
from torchrl_gpu.envs.memory import Staging
from torchrl_gpu.system import arguments


class Video(NamedTuple):
    """A video of a store, or one that was skipped.

    Attributes:
        name: Its path.
        frames: In the store.
        height, width, fps: 0 if they are unknown.
        problem: Why it was skipped; "" if it was not.
    """

    name: str
    frames: int = 0
    height: int = 0
    width: int = 0
    fps: float = 0.0
    problem: str = ""


class ClipStore:
    """F frames of E episodes, each stored once, and the rows recorded with them.

    Storing clips would hold every frame T times. Frames are in the order of their episodes. Indices of frames are
    clamped to 0 … F − 1.

    Args:
        frames: (F, 3, H, W) uint8 RGB, on the device, or in host memory, from where clips are staged.
        lengths: Frames of each episode, E of them.
        rows: (F,) entries of each frame, such as `action`.
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

    Raises:
        ValueError: Frames, lengths and rows do not fit together.
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
        stats: Stats | None = None,
        videos: Sequence[Video] = (),
    ) -> None:
        where = type(self).__name__
        arguments.tensor(where, "frames", frames, torch.uint8, (None, 3, None, None))
        if not lengths or min(lengths) < 1 or sum(lengths) != len(frames) or tuple(rows.shape) != (len(frames),):
            raise ValueError(
                f"{where}: lengths must be at least 1 and add up to the frames, and there must be as many rows;"
                f" they add up to {sum(lengths)}, for {len(frames)} frames and rows of shape {tuple(rows.shape)}"
            )
        self.device = device or frames.device
        self.frames = frames
        self.lengths = list(lengths)
        self.fps = float(fps)
        self.image_key = image_key
        self.tasks = dict(tasks or {})
        self.videos = list(videos)
        self.stats = {feature: _as_tensors(words) for feature, words in (stats or {}).items()}
        self.rows = rows.to(self.device)
        self._stage = Staging(where, "clips", self.device)
        # Made on the host, where the lengths are, so that nothing waits for the device.
        length = torch.tensor(self.lengths, dtype=torch.int64, device="cpu")
        begin = length.cumsum(0) - length
        number = torch.arange(len(length), dtype=torch.int64, device="cpu")
        self.first = begin.repeat_interleave(length).to(self.device)
        self.episode = number.repeat_interleave(length).to(self.device)
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
        """Return clips (B, T, 3, H, W) uint8.

        An episode's first frame is repeated if there are fewer before the last one. Indices are read back only for
        staging.

        Args:
            index: (B,) int64, the last frame of each clip.
            length: T.
        """
        index = index.to(self.device).clamp(0, len(self) - 1)
        back = torch.arange(1 - length, 1, device=self.device, dtype=torch.int64)
        at = torch.maximum(index[:, None] + back, self.first[index][:, None])  # (B, T)
        shape = (len(index), length, *self.frames.shape[1:])
        # Not frames[at], which copies byte by byte on a CPU.
        flat = at.flatten()
        if self.frames.device == self.device:
            return self.frames.index_select(0, flat).view(shape)
        return self._stage(self.frames.index_select(0, flat.cpu()).view(shape))

    def batch(self, index: Tensor, length: int) -> TensorDict:
        """Return clips that end with the frames `index`, with the rows of these: (B,)."""
        index = index.to(self.device).clamp(0, len(self) - 1)
        return self.rows[index].set("clip", self.clips(index, length))


def _as_tensors(words: Mapping[str, Sequence[float]]) -> dict[str, Tensor]:
    """Return the statistics of a feature as float32, rounded once from float64."""
    found: dict[str, Tensor] = {}
    for word, values in words.items():
        found[word] = torch.as_tensor(values, dtype=torch.float64, device="cpu").float()
    return found
