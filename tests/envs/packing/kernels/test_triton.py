"""The Triton backend where there is no GPU: its kernels interpreted, in a process of their own, and its table entry."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchrl_gpu.envs.packing.kernels import get_kernels, triton_kernels

HERE = Path(__file__).parent


# Every kernel once; ``make kernels`` runs the whole of these files, eight minutes of a core.
SUITES = {
    "parity with the reference": ["test_triton_parity.py", "-k", "drop_map_and_growth or place_agrees"],
    "actions and restarts": ["test_triton_transition.py", "-k", "advance_agrees or restart_agrees"],
    "values of afterstates": ["test_triton_afterstates.py", "-k", "coarse or tried or no_bins"],
    "accesses": ["test_access_checker.py", "test_triton_accesses.py", "-k", "not outside_its_tensor"],
}


@pytest.mark.parametrize("suite", SUITES)
def test_interpreted_kernels_pass(suite: str, child_environment: dict[str, str]) -> None:
    # Triton decides at import whether it interprets: not in this process, which other tests need as it is.
    tests = [str(HERE / name) if name.endswith(".py") else name for name in SUITES[suite]]
    command = [sys.executable, "-m", "pytest", *tests, "-m", "not gpu", "-q", "-p", "no:cacheprovider"]
    environment = child_environment | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        command, cwd=HERE.parents[3], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert " passed" in child.stdout
    assert "skipped" not in child.stdout


def test_a_cpu_needs_the_interpreter() -> None:
    reason = triton_kernels.problem(torch.device("cpu"))
    assert reason == "runs on CUDA devices, or on a CPU with TRITON_INTERPRET=1; got cpu"
    assert triton_kernels.problem(torch.device("cuda")) == ""
    with pytest.raises(ValueError, match="got 'triton': runs on CUDA devices"):
        get_kernels("triton")
