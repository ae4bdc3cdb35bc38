"""Pictures of the sink, pixel by pixel where that matters.

What one picture shows, and what only motion does.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.dishes.camera import VISIBLE, Camera

CAMERA = Camera(64, 64, 60.0, torch.device("cpu"))


def picture(clock: float = 0.0, **changes: float) -> Tensor:
    """(3, 64, 64) of a shift at rest with some entries changed."""
    state = {name: torch.tensor([changes.get(name, 0.0)]) for name in VISIBLE}
    return CAMERA.draw(state, torch.tensor([clock]))[0]


@pytest.mark.parametrize(
    ("name", "value", "rows", "columns"),
    [
        ("stack", 30.0, slice(14, 60), slice(3, 17)),
        ("clean", 30.0, slice(14, 60), slice(47, 61)),
        ("broken", 1.0, slice(50, 60), slice(20, 44)),
        ("belt", 0.2, slice(3, 11), slice(0, 64)),
        ("arm", 0.2, slice(14, 46), slice(19, 45)),
        ("foam", 0.2, slice(46, 60), slice(20, 44)),
    ],
)
def test_each_thing_is_seen_in_its_place_and_nowhere_else(name: str, value: float, rows: slice, columns: slice) -> None:
    changed = (picture(**{name: value}) != picture()).any(0)
    assert changed[rows, columns].any()
    changed[rows, columns] = False
    assert not changed.any()


def test_a_stack_is_as_high_as_it_has_dishes() -> None:
    heights = [int((picture(stack=count) != picture()).any(0)[:, 10].sum()) for count in (0.0, 15.0, 30.0, 60.0)]
    assert heights == [0, 11, 23, 46]


def test_fatigue_is_in_the_tremble_alone() -> None:
    # At one moment of a tremble.
    assert torch.equal(picture(fatigue=1.0), picture())
    assert not torch.equal(picture(fatigue=1.0, shake=0.25), picture(shake=0.25))


@pytest.mark.parametrize("size", [(16, 16), (33, 50), (128, 96)])
def test_other_sizes_show_the_same(size: tuple[int, int]) -> None:
    state = {name: torch.tensor([0.3, 20.0])[:, None].flatten() for name in VISIBLE}
    pictures = Camera(*size, 60.0, torch.device("cpu")).draw(state, torch.tensor([0.1, 0.9]))
    assert pictures.shape == (2, 3, *size)
    # At least eight colours.
    assert len(pictures[1].flatten(1).T.unique(dim=0)) >= 8


@pytest.mark.parametrize("speed", [0.0, 0.3, 1.0])
def test_phases_move_by_less_than_half_a_turn(speed: float) -> None:
    env = DishwashingEnv(16, device="cpu", seed=0, max_steps=50)
    current = env.reset()
    for _ in range(10):
        before = {name: env.entries[name] for name in ("belt", "arm", "shake", "foam")}
        _, current = env.step_and_maybe_reset(current.set("action", torch.full((16, 2), speed)))
        for name, phase in before.items():
            moved = (env.entries[name] - phase).remainder(1.0)
            # A phase that rests may round to a whole turn.
            assert ((moved < 0.5) | (moved > 1 - 1e-6)).all(), name


def test_the_belt_shows_what_the_next_slice_brings() -> None:
    env = DishwashingEnv(64, device="cpu", seed=0, max_steps=50)
    current = env.reset()
    moved = None
    stack = env.entries["stack"]
    for _ in range(10):
        belt = env.entries["belt"]
        _, current = env.step_and_maybe_reset(current.set("action", torch.zeros(64, 2)))
        came, stack = env.entries["stack"] - stack, env.entries["stack"]
        # Otherwise some dishes were turned away.
        room = stack < env.economics.stack_limit - 1e-3
        if moved is not None:
            torch.testing.assert_close(moved[room] / 0.45 * env.economics.stack_limit, came[room], atol=1e-3, rtol=0)
        moved = (env.entries["belt"] - belt).remainder(1.0)
    assert room.any()
