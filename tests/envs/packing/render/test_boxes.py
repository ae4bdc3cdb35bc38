"""Painted boxes are those that rays meet first.

Boxes may hide each other in a ring.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.packing.render.rays import nearest_box, uniform
from torchrl_gpu.envs.packing.render.boxes import back_to_front, paint_boxes
from torchrl_gpu.envs.packing.render.camera import Camera
from torchrl_gpu.envs.packing.render.palette import LAMPS, shades

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


def differing(picture: np.ndarray, lower: np.ndarray, upper: np.ndarray, camera: Camera) -> float:
    """Return the share of pixels inside faces that have a wrong colour.

    The right one is that of the face that rays meet. The front edges of the bin, which are drawn over all, count as
    wrong.
    """
    label, face = nearest_box(lower, upper, camera)
    inside = (uniform(3 * label + face, 4) & (label >= 0))[::2, ::2]
    wanted = shades()[label, np.array(LAMPS)[face]][::2, ::2]
    assert inside.mean() > 0.05
    return float((picture != wanted).any(-1)[inside].mean())


@pytest.mark.parametrize("seed", range(3))
def test_as_rays_meet_them(seed: int) -> None:
    camera = Camera(SIZE, 120, 90)
    lower, upper = guillotine(np.random.default_rng(seed), cuts=15)
    assert differing(paint_boxes(lower, upper, camera), lower, upper, camera) < 0.12
    assert differing(paint_boxes(lower[::-1], upper[::-1], camera), lower, upper, camera) > 0.5


def test_a_ring_of_bars_as_rays_meet_them() -> None:
    camera = Camera(SIZE, 200, 150)
    number, _, _ = back_to_front(RING_LOWER, RING_UPPER, camera)
    # They had to be cut.
    assert len(number) > 3
    assert set(number.tolist()) == {0, 1, 2}
    assert differing(paint_boxes(RING_LOWER, RING_UPPER, camera), RING_LOWER, RING_UPPER, camera) < 0.12


def test_an_order_is_found_for_any_order_of_the_same_boxes() -> None:
    camera, rng = Camera(SIZE, 60, 45), np.random.default_rng(5)
    lower, upper = guillotine(rng, cuts=20)
    for _ in range(5):
        shuffled = rng.permutation(len(lower))
        number, _, _ = back_to_front(lower[shuffled], upper[shuffled], camera)
        assert sorted(number.tolist()) == list(range(len(lower)))


def test_boxes_that_overlap_are_drawn_all_the_same() -> None:
    lower, upper = np.zeros((2, 3)), np.full((2, 3), 0.5)
    assert paint_boxes(lower, upper, Camera(SIZE, 64, 48)).shape == (48, 64, 3)


def test_edges_are_darker_than_faces() -> None:
    camera = Camera(SIZE, 200, 200)
    picture = paint_boxes(np.zeros((1, 3)), np.full((1, 3), 0.6), camera)
    # Half-way up the front edge.
    column, row = (camera.samples(np.array([0.6, 0.0, 0.3])) / 2).astype(int)
    assert (picture[row, column] < 0.6 * picture[row, column + 20]).all()


def test_a_picture_is_nobody_else_s() -> None:
    camera, nothing = Camera(SIZE, 64, 48), np.zeros((0, 3))
    first = paint_boxes(nothing, nothing, camera)
    kept = first.copy()
    paint_boxes(nothing, nothing, camera)[:] = 0
    assert (paint_boxes(nothing, nothing, camera) == kept).all()
    assert (first == kept).all()
