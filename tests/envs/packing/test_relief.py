"""Reliefs: what is in front is seen, and a picture is the same whatever was drawn before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.drawing.camera import Camera
from torchrl_gpu.envs.packing.drawing.relief import Relief, ReliefSketch, _foremost
from torchrl_gpu.envs.packing.drawing.sketch import sketch_boxes

pytest.importorskip("cv2")

SIZE, CELL = (1.0, 1.0, 0.8), (0.02, 0.02)
# Three stacks: a box that carries a smaller one, a bridge over a gap beside them, and a flat one.
LOWER = np.array([[0.1, 0.1, 0.0], [0.14, 0.2, 0.3], [0.6, 0.2, 0.0], [0.5, 0.2, 0.5], [0.2, 0.7, 0.0]])
UPPER = np.array([[0.4, 0.5, 0.3], [0.3, 0.4, 0.5], [0.9, 0.6, 0.5], [0.9, 0.4, 0.7], [0.8, 0.9, 0.1]])


def boxes() -> list[Relief]:
    """The same as maps of cells."""
    found = []
    for i, (low, high) in enumerate(zip(LOWER, UPPER, strict=True)):
        cells = np.round((high - low)[:2] / CELL).astype(int)
        found.append(Relief((i,), np.full(cells, high[2] - low[2], np.float32), (low[0], low[1], low[2])))
    return found


def far_off(first: np.ndarray, second: np.ndarray) -> float:
    """Share of pixels of another colour."""
    return float((np.abs(first.astype(int) - second).max(-1) > 40).mean())


def foremost_by_definition(rise: np.ndarray) -> np.ndarray:
    """Pixel by pixel: the nearest row over which something stands that covers it."""
    found = np.full(rise.shape, -1)
    for row, col in np.ndindex(rise.shape):
        over = [b for b in range(row, len(rise)) if rise[b, col] >= 0 and int(max(b - rise[b, col] + 0.5, 0)) <= row]
        found[row, col] = max(over, default=-1)
    return found


@given(arrays.arrays(np.float32, (9, 3), elements=st.one_of(st.just(-1.0), st.floats(0, 12, width=16))))
@settings(deadline=None)
def test_what_is_in_front_is_seen(rise: np.ndarray) -> None:
    assert (_foremost(rise) == foremost_by_definition(rise)).all()


@pytest.mark.parametrize("azimuth", [-56.0, 30.0, 130.0, 220.0])
def test_boxes_as_they_are_sketched(azimuth: float) -> None:
    camera = Camera(SIZE, 200, 150, azimuth_deg=azimuth)
    drawn = ReliefSketch(CELL, camera).picture(boxes())
    assert far_off(drawn, sketch_boxes(LOWER, UPPER, camera)) < 0.06  # edges, a pixel to the side
    shifted = (corners + np.array([0.1, 0.0, 0.0]) for corners in (LOWER, UPPER))
    assert far_off(drawn, sketch_boxes(*shifted, camera)) > 0.08


def test_round_things_as_the_viewer_draws_them() -> None:
    camera = Camera(SIZE, 200, 150)
    x, y = np.meshgrid(*[(np.arange(30) + 0.5) / 15 - 1] * 2, indexing="ij")
    ball = np.sqrt(np.maximum(1 - x**2 - y**2, 0)).astype(np.float32)
    dome = np.where(x**2 + y**2 < 1, 0.3 * ball, -1.0).astype(np.float32)
    drawn = ReliefSketch(CELL, camera).picture([Relief((0,), dome, (0.2, 0.3, 0.1))])
    solid = torch.tensor(dome) >= 0
    maps = torch.where(solid, torch.tensor(dome), 0.0), torch.where(solid, 0.0, torch.inf)
    traced = viewer.render_solids(
        *(each[None, None] for each in maps),
        torch.tensor([[[0.2, 0.3, 0.1]]]),
        torch.ones(1, 1, dtype=torch.bool),
        viewer.item_colors(torch.arange(1))[None],
        SIZE,
        CELL,
        width=200,
        height=150,
    )[0].numpy()
    assert far_off(drawn, traced) < 0.04
    assert far_off(drawn, ReliefSketch(CELL, camera).picture([])) > 0.06


def test_the_same_picture_whatever_was_drawn_before() -> None:
    camera, items = Camera(SIZE, 80, 60), boxes()
    filling = ReliefSketch(CELL, camera)
    moved = items[1]._replace(corner=(0.1, 0.1, 0.3))
    for shown in (items[:2], items, [items[0], moved, *items[2:]], items[:1], [], items[:3]):
        assert (filling.picture(shown) == ReliefSketch(CELL, camera).picture(shown)).all()


def test_only_what_has_come_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, add = [], ReliefSketch._add

    def counted(self: ReliefSketch, number: int, item: Relief) -> None:
        drawn.append(number)
        add(self, number, item)

    monkeypatch.setattr(ReliefSketch, "_add", counted)
    sketch = ReliefSketch(CELL, Camera(SIZE, 80, 60))
    for count in (2, 4, 4, 5):
        sketch.picture(boxes()[:count])
    assert drawn == [0, 1, 2, 3, 4]


def test_an_empty_bin_is_that_of_the_sketch() -> None:
    camera, nothing = Camera(SIZE, 64, 48), np.zeros((0, 3))
    assert (ReliefSketch(CELL, camera).picture([]) == sketch_boxes(nothing, nothing, camera)).all()
