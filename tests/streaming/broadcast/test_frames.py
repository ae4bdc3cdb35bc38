"""Frames as they come from simulators, and the pictures that they make."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.no_host_reads import NoHostReads
from tests.streaming.pictures import scene
from torchrl_gpu.streaming import PolicyView, observation_picture
from torchrl_gpu.streaming.broadcast.frames import (
    MAX_FRAME_SIDE,
    FrameLayout,
    check_state,
    clean_meta,
    depth_meta,
    record_event,
    with_facts,
)
from torchrl_gpu.streaming.broadcast.policy_view import short_names
from torchrl_gpu.streaming.codecs import pixels
from torchrl_gpu.streaming.codecs.images import format_of
from torchrl_gpu.streaming.codecs.pixels import UNMEASURED, color_map, grid, picture_of


def copied(frame: Any, into: np.ndarray | None = None, depth_range: tuple[float, float] | None = None) -> Any:
    return pictured(frame, into, depth_range)[0]


def pictured(frame: Any, into: Any = None, depth_range: tuple[float, float] | None = None) -> tuple[Any, Any]:
    layout = FrameLayout()
    return picture_of(layout.update(frame, depth_range), layout.format, depth_range, into)


@settings(deadline=None)
@given(st.integers(1, 2000))
def test_a_grid_is_the_smallest_that_holds_all_and_as_square_as_can_be(number: int) -> None:
    rows, columns = grid(number)
    assert (rows - 1) * columns < number <= rows * columns
    assert rows <= columns
    assert (columns - 1) ** 2 < number <= columns**2


def test_a_frame_is_copied_whatever_its_strides() -> None:
    wide = np.random.default_rng(0).integers(0, 255, (12, 20, 4), dtype=np.uint8)
    for frame in (wide[..., :3], wide[::2, ::-1, :3], np.asfortranarray(wide[..., :3])):
        picture = copied(frame)
        assert picture.flags.c_contiguous
        assert not np.shares_memory(picture, frame)
        np.testing.assert_array_equal(picture, frame)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 12])
def test_a_batch_is_tiled_row_by_row_and_the_rest_is_black(number: int) -> None:
    frames = np.stack([np.full((4, 6, 3), 10 + i, np.uint8) for i in range(number)])
    rows, columns = grid(number)
    dirty = np.full((rows * 4, columns * 6, 3), 255, np.uint8)
    picture = copied(frames, dirty)
    assert picture is dirty
    for i in range(rows * columns):
        row, column = divmod(i, columns)
        tile = picture[row * 4 : row * 4 + 4, column * 6 : column * 6 + 6]
        assert np.unique(tile).tolist() == ([10 + i] if i < number else [0])
    other = np.zeros((3, 3, 3), np.uint8)
    assert copied(frames, other) is not other, "of another size"


@pytest.mark.parametrize(
    "frame",
    [
        *(np.zeros((4, 6), np.float64), np.zeros((0, 4, 6, 3), np.uint8), None),
        np.zeros((1, MAX_FRAME_SIDE + 1, 3), np.uint8),
    ],
)
def test_frames_that_are_no_pictures_are_refused(frame: Any) -> None:
    with pytest.raises(ValueError, match=r"^StreamServer.publish: .*, not .+$"):
        FrameLayout().update(frame)


def test_a_layout_follows_the_frames() -> None:
    layout = FrameLayout()
    layout.update(scene(4, 6))
    assert layout.shape == (4, 6, 3)
    layout.update(np.zeros((2, 4, 6, 3), np.uint8))
    assert layout.shape == (4, 12, 3)
    with pytest.raises(ValueError):
        layout.update(np.zeros((2, 4, 6, 3), np.int64))
    with pytest.raises(ValueError):
        layout.update(None)
    layout.update(scene(4, 6))
    with pytest.raises(ValueError, match="not Pretender"):
        layout.update(Pretender())


class Pretender:
    """Has the shape and the dtype of the frame before, and nothing else."""

    shape, dtype = (4, 6, 3), np.dtype(np.uint8)


def test_transparent_pixels_show_white_behind_them() -> None:
    frame = np.zeros((2, 3, 4), np.uint8)
    # 51 is a fifth of 255.
    frame[0] = (200, 100, 0, 255), (200, 100, 0, 0), (200, 100, 0, 51)
    picture = copied(frame[:, ::-1])[:, ::-1]
    assert picture[0].tolist() == [[200, 100, 0], [255, 255, 255], [244, 224, 204]]
    assert (picture[1] == 255).all()


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1)])
def test_gray_is_gray(shape: tuple[int, ...]) -> None:
    frame = np.arange(24, dtype=np.uint8).reshape(shape)
    picture = copied(frame)
    np.testing.assert_array_equal(picture, np.broadcast_to(frame.reshape(4, 6, 1), (4, 6, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_depth_runs_from_the_first_colour_to_the_last(dtype: Any) -> None:
    frame = np.array([[1.0, 2.0, 3.0], [np.nan, np.inf, -np.inf]], dtype)
    assert depth_meta(pictured(frame)[1]) == {"depth_near_m": 1.0, "depth_far_m": 3.0}
    picture, colors = copied(frame), color_map()
    assert picture[0].tolist() == [colors[0].tolist(), colors[128].tolist(), colors[255].tolist()]
    assert (picture[1] == UNMEASURED).all()
    given = copied(frame, depth_range=(2, 4))
    assert given[0].tolist() == [colors[0].tolist(), colors[0].tolist(), colors[128].tolist()]


@pytest.mark.parametrize("frame", [np.full((2, 3), np.nan, np.float32), np.full((2, 3), 7.0, np.float32)])
def test_depth_without_a_range(frame: np.ndarray) -> None:
    picture, near = copied(frame), frame[0, 0]
    expected = np.full(3, UNMEASURED) if np.isnan(near) else color_map()[0]
    assert (picture == expected).all()
    known = None if np.isnan(near) else 7.0
    assert depth_meta(pictured(frame)[1]) == {"depth_near_m": known, "depth_far_m": known}


def test_depth_of_any_size() -> None:
    largest = np.finfo(np.float32).max
    picture = copied(np.array([[-largest, 0.0, largest]], np.float32))
    assert picture[0].tolist() == color_map()[[0, 128, 255]].tolist()


def test_colours_of_depth_get_darker_step_by_step() -> None:
    linear = (color_map() / 255.0) ** 2.2
    # The cube root is nearly how lightness is perceived.
    steps = -np.diff(np.cbrt(linear @ (0.2126, 0.7152, 0.0722))[::15])
    assert steps.min() > 0.5 * steps.mean()
    assert steps.max() < 1.5 * steps.mean()
    assert (np.ptp(color_map().astype(int), axis=1) > 20).all(), "none may pass for what was not measured"


def test_a_batch_of_any_format_is_tiled() -> None:
    depth = np.linspace(1, 2, 3 * 8, dtype=np.float32).reshape(3, 2, 4, 1)
    picture = copied(depth)
    assert picture.shape == (4, 8, 3)
    np.testing.assert_array_equal(picture[:2, 4:], copied(depth[1], depth_range=(1, 2)))
    assert (picture[2:, 4:] == 0).all()
    assert copied(np.full((2, 3, 5, 4), 9, np.uint8)).shape == (3, 10, 3)
    assert copied(np.full((2, 3, 5, 1), 9, np.uint8)).tolist() == np.full((3, 10, 3), 9).tolist()


def test_large_frames_are_worked_on_in_parts() -> None:
    rng = np.random.default_rng(0)
    frame = rng.integers(0, 256, (301, 700, 4), dtype=np.uint8)
    alpha = frame[..., 3:] / 255.0
    expected = np.floor(frame[..., :3] * alpha + 255 * (1 - alpha) + 127 / 255 + 1e-9)
    assert np.abs(copied(frame) - expected).max() == 0
    wide = rng.random((2, 70_000 // 5, 11, 1), dtype=np.float32)
    np.testing.assert_array_equal(copied(wide)[:, :11], copied(wide[0], depth_range=(wide.min(), wide.max())))


@pytest.mark.parametrize(
    "depth_range", [(1, 1), (2, 1), (0, np.inf), (np.nan, 1), (1,), (1, 2, 3), "12", 5, (True, 2), (1, "2"), ([1], [2])]
)
def test_ranges_that_are_none(depth_range: Any) -> None:
    with pytest.raises(ValueError, match=r"^StreamServer.publish: depth_range .*, not .+$"):
        copied(np.zeros((2, 3), np.float32), depth_range=depth_range)


def test_a_range_is_of_depth() -> None:
    with pytest.raises(ValueError, match=r"depth_range .*gray"):
        copied(np.zeros((2, 3), np.uint8), depth_range=(1, 2))


def test_metadata_is_made_json() -> None:
    meta = {"step": np.int64(3), "return": np.float32(0.5), "nan": float("nan"), "name": "a", "done": np.bool_(True)}
    assert clean_meta(meta) == {"step": 3, "return": 0.5, "nan": None, "name": "a", "done": True}
    assert clean_meta(None) == {}


@pytest.mark.parametrize(
    "meta", [{"a": [1]}, {"a": np.zeros(2)}, {1: 2}, {"a": "x" * 2000}, {str(i): i for i in range(99)}]
)
def test_metadata_that_is_not_json(meta: Any) -> None:
    with pytest.raises(ValueError, match=r"StreamServer: .*metadata"):
        clean_meta(meta)


def test_state_may_hold_lists() -> None:
    assert check_state({"commands": ["pause", "reset"], "paused": False, "sizes": (1, np.int32(2))}) == {
        "commands": ["pause", "reset"],
        "paused": False,
        "sizes": [1, 2],
    }
    with pytest.raises(ValueError, match=r"state .*64.* 100"):
        check_state({"commands": ["pause"] * 99})
    with pytest.raises(ValueError, match=r"commands.* list"):
        check_state({"commands": [["pause"]]})


def frames() -> dict[str, torch.Tensor]:
    """A frame of each format."""
    generator = torch.Generator().manual_seed(0)
    depth = torch.rand(3, 4, 6, 1, generator=generator)
    depth[0, 0, :3, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    bytes_ = torch.randint(0, 255, (3, 4, 6, 4), dtype=torch.uint8, generator=generator)
    made = {"rgb": bytes_[..., :3], "rgba": bytes_, "gray": bytes_[0, ..., 0]}
    made |= {"depth": depth, "half": depth[0, ..., 0].half()}
    made["constant"] = torch.full((2, 3), 4.0)
    made["unmeasured"] = torch.full((2, 3), torch.nan)
    made["extreme"] = torch.tensor([[-3e38, 0.0, 3e38]])
    return made


@pytest.mark.parametrize("name", frames())
def test_both_libraries_make_the_same_picture(name: str) -> None:
    frame = frames()[name]
    np.testing.assert_array_equal(copied(frame), copied(frame.numpy()))
    assert record_event(copied(frame)) is None
    np.testing.assert_array_equal(copied(frame.requires_grad_(frame.is_floating_point())), copied(frame.detach()))


@pytest.mark.parametrize("name", frames())
def test_picture_made_on_a_device_is_the_same_and_reads_nothing(name: str) -> None:
    """The operators of a GPU, run on the host.

    A mode refuses whatever would wait.
    """
    frame, expected = frames()[name], copied(frames()[name])
    found = format_of(frame, "test")
    # The map is copied to the device once.
    pixels.color_map_on(frame.device)
    with NoHostReads(), mock.patch.object(pixels, "to_array", side_effect=AssertionError("brought to the host")):
        depth = pixels.measured_range(OnDevice(frame)) if found.kind == "depth" else None  # type: ignore[arg-type]
        canvas = torch.empty(expected.shape, dtype=torch.uint8)
        pixels.paint(canvas, frame, found, depth)
    # A colour of the map may differ where it rounds.
    np.testing.assert_allclose(canvas.numpy().astype(int), expected, atol=3)
    if found.kind == "depth":
        assert depth_meta(depth) == depth_meta(pixels.measured_range(frame))


class OnDevice:
    """A tensor that says that it lies on a GPU."""

    is_cuda = True

    def __init__(self, tensor: torch.Tensor) -> None:
        self.detach = tensor.detach


@pytest.mark.gpu
@pytest.mark.parametrize("name", frames())
def test_torch_on_the_gpu_stays_there_and_does_not_wait(name: str) -> None:
    frame = frames()[name].cuda()
    # The map is copied to the device once.
    pixels.color_map_on(frame.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        picture: Any
        depth: Any
        picture, depth = pictured(frame)
        depth = None if depth is None else depth.to("cpu", non_blocking=True)
        event = record_event(picture)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    event.synchronize()
    np.testing.assert_allclose(picture.cpu().numpy().astype(int), copied(frame.cpu()), atol=3)
    assert depth_meta(depth) == depth_meta(pictured(frame.cpu())[1])


def test_facts_are_what_was_given_and_no_more() -> None:
    view = PolicyView(action=[0.5, -1], inference_ms=4.25, message_age_s=0.03, stale=False, confidence=0.9, policy="a")
    facts = {"policy": "a", "stale": False, "inference_ms": 4.25, "message_age_ms": 30.0, "confidence": 0.9}
    assert view.facts() == facts | {"action/0": 0.5, "action/1": -1.0}
    assert PolicyView().facts() == {}
    assert PolicyView(stale=np.True_, action={"turn": 2}).facts() == {"stale": True, "action/turn": 2.0}


@pytest.mark.parametrize(
    "action",
    [
        3,
        np.int64(3),
        torch.tensor(3),
        [3],
        torch.tensor([[3.0]]),
        torch.tensor([3.0]).bfloat16(),
        torch.ones(1).mul(3).requires_grad_(),
    ],
)
def test_actions_of_any_shape(action: Any) -> None:
    assert PolicyView(action=action).facts() == {"action/0": 3.0}


def test_metadata_is_finite_short_and_printable() -> None:
    hostile = "<script>\n\x1b[31m" + "x" * 1000
    view = PolicyView(
        action={hostile: math.nan} | {str(i): i for i in range(1000)},
        inference_ms=math.inf,
        message_age_s=-math.inf,
        confidence="high",  # type: ignore[arg-type]
        policy=hostile,
    )
    facts = view.facts()
    assert clean_meta(facts) == facts
    assert [facts[name] for name in ("inference_ms", "message_age_ms", "confidence")] == [None] * 3
    actions = {name: value for name, value in facts.items() if name.startswith("action/")}
    assert len(actions) == 32
    assert next(iter(actions.items())) == ("action/" + (hostile[:32]).replace("\n", "?").replace("\x1b", "?"), None)
    assert all(name.isprintable() and len(name) <= 39 for name in facts)
    assert facts["policy"] == hostile[:64].replace("\n", "?").replace("\x1b", "?")
    wide = PolicyView(action=np.zeros(100_000)).facts()
    assert len(wide) == 32


def test_observations_as_pictures() -> None:
    small = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    assert np.array_equal(observation_picture(small), small.transpose(0, 2, 3, 1))
    assert np.array_equal(observation_picture(torch.from_numpy(small)), small.transpose(0, 2, 3, 1))
    normalised = torch.tensor([[[-2.0, 0.0, 2.0]]])
    assert observation_picture(normalised)[..., 0].tolist() == [[0, 128, 255]]
    assert observation_picture(normalised.bfloat16())[..., 0].tolist() == [[0, 128, 255]]
    assert observation_picture(torch.tensor([[[math.nan, 1.0, 2.0]]]))[..., 0].tolist() == [[0, 0, 255]]
    assert observation_picture(np.full((1, 2, 2), np.nan)).max() == 0
    assert observation_picture(np.ones((3, 2, 2))).max() == 0


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (1, 2, 3, 4, 4), (0, 3, 4, 4)])
def test_shapes_that_are_no_picture(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"observation_picture: .*{re.escape(str(shape))}"):
        observation_picture(np.zeros(shape))


def test_several_integers_are_choices_and_no_sizes() -> None:
    assert PolicyView(action=torch.tensor([3, 0])).facts() == {"choices": True, "action/0": 3.0, "action/1": 0.0}
    for action in (np.array([3.0, 0.0]), [7], torch.tensor([[2]]), {"turn": 2, "go": 1}):
        assert "choices" not in PolicyView(action=action).facts()  # type: ignore[arg-type]


def test_facts_of_a_policy_never_push_out_the_metadata_of_a_program() -> None:
    facts = PolicyView(action=np.zeros(32)).facts()
    meta = {f"m{i}": i for i in range(50)}
    found = with_facts(meta, facts)
    assert len(clean_meta(found)) == 64
    assert found.items() >= meta.items()
    with pytest.raises(ValueError, match=r"metadata .*64.* 65"):
        clean_meta(with_facts({f"m{i}": i for i in range(65)}, facts))


def test_integers_that_pages_would_read_as_others_are_text() -> None:
    exact, large = 2**53 - 1, 2**53 + 1
    values = [exact, -exact, large, -large, np.int64(large), np.uint64(2**64 - 1), True]
    wanted = [exact, -exact, str(large), str(-large), str(large), str(2**64 - 1), True]
    assert list(clean_meta({str(i): value for i, value in enumerate(values)}).values()) == wanted
    assert check_state({"all": [exact, large]}) == {"all": [exact, str(large)]}
    assert PolicyView(action=np.array([large, 3])).facts() == {"choices": True, "action/0": str(large), "action/1": 3.0}
    with pytest.raises(ValueError, match=r"seed.* 5001"):
        clean_meta({"seed": 1 << 5000})
    with pytest.raises(ValueError, match=r"name .*257 characters"):
        clean_meta({"x" * 257: 1})


@pytest.mark.parametrize(
    "names",
    [
        [f"robot_arm_shoulder_joint_velocity_{side}_{i}" for side, i in product(("left", "right"), range(7))],
        ["a" * 40 + str(i) + "b" * 40 for i in range(32)],
        ["line\n", "line\t", "line?", "line"],
        [1, "1", 1.0, True],
        ["x", "x~2", *("x" for _ in range(30))],
    ],
)
def test_names_of_actions_stay_apart(names: list[Any]) -> None:
    short = short_names(names, 32)
    assert len(set(short)) == len(names)
    assert all(len(name) <= 32 and name.isprintable() for name in short)
    facts = PolicyView(action=dict(zip(names, range(len(names)), strict=True))).facts()
    assert len([name for name in facts if name.startswith("action/")]) == len(set(names))
