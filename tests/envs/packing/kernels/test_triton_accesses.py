"""Every access of the Triton kernels in odd settings.

It is inside its tensor, and there is no race.

They run where Triton interprets, in the processes of `make kernels`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the processes of make kernels", allow_module_level=True)

from benchmarks.gpu import expectations
from benchmarks.gpu.steps import step
from tests.envs.packing.kernels.access_checker import AccessChecker
from tests.envs.packing.kernels.odd_scenes import check
from tests.envs.packing.settings import small_solids
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes

# The interpreter wraps integers.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
# Scenes of one test: each kind under each rule.
BATCH = 16
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
    "upheld_kernel",
    "windows_kernel",
}


@pytest.mark.parametrize("first", range(0, NUM_SCENES, BATCH))
def test_no_access_is_outside_its_tensor_and_none_races(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = check(range(first, min(first + BATCH, NUM_SCENES)), monkeypatch.setattr)
    assert not checker.faults, checker.describe()
    launched = {launch.kernel for launch in checker.launches}
    assert launched == KERNELS if first == 0 else launched <= KERNELS
    accesses = 0
    for launch in checker.launches:
        accesses += sum(traffic.loads + traffic.stores for traffic in launch.traffic.values())
    programs = sum(launch.programs for launch in checker.launches)
    print(f"\nfrom scene {first}: {len(checker.launches)} launches, {programs} programs, {accesses} accesses")


FEW_CELLS: dict[str, Any] = {"bin_size": (0.125, 0.125, 0.125), "resolution": 8, "items": small_solids()}
SMALL: dict[str, dict[str, object]] = {}
SMALL["boxes"] = {"items": RandomBoxes(2, 4), "stability": "corners"}
SMALL["wide boxes"] = {"items": RandomBoxes(2, 4), "bin_size": (20.0, 7.0, 9.0), "resolution": (20, 7)}
SMALL["solids"] = {**FEW_CELLS, "grid_step": 3, "orientations": "yaw"}
SMALL["solids, maps kept"] = {**FEW_CELLS, "grid_step": 2, "orientations": "fixed", "visible_items": 3}


@pytest.mark.parametrize("setting", SMALL)
def test_the_bytes_of_the_bound_are_those_that_kernels_move(setting: str) -> None:
    # Kernels move no less than the bound says, but for the sizes of the items that happen to be shown, and little more.
    env = PackingEnv(3, **SMALL[setting], backend="triton", device="cpu", seed=0)
    env.reset()
    s, expected = env.state, expectations.work(env)
    action = s.legal.flatten(1).int().argmax(1)
    following = s.item_id[:, 0]
    with AccessChecker() as checker:
        step(env, s, action, following, torch.zeros(3, dtype=torch.bool))
    moved = {launch.kernel: launch.bytes_moved / env.num_envs for launch in checker.launches}
    assert moved.keys() == expected.keys()
    for kernel, num_bytes in moved.items():
        assert 0.75 < num_bytes / expected[kernel].num_bytes < 1.25, (kernel, num_bytes, expected[kernel])
