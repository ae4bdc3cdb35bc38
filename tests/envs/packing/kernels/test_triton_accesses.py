"""Every access of the Triton kernels in odd settings: inside its tensor, and no race.

They run where Triton interprets, in the process that `test_triton.py` starts; `make kernels` has them over 200 scenes.
"""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the process of test_triton.py", allow_module_level=True)

from tests.envs.packing.kernels.odd_scenes import check

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # the interpreter wraps integers
BATCH = 16  # scenes of one test: each kind under each rule
NUM_SCENES = int(os.environ.get("TORCHRL_GPU_ODD_SCENES", BATCH))
KERNELS = {
    "advance_kernel",
    "drop_boxes_kernel",
    "drop_solids_kernel",
    "drop_wide_boxes_kernel",
    "growth_kernel",
    "place_kernel",
    "restart_kernel",
    "split_kernel",
    "windows_kernel",
}


@pytest.mark.parametrize("first", range(0, NUM_SCENES, BATCH))
def test_no_access_is_outside_its_tensor_and_none_races(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = check(range(first, min(first + BATCH, NUM_SCENES)), monkeypatch.setattr)
    assert not checker.faults, checker.describe()
    launched = {launch.kernel for launch in checker.launches}
    assert launched == KERNELS if first == 0 else launched <= KERNELS
    accesses = sum(t.loads + t.stores for launch in checker.launches for t in launch.traffic.values())
    programs = sum(launch.programs for launch in checker.launches)
    print(f"\nfrom scene {first}: {len(checker.launches)} launches, {programs} programs, {accesses} accesses")
