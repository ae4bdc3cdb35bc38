"""The `gpu` marker, and the scripts of this environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

# The tests' tensors are small: a second thread only waits, and spins on a core that another process wants.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each trainer asks every installed package for callbacks.
metadata.entry_points = cache(metadata.entry_points)

ROOT = Path(__file__).parent.parent
# Subprocesses import this checkout and its tests from any folder, and find the scripts of this environment.
for variable, first in (("PYTHONPATH", ROOT), ("PATH", Path(sys.executable).parent)):
    os.environ[variable] = os.pathsep.join(filter(None, [str(first), os.environ.get(variable)]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests with the marker `gpu` where there is no CUDA device.

    The reason says why there is none.
    """
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    from torchrl_gpu.device import cuda_problem

    problem = cuda_problem()
    if problem:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs CUDA: {problem}"))


@pytest.fixture(autouse=True)
def settings_of_torch() -> Iterator[None]:
    """Undo `deterministic=True` of a trainer, which outlives it."""
    yield
    if torch := sys.modules.get("torch"):
        torch.use_deterministic_algorithms(False)
