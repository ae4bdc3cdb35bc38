"""Video clips as observations: the last pictures of an environment, and the keys to store each once in replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import interpolate
from torchrl.data import Bounded, TensorSpec, Unbounded

from torchrl_gpu.system import arguments

ROW_KEY = "frame_at"
"""Where a frame is, its row in the batch first."""

STORED_KEYS = ("frame", ROW_KEY)
"""Observations of which replay makes clips again."""


@runtime_checkable
class ClipSource(Protocol):
    """Replay that stores frames by the environment and number in `frame_at`."""

    def clips(self, frame_at: Tensor, length: int) -> Tensor:
        """Clips (B, T, C, H, W) of T frames that end at `frame_at`, (B, 3)."""


def clip_specs(length: int, height: int, width: int) -> dict[str, TensorSpec]:
    """Specs of the clip observations of one environment.

    - `clip` (T, 3, H, W) uint8: the last T pictures, the oldest first; before there are T, the first is repeated;
    - `frame` (3, H, W) uint8: the newest of them;
    - `frame_at` (3,) int64: the row of the environment, how many pictures it had shown before this one, episodes before
      included, and how many of the clip's others are of this episode.
    """
    picture = 3, height, width
    return {
        "clip": Bounded(0, 255, (length, *picture), dtype=torch.uint8),
        "frame": Bounded(0, 255, picture, dtype=torch.uint8),
        "frame_at": Unbounded((3,), dtype=torch.int64),
    }


def clip_size(where: str, clip_length: int, frame_size: Sequence[int], least: int) -> tuple[int, tuple[int, int]]:
    """Validated T, and H and W, of at least `least` pixels each."""
    size = arguments.pair(where, "frame_size", "two numbers of pixels", frame_size, least, 4096)
    return arguments.whole(where, "clip_length", clip_length, 1, 1024), size


def first_clip(frame: Tensor, length: int) -> Tensor:
    """Clips (N, T, …) of the first pictures (N, …) of episodes, each repeated T times."""
    return frame[:, None].expand(-1, length, *frame.shape[1:]).contiguous()


def next_clip(clip: Tensor, frame: Tensor) -> Tensor:
    """Clips (N, T, …) with the next pictures (N, …) appended and the oldest dropped."""
    return torch.cat([clip[:, 1:], frame[:, None]], 1)


def seen(clip: Tensor, shown: Tensor, step_count: Tensor) -> dict[str, Tensor]:
    """Observations `clip_specs` of clips (N, T, 3, H, W), pictures shown before the newest (N,) and steps (N,)."""
    earlier = step_count.clamp_max(clip.shape[1] - 1)
    row = torch.arange(len(clip), device=clip.device, dtype=torch.int64)
    return {"clip": clip, "frame": clip[:, -1], "frame_at": torch.stack([row, shown, earlier], 1)}


def sheet(clip: Tensor, width: int, height: int) -> Tensor:
    """Contact sheet of the frames of one clip (T, 3, H, W), row by row, unsmoothed; uint8 (height, width, 3) RGB.

    Frames are enlarged by the largest whole factor for which there is room, and shrunk where there is none.
    """
    length, _, rows, columns = clip.shape
    across = min(range(1, length + 1), key=lambda n: -min(width / (n * columns), height / (-(-length // n) * rows)))
    down = -(-length // across)
    scale = min(width / (across * columns), height / (down * rows))
    size = [max(1, int(side * (int(scale) if scale >= 1 else scale))) for side in (rows, columns)]
    frames = interpolate(clip.float(), size, mode="nearest").to(torch.uint8)
    out = clip.new_zeros(3, height, width)
    for i, frame in enumerate(frames):
        top, left = (i // across) * height // down, (i % across) * width // across
        top, left = top + (height // down - size[0]) // 2, left + (width // across - size[1]) // 2
        out[:, top : top + size[0], left : left + size[1]] = frame
    return out.permute(1, 2, 0).contiguous()


def restore_clips(where: str, batch: TensorDictBase, replay: Any, length: int) -> TensorDictBase:
    """Adds `clip` to states (B,) of replay that have `frame_at`, in place; ValueError if it keeps no frames."""
    if not isinstance(replay, ClipSource):
        raise ValueError(
            f"{where}: want a replay that keeps the frames of clips, such as torchrl_gpu.training.ClipReplay; got"
            f" {type(replay).__name__}"
        )
    return batch.set("clip", replay.clips(batch.get("frame_at"), length))
