"""Comparison of runs: everything in their checkpoints, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchrl_gpu.checkpoints.files import parts_of
from torchrl_gpu.checkpoints.resume import check_resumed, open_checkpoint
from torchrl_gpu.system.archives import ENTRY

# States of callbacks, and the ids of run and checkpoint, and the time.
LIGHTNINGS_OWN = ("callbacks", ENTRY)


def last(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def part_of(checkpoint: Path) -> Path:
    (part,) = parts_of(checkpoint)
    return part


def check_checkpoint(path: Path, module: nn.Module | None = None) -> None:
    """Opens a checkpoint, and compares its weights with a module, as `lightning` does."""
    content = open_checkpoint(path)
    if module is not None:
        check_resumed(path, content, module)


def everything(checkpoint: Path) -> dict[str, Any]:
    """Return all that a run consists of.

    Weights, targets, optimizer, schedule, environment, generators, replay.
    """
    return without_replay(checkpoint) | {"replay": torch.load(part_of(checkpoint), weights_only=True)["replay"]}


def without_replay(checkpoint: Path) -> dict[str, Any]:
    content = torch.load(checkpoint, weights_only=True)
    return {key: value for key, value in content.items() if key not in LIGHTNINGS_OWN}


def as_if_saved_on_cuda(checkpoint: Path) -> Path:
    """The same checkpoint with what one of a CUDA device holds besides."""
    content = torch.load(checkpoint, weights_only=True)
    content["random"]["cuda"] = torch.zeros(16, dtype=torch.uint8)
    for state in content["optimizer_states"]:
        for group in state["param_groups"]:
            group["capturable"] = True
    torch.save(content, checkpoint)
    return checkpoint


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """Return the places at which two trees differ by a bit.

    They hold tensors and plain values.
    """
    if isinstance(ours, dict):
        if set(ours) != set(theirs):
            return [f"{where}: {sorted(set(ours) ^ set(theirs))}"]
        found = []
        for key in ours:
            found += differences(ours[key], theirs[key], f"{where}.{key}")
        return found
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return [f"{where}: {len(ours)} and {len(theirs)} entries"]
        pairs = zip(ours, theirs, strict=True)
        found = []
        for i, (a, b) in enumerate(pairs):
            found += differences(a, b, f"{where}[{i}]")
        return found
    same = torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs
    return [] if same else [where]
