"""Sketches of boxes agree with traced pictures, also where boxes hide each other in a ring."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.drawing.camera import Camera
from torchrl_gpu.envs.packing.drawing.sketch import _back_to_front, sketch_boxes

pytest.importorskip("cv2")

SIZE = (1.0, 1.0, 1.0)
# Three bars seen from +x, −y and above. The second lies on the first, the third stands before the second along x, and
# the first lies before the third along y: each hides a part of the next.
RING_LOWER = np.array([[0.0, 0.4, 0.0], [0.6, 0.0, 0.2], [0.8, 0.6, 0.0]])
RING_UPPER = np.array([[1.0, 0.6, 0.2], [0.8, 1.0, 0.4], [1.0, 0.8, 1.0]])


def guillotine(rng: np.random.Generator, cuts: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes that do not overlap: the bin, cut again and again, some pieces left out."""
    boxes = [(np.zeros(3), np.array(SIZE))]
    for _ in range(cuts):
        low, high = boxes.pop(int(np.argmax([np.prod(high - low) for low, high in boxes])))
        axis, share = rng.integers(3), rng.uniform(0.3, 0.7)
        first, second = high.copy(), low.copy()
        first[axis] = second[axis] = low[axis] + share * (high[axis] - low[axis])
        boxes += [(low, first), (second, high)]
    kept = [each for each in boxes if rng.random() < 0.6] or boxes
    return np.stack([low for low, _ in kept]), np.stack([high for _, high in kept])


def traced(lower: np.ndarray, upper: np.ndarray, camera: Camera) -> np.ndarray:
    """The viewer's picture."""
    corners = (torch.tensor(each, dtype=torch.float32)[None] for each in (lower, upper))
    colors = viewer.item_colors(torch.arange(len(lower)))[None]
    angles = {"azimuth_deg": camera.azimuth_deg, "elevation_deg": camera.elevation_deg}
    present = torch.ones(1, len(lower), dtype=torch.bool)
    pictures = viewer.render_boxes(
        *corners, present, colors, camera.bin_size, width=camera.width, height=camera.height, **angles
    )
    return pictures[0].numpy()


def differing(sketched: np.ndarray, traced: np.ndarray) -> float:
    """Share of the pixels away from edges whose colour is another one, and not only its shade."""
    hues = [each.astype(float) / np.maximum(each.max(-1, keepdims=True), 1) for each in (sketched, traced)]
    windows = np.lib.stride_tricks.sliding_window_view(hues[1], (5, 5), axis=(0, 1))
    flat = (windows.max((-1, -2)) - windows.min((-1, -2))).max(-1) < 0.1
    assert flat.mean() > 0.5
    return float((np.abs(hues[0] - hues[1]).max(-1)[2:-2, 2:-2] > 0.2)[flat].mean())


@pytest.mark.parametrize("azimuth", [-56.0, 30.0, 130.0, 220.0])
@pytest.mark.parametrize("seed", range(3))
def test_as_traced(azimuth: float, seed: int) -> None:
    camera = Camera(SIZE, 200, 150, azimuth_deg=azimuth)
    lower, upper = guillotine(np.random.default_rng(seed), cuts=15)
    assert differing(sketch_boxes(lower, upper, camera), traced(lower, upper, camera)) < 0.002
    turned = np.arange(len(lower))[::-1]  # the measure would see boxes in each other's place
    if len(lower) > 3:
        assert differing(sketch_boxes(lower[turned], upper[turned], camera), traced(lower, upper, camera)) > 0.01


def test_a_ring_of_bars_as_traced() -> None:
    camera = Camera(SIZE, 200, 150)
    pieces = _back_to_front(RING_LOWER, RING_UPPER, camera)
    assert len(pieces) > 3  # they had to be cut
    assert {number for number, _, _ in pieces} == {0, 1, 2}
    assert differing(sketch_boxes(RING_LOWER, RING_UPPER, camera), traced(RING_LOWER, RING_UPPER, camera)) < 0.002


def test_an_order_is_found_for_any_order_of_the_same_boxes() -> None:
    camera, rng = Camera(SIZE, 60, 45), np.random.default_rng(5)
    lower, upper = guillotine(rng, cuts=20)
    for _ in range(5):
        shuffled = rng.permutation(len(lower))
        drawn = _back_to_front(lower[shuffled], upper[shuffled], camera)
        assert sorted(number for number, _, _ in drawn) == list(range(len(lower)))


def test_boxes_that_overlap_are_drawn_all_the_same() -> None:
    lower, upper = np.zeros((2, 3)), np.full((2, 3), 0.5)
    assert sketch_boxes(lower, upper, Camera(SIZE, 64, 48)).shape == (48, 64, 3)


def test_an_empty_bin_is_the_viewer_s_own() -> None:
    camera = Camera(SIZE, 64, 48)
    nothing = np.zeros((0, 3))
    assert (sketch_boxes(nothing, nothing, camera) == traced(np.ones((1, 3)) * 9, np.ones((1, 3)) * 10, camera)).all()


def test_a_picture_is_nobody_else_s() -> None:
    camera, nothing = Camera(SIZE, 64, 48), np.zeros((0, 3))
    first = sketch_boxes(nothing, nothing, camera)
    kept = first.copy()
    sketch_boxes(nothing, nothing, camera)[:] = 0
    assert (sketch_boxes(nothing, nothing, camera) == kept).all()
    assert (first == kept).all()
