"""Runs in every precision: the same seed gives the same bits, and so does a run that was stopped and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


def trained(folder: Path, precision: str, steps: int, ckpt_path: Path | None = None, **changes: Any) -> dict[str, Any]:
    """All that a run of so many updates consists of; float16 with its scaler, which Lightning has on GPUs alone."""
    if precision == "16-mixed":
        changes["plugins"] = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**9))]
    else:
        changes["precision"] = precision
    fit(module(), folder, steps, EpisodeCheckpoint(), ckpt_path=ckpt_path, **changes)
    return everything(last(folder))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, precision: str) -> None:
    whole = trained(tmp_path / "whole", precision, 12)
    trained(tmp_path / "parts", precision, 6)
    parts = trained(tmp_path / "parts", precision, 12, last(tmp_path / "parts"))
    assert differences(whole, parts) == []


@pytest.mark.parametrize("precision", PRECISIONS)
def test_deterministic_runs_have_the_same_bits(tmp_path: Path, precision: str) -> None:
    try:
        one, other = (trained(tmp_path / name, precision, 6, deterministic=True) for name in ("one", "other"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert differences(one, other) == []


def test_each_precision_computes_otherwise(tmp_path: Path) -> None:
    weights = [trained(tmp_path / precision, precision, 6)["state_dict"] for precision in PRECISIONS]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert differences(weights[one], weights[other]) != []
