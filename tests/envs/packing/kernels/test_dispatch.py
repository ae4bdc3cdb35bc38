"""The table of backends."""

from __future__ import annotations

import pytest

from torchrl_gpu.envs.packing import kernels
from torchrl_gpu.envs.packing.kernels import BACKENDS, available_backends, get_kernels


def test_every_backend_has_every_job() -> None:
    for name, module in BACKENDS.items():
        jobs = get_kernels(name)
        assert jobs.backend == name
        assert (jobs.drop_map, jobs.place, jobs.pile_growth) == (module.drop_map, module.place, module.pile_growth)


def test_auto_is_a_backend_that_runs_here() -> None:
    assert available_backends()[get_kernels("auto").backend] == ""
    assert get_kernels() == get_kernels("eager")
    assert set(available_backends()) == set(kernels.BACKENDS)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"^get_kernels: backend must be auto or one of eager, .*; got 'cobol'$"):
        get_kernels("cobol")
