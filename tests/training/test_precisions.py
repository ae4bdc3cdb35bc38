"""Runs in every precision: one that was stopped and goes on has the same bits as one that never stopped."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision

from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


def trained(folder: Path, precision: str, steps: int, ckpt_path: Path | None = None) -> dict[str, Any]:
    """All that a run of so many updates consists of; float16 with its scaler, which Lightning has on GPUs alone."""
    changes: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":
        changes = {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**9))]}
    fit(module(), folder, steps, EpisodeCheckpoint(), ckpt_path=ckpt_path, **changes)
    return everything(last(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return {precision: trained(tmp_path_factory.mktemp("whole"), precision, 8) for precision in PRECISIONS}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, precision: str, whole: dict[str, dict[str, Any]]) -> None:
    trained(tmp_path, precision, 4)
    assert differences(whole[precision], trained(tmp_path, precision, 8, last(tmp_path))) == []


def test_each_precision_computes_otherwise(whole: dict[str, dict[str, Any]]) -> None:
    for one, other in combinations(PRECISIONS, 2):
        assert differences(whole[one]["state_dict"], whole[other]["state_dict"]) != []


def test_weights_and_heights_are_in_float32(whole: dict[str, dict[str, Any]]) -> None:
    for run in whole.values():
        assert all(value.dtype == torch.float32 for value in run["state_dict"].values() if value.is_floating_point())
        heights = run["replay"]["transitions"]["box_heightmap"]  # the environment is stepped under autocast too
        assert heights.dtype == torch.float32
        assert torch.equal(heights, heights.round())
