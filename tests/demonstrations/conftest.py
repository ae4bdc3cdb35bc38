"""The dataset that most tests read.

A test that spoils it takes a copy.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.demonstrations.drawn import write_dataset


@pytest.fixture(scope="package")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody writes into it."""
    return write_dataset(tmp_path_factory.mktemp("lerobot") / "sink")


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    """One that may be spoilt."""
    return Path(shutil.copytree(dataset, tmp_path / "copy"))
