"""The Triton backend where there is no GPU.

Its kernels are interpreted in a process of their own, and its table entry is tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchrl_gpu.envs.packing.kernels import get_kernels
from torchrl_gpu.envs.packing.kernels.triton import kernels as triton_kernels

HERE = Path(__file__).parent


# Every kernel once, in one process, which imports once; ``make kernels`` runs the whole of these files.
FILES = tuple(
    f"test_triton_{name}" for name in ("parity", "transition", "afterstates", "tables", "rollouts", "cuts", "draws")
)
FILES += ("test_bearing",)
SOME = (
    "drop_map_and_growth and (boxes-none or cpu-solids-com) or restart_agrees and boxes-none or no_bins"
    " or backends_agree and triton or boxes_are_cut and whole2"
    " or a_sweep_leaves and plan1 and 0.8 or learning_moves and plan3 or torch and table or whole_rollout and few"
    " or (place_agrees or advance_agrees) and boxes and not solids"
)


def test_interpreted_kernels_pass(pytestconfig: pytest.Config) -> None:
    # Triton decides at import whether it interprets: not in this process, which other tests need as it is.
    tests = [str(HERE / f"{name}.py") for name in FILES]
    command = [sys.executable, "-m", "pytest", *tests, "-k", SOME, "-m", "not gpu", "-q", "-p", "no:cacheprovider"]
    for option in pytestconfig.getoption("pythonwarnings") or ():
        command += ["-W", option]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
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
    with pytest.raises(ValueError, match=r"'triton'.*: runs on CUDA devices"):
        get_kernels("triton")
