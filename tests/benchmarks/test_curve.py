"""Curves of a run, from what TensorBoard's writer left."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

ROOT = Path(__file__).parents[2]


@pytest.fixture
def curve() -> Any:
    spec = importlib.util.spec_from_file_location("curve", ROOT / "benchmarks" / "curve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_was_logged_is_kept(curve: Any, tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    for step in range(10):
        writer.add_scalar("loss", 10 - step, step, walltime=1000 + 60 * step)
    writer.close()
    found = curve.curves(tmp_path, points=4)
    assert found["minutes"] == 9
    assert found["curves"]["loss"] == {"step": [0, 3, 6, 9], "seconds": [0, 180, 360, 540], "value": [10, 7, 4, 1]}


def test_a_folder_without_figures(curve: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="want a folder with TensorBoard's scalars"):
        curve.curves(tmp_path, points=4)
