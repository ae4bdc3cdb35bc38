"""Sets of orientations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from torchrl_gpu.envs.packing.rotations import orientation_set, turn


@pytest.mark.parametrize(
    ("orientations", "for_boxes", "for_solids"),
    [
        ("fixed", 1, 1),
        ("yaw", 2, 4),
        ("axis", 6, 6),
        ("cube", 24, 24),
        (360, 1, 1),
        # The identity and a half turn about each axis.
        (180, 1, 4),
        (90, 6, 24),
        (90.0, 6, 24),
    ],
)
def test_counts(orientations: str | float, for_boxes: int, for_solids: int) -> None:
    assert len(orientation_set(orientations, boxes=True)) == for_boxes
    assert len(orientation_set(orientations, boxes=False)) == for_solids


@pytest.mark.parametrize("orientations", ["fixed", "yaw", "axis", "cube", 180, 120, 90, 60, 45])
def test_all_are_proper_distinct_rotations_and_the_first_is_none(orientations: str | float) -> None:
    for boxes in (True, False):
        rotations = orientation_set(orientations, boxes=boxes)
        assert np.array_equal(rotations[0], np.eye(3))
        assert np.allclose(rotations @ rotations.transpose(0, 2, 1), np.eye(3), atol=1e-12)
        assert np.allclose(np.linalg.det(rotations), 1)
        assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.combinations(rotations, 2))


def test_quarter_turns_are_exact() -> None:
    for rotation in orientation_set("cube", boxes=False):
        assert set(np.unique(rotation)) <= {-1.0, 0.0, 1.0}
    for rotation in orientation_set("yaw", boxes=False):
        assert rotation[2].tolist() == rotation[:, 2].tolist() == [0, 0, 1]


def test_axis_puts_every_face_up_once_for_solids_and_every_side_on_every_axis_once_for_boxes() -> None:
    up = {tuple(rotation[2].tolist()) for rotation in orientation_set("axis", boxes=False)}
    assert len(up) == 6
    turned = {tuple(np.abs(r) @ [1, 2, 3]) for r in orientation_set("axis", boxes=True)}
    assert turned == set(itertools.permutations([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("step", [120, 90, 60])
def test_a_step_gives_every_rotation_by_its_multiples(step: int) -> None:
    rotations = orientation_set(step, boxes=False)
    angles = range(0, 360, step)
    for rpy in itertools.product(angles, repeat=3):
        assert (np.abs(rotations - turn(*rpy)).max((1, 2)) < 1e-6).sum() == 1


def test_turn_by_hand() -> None:
    # A quarter turn about z carries x to y; about x, y to z; about y, z to x. Roll comes first: Rz(90) Rx(90) carries
    # y to z and leaves it there.
    x, y, z = np.eye(3)
    assert np.array_equal(turn(0, 0, 90) @ x, y)
    assert np.array_equal(turn(90, 0, 0) @ y, z)
    assert np.array_equal(turn(0, 90, 0) @ z, x)
    assert np.array_equal(turn(90, 0, 90) @ y, z)
    assert turn(0, 0, 30)[0, 0] == pytest.approx(math.sqrt(3) / 2)


@pytest.mark.parametrize("step", [0, -90, 7, 77.5, math.nan, math.inf, 720, 1e12])
def test_a_step_must_divide_the_circle(step: float) -> None:
    with pytest.raises(ValueError, match=r"^orientation_set: .*step .*360 degrees; got "):
        orientation_set(step, boxes=False)


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(ValueError, match=r"orientations .*fixed, yaw, axis, cube.*'spin'"):
        orientation_set("spin", boxes=True)
