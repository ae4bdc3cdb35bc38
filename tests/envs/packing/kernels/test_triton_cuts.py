"""Boxes cut from a bin in Triton.

The sequences are those of torch, some are cached, and every access is inside its tensor.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from tests.envs.packing.kernels.access_checker import AccessChecker
from torchrl_gpu.envs.packing.items import triton_cuts
from torchrl_gpu.envs.packing.items.cutting import CutSequences

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="checks interpreted kernels")


def places(made: CutSequences, rows: int, device: torch.device = CPU) -> Tensor:
    return torch.arange(made.most_pieces, device=device).expand(rows, -1)


@interpreted
@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize(("whole", "low", "high"), [((5, 4, 6), 2, 3), ((3, 3, 3), 2, 5), ((6, 1, 5), 1, 2)])
def test_boxes_are_cut_as_in_torch(whole: tuple[int, int, int], low: int, high: int, layers: bool) -> None:
    made, key = CutSequences(whole, low, high, layers, 100), torch.tensor([3, 2**32 - 1])
    assert triton_cuts.items(made, key, places(made, 2), made.nothing_kept(2, CPU)).equal(made.rows(key))


@interpreted
def test_what_is_kept_is_read_and_not_cut_again() -> None:
    made, key = CutSequences((4, 4, 4), 2, 3, False, 100), torch.tensor([5, 6])
    kept = made.nothing_kept(2, CPU)
    first = triton_cuts.items(made, key, places(made, 2), kept)
    triton_cuts.items(made, key + 10, places(made, 2), kept)
    kept[2].fill_(7)
    assert (triton_cuts.items(made, key, places(made, 2), kept) == 7).all()
    # They replace those of key + 10.
    assert triton_cuts.items(made, key + 20, places(made, 2), kept).equal(made.rows(key + 20))
    assert (triton_cuts.items(made, key, places(made, 2), kept) == 7).all()
    assert triton_cuts.items(made, key + 10, places(made, 2), kept).equal(made.rows(key + 10))
    assert not first.eq(7).any()


@interpreted
@pytest.mark.parametrize("layers", [True, False])
def test_no_access_is_outside_its_tensor_and_none_races(layers: bool) -> None:
    made, key = CutSequences((4, 5, 4), 2, 3, layers, 100), torch.tensor([5, 6])
    kept = made.nothing_kept(2, CPU)
    with AccessChecker() as checker:
        for _ in range(2):
            triton_cuts.items(made, key, places(made, 2), kept)
    assert not checker.faults, checker.describe()
    assert {launch.kernel for launch in checker.launches} == {"cut_items_kernel"}


@pytest.mark.gpu
def test_sides_of_more_than_twelve_bits_are_cut_in_torch() -> None:
    made, key = CutSequences((4, 4, 5000), 2, 2600, False, 100), torch.arange(20)
    here = made.items(key.to("cuda"), places(made, 20, torch.device("cuda")))
    assert here.cpu().equal(made.rows(key))
    assert not made.recent_on_device


@pytest.mark.gpu
@pytest.mark.parametrize("layers", [True, False])
def test_a_gpu_cuts_the_same_boxes(layers: bool) -> None:
    made, device = CutSequences((10, 10, 10), 2, 5, layers, 100), torch.device("cuda")
    for turn in (0, 1, 0, 3):
        key = torch.arange(3000) * 77_777 + turn
        here = made.items(key.to(device), places(made, 3000, device))
        assert here.cpu().equal(made.rows(key))
    # Triton has kept them.
    assert made.recent_on_device
