"""Whether two runs are the same: everything in their checkpoints, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.training.replay import replay_file

# What Lightning counts anew when a run is stopped at max_steps in the middle of an epoch, and its own results so far.
LIGHTNINGS_OWN = ("epoch", "loops", "callbacks")


def last(folder: Path) -> Path:
    """The last checkpoint of a run."""
    return folder / "checkpoints" / "last.ckpt"


def everything(checkpoint: Path) -> dict[str, Any]:
    """All that a run consists of: weights, targets, optimizer, schedule, environment, generators, replay."""
    content = torch.load(checkpoint, weights_only=True)
    replay = torch.load(replay_file(checkpoint), weights_only=True)
    return {key: value for key, value in content.items() if key not in LIGHTNINGS_OWN} | {"replay": replay}


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Places at which two trees of tensors and plain values are not the same, bit by bit."""
    if isinstance(ours, dict):
        if set(ours) != set(theirs):
            return [f"{where}: {sorted(set(ours) ^ set(theirs))}"]
        return [found for key in ours for found in differences(ours[key], theirs[key], f"{where}.{key}")]
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return [f"{where}: {len(ours)} and {len(theirs)} entries"]
        pairs = zip(ours, theirs, strict=True)
        return [found for i, (a, b) in enumerate(pairs) for found in differences(a, b, f"{where}[{i}]")]
    same = torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs
    return [] if same else [where]
