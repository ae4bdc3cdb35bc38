"""Bounds by hand: bytes, operations, and which of them limits.

That kernels move the bytes that are counted here is tested in `test_triton_accesses.py`.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import expectations
from benchmarks.gpu.chips import DEVICES
from benchmarks.gpu.expectations import bound, work
from tests.envs.packing.scenes import CELL
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.types import Catalogue


def env_of(cells: tuple[int, int], *, num_envs: int = 2, stability: str = "none", step: int = 1) -> PackingEnv:
    """Return the boxes of 3×3×3 cells in one orientation."""
    size = float(cells[0]), float(cells[1]), 10.0
    return PackingEnv(
        num_envs,
        bin_size=size,
        resolution=cells,
        grid_step=step,
        items=RandomBoxes(3, 3),
        orientations="fixed",
        stability=stability,
        device="cpu",
        backend="eager",
        seed=0,
    )


@pytest.mark.parametrize(("stability", "judged"), [("none", 0), ("corners", 8 * 4 * 9)])
def test_small_boxes(stability: str, judged: int) -> None:
    found = work(env_of((10, 6), stability=stability))
    assert found.keys() == {"advance_kernel", "restart_kernel", "drop_boxes_kernel"}
    # One item (id 8, extent 16, height 4), a heightmap, and 60 placements of 5 bytes.
    assert found["drop_boxes_kernel"].num_bytes == 28 + 240 + 300
    # Four lines that fit, of 10 rows of 3 cells; 8×4 placements of 9 cells.
    assert found["drop_boxes_kernel"].operations == 4 * 10 * 3 + judged
    assert 480 < found["advance_kernel"].num_bytes < 480 + 200
    assert 480 + 600 < found["restart_kernel"].num_bytes < 480 + 600 + 200


def test_wide_boxes_have_their_windows() -> None:
    found = work(env_of((20, 6)))
    # Windows of 1 and 2 cells.
    assert found["windows_kernel"].num_bytes == 120 * 4 * (1 + 2)
    assert found["windows_kernel"].operations == 120
    assert found["drop_wide_boxes_kernel"].operations == 4 * 4 * 20


def with_solids(env: PackingEnv, unit: float | None) -> PackingEnv:
    """The same with one irregular item of 3×2 cells."""
    top = torch.full((1, 1, 3, 2), CELL)
    extent = torch.tensor([[[3, 2]]])
    env.catalogue = Catalogue.of_maps(top, torch.zeros_like(top), extent, torch.ones(1), unit)
    return env


def test_solids() -> None:
    found = work(with_solids(env_of((10, 6), step=2), CELL))
    # Heights, counts and maxima of blocks.
    assert found["split_kernel"].num_bytes == 60 * 4 + 60 * 12
    # Cells of x: 7 left, placements 0, 2, 4, 6 and 7; of y: 4 left, 0, 2, 4.
    assert found["drop_solids_kernel"].operations == 5 * 3 * 6
    # The underside is a byte a cell.
    assert found["drop_solids_kernel"].num_bytes == 28 + 2 * 240 + 6 + 15 * 5


def test_what_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = DEVICES["H100"]
    monkeypatch.setattr(expectations, "environment", lambda config: envs[config])
    envs = {
        "few": env_of((10, 6)),
        "many": env_of((10, 6), num_envs=100_000),
        "counted": with_solids(env_of((200, 200), num_envs=10), CELL),
        "not": with_solids(env_of((200, 200), num_envs=10), None),
    }
    assert bound("advance_kernel", "few", h100)[:2] == (0.0, "")
    many = bound("drop_boxes_kernel", "many", h100)
    assert (many.seconds, many.limit) == (pytest.approx(1e5 * 568 / 3.35e12), "bytes")
    operations = 10 * 6 * 198 * 199 / (132 * 1.98e9 * 64)
    assert bound("drop_solids_kernel", "not", h100)[:2] == (pytest.approx(operations), "operations")
    assert bound("drop_solids_kernel", "counted", h100)[:2] == (pytest.approx(operations / 2), "operations")
    # No pairs are counted on this chip.
    ada = DEVICES["RTX 4090"]
    assert bound("drop_solids_kernel", "counted", ada).seconds == bound("drop_solids_kernel", "not", ada).seconds
