"""Video clips as observations, of pictures that replay stores once each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import interpolate
from torchrl.data import Bounded, TensorSpec, Unbounded

from torchrl_gpu.system import arguments

ROW_KEY = "frame_at"
"""Where a frame is, its row in the batch first."""

STORED_KEYS = ("frame", ROW_KEY)
"""Observations from which replay rebuilds clips."""


@runtime_checkable
class ClipSource(Protocol):
    """Replay that stores frames by the environment and number in `frame_at`."""

    def clips(self, frame_at: Tensor, length: int) -> Tensor:
        """Return clips (B, T, C, H, W) of T frames that end at `frame_at`, (B, 3)."""


def clip_specs(length: int, height: int, width: int) -> dict[str, TensorSpec]:
    """Return the specs of the clip observations of one environment.

    - `clip` (T, 3, H, W) uint8: the last T pictures, the oldest first; before there are T, the first is repeated;
    - `frame` (3, H, W) uint8: the newest of them;
    - `frame_at` (3,) int64: the row of the environment, how many pictures it had shown before this one, including those
      of earlier episodes, and how many of the clip's others are of this episode.
    """
    picture = 3, height, width
    return {
        "clip": Bounded(0, 255, (length, *picture), dtype=torch.uint8),
        "frame": Bounded(0, 255, picture, dtype=torch.uint8),
        "frame_at": Unbounded((3,), dtype=torch.int64),
    }


def clip_size(where: str, clip_length: int, frame_size: Sequence[int], least: int) -> tuple[int, tuple[int, int]]:
    """Validate T, and H and W of at least `least` pixels each."""
    size = arguments.pair(where, "frame_size", "two numbers of pixels", frame_size, least, 4096)
    return arguments.whole(where, "clip_length", clip_length, 1, 1024), size


def first_clip(frame: Tensor, length: int) -> Tensor:
    """Return clips (N, T, …) of first pictures (N, …), repeated T times."""
    return frame[:, None].expand(-1, length, *frame.shape[1:]).contiguous()


def next_clip(clip: Tensor, frame: Tensor) -> Tensor:
    """Append the next pictures (N, …) to clips (N, T, …), and drop the oldest."""
    return torch.cat([clip[:, 1:], frame[:, None]], 1)


def clip_observations(clip: Tensor, num_shown: Tensor, step_count: Tensor) -> dict[str, Tensor]:
    """Return the observations of `clip_specs`.

    Args:
        clip: (N, T, 3, H, W) uint8.
        num_shown: Pictures shown before the newest, (N,) int64.
        step_count: Steps of the running episode, (N,) int64.
    """
    earlier = step_count.clamp_max(clip.shape[1] - 1)
    row = torch.arange(len(clip), device=clip.device, dtype=torch.int64)
    return {"clip": clip, "frame": clip[:, -1], "frame_at": torch.stack([row, num_shown, earlier], 1)}


def sheet(clip: Tensor, width: int, height: int) -> Tensor:
    """Draw the frames of one clip (T, 3, H, W) row by row on one sheet.

    Frames are enlarged by the largest whole factor that fits, or shrunk if none does.

    Returns:
        uint8 (height, width, 3), RGB.
    """
    length, _, frame_rows, frame_columns = clip.shape
    across = _best_frames_across(length, frame_rows, frame_columns, width, height)
    down = -(-length // across)
    sheet_columns = across * frame_columns
    sheet_rows = down * frame_rows
    scale = min(width / sheet_columns, height / sheet_rows)
    # Pixels stay squares of one size, so that a person sees what the policy sees.
    if scale >= 1:
        scale = int(scale)
    frame_height = max(1, int(frame_rows * scale))
    frame_width = max(1, int(frame_columns * scale))
    scaled = interpolate(clip.float(), [frame_height, frame_width], mode="nearest")
    frames = scaled.to(torch.uint8)
    out = clip.new_zeros(3, height, width)
    # Each frame is centred in a cell of its own.
    top_margin = (height // down - frame_height) // 2
    left_margin = (width // across - frame_width) // 2
    for i, frame in enumerate(frames):
        top = (i // across) * height // down + top_margin
        left = (i % across) * width // across + left_margin
        rows = slice(top, top + frame_height)
        columns = slice(left, left + frame_width)
        out[:, rows, columns] = frame
    return out.permute(1, 2, 0).contiguous()


def _best_frames_across(length: int, frame_rows: int, frame_columns: int, width: int, height: int) -> int:
    """Return how many frames side by side let each be as large as possible.

    Of several such numbers, it is the least.
    """
    best = 1
    largest_scale = 0.0
    for across in range(1, length + 1):
        down = -(-length // across)
        sheet_columns = across * frame_columns
        sheet_rows = down * frame_rows
        scale = min(width / sheet_columns, height / sheet_rows)
        if scale > largest_scale:
            best = across
            largest_scale = scale
    return best


def restore_clips(where: str, batch: TensorDictBase, replay: object, length: int) -> TensorDictBase:
    """Add `clip`, in place, to states (B,) of replay that have `frame_at`.

    Raises:
        ValueError: The replay keeps no frames.
    """
    if not isinstance(replay, ClipSource):
        raise ValueError(
            f"{where}: the replay must keep the frames of clips, as torchrl_gpu.training.ClipReplay does;"
            f" {type(replay).__name__} keeps none"
        )
    return batch.set("clip", replay.clips(batch.get("frame_at"), length))
