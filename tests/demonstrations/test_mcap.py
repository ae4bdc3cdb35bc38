"""The MCAP writer and its episodes, read back by the format's own reader."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mcap.exceptions import EndOfFile
from mcap.reader import NonSeekingReader
from mcap_protobuf.decoder import DecoderFactory
from tensordict import TensorDict

from tests.demonstrations.mcap_files import frames, nal_types, read, stamp
from torchrl_gpu.demonstrations import EpisodeRecorder, McapWriter
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.viewable import Shape

BEGIN = 1_700_000_000_123_456_789


def drawn(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    """A bright square on a dark ground that moves to the right."""
    frame = np.full((height, width, 3), (20, 40, 60), np.uint8)
    frame[8:24, 2 * number : 2 * number + 16] = (230, 120, 40)
    return frame


def test_video_is_h264_that_foxglove_takes(tmp_path: Path) -> None:
    shown = [drawn(i) for i in range(11)]
    with McapWriter(tmp_path / "a.mcap", fps=2.5) as writer:
        for i, frame in enumerate(shown):
            writer.write_video("/camera", frame, BEGIN + i * 400_000_000)
    found = read(tmp_path / "a.mcap")
    assert found.schemas == {"/camera": "foxglove.CompressedVideo"}
    times, videos = zip(*found.messages["/camera"], strict=True)
    assert list(times) == [stamp(each) for each in videos] == [BEGIN + i * 400_000_000 for i in range(11)]
    assert {(each.format, each.frame_id) for each in videos} == {("h264", "camera")}
    keys = [5 in nal_types(each.data) for each in videos]
    assert keys == [i % 5 == 0 for i in range(11)], "a frame that decoding can begin at, every two seconds"
    for video, key in zip(videos, keys, strict=True):
        assert video.data.startswith((b"\0\0\1", b"\0\0\0\1"))
        assert ({7, 8} <= set(nal_types(video.data))) is key, "each with its parameter sets"
    decoded = frames(list(videos))
    assert [np.abs(a.astype(int) - b).mean() < 4 for a, b in zip(decoded, shown, strict=True)] == [True] * 11
    late = frames(list(videos)[5:])
    assert np.array_equal(late[-1], decoded[-1])


def test_a_scene_is_one_entity_with_every_shape(tmp_path: Path) -> None:
    half = 0.5**0.5
    outline = Shape("outline", (0.5, 1, 1.5), (1, 2, 3), (0.5, 0.5, 0.5, 1))
    cuboid = Shape("cuboid", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (1, 0, 0, 0.5), (half, 0, 0, half))
    cylinder = Shape("cylinder", (1, 1, 1), (2, 2, 0.1), (0, 0, 1, 1))
    shapes = [outline, cuboid, cylinder]
    with McapWriter(tmp_path / "a.mcap") as writer:
        writer.write_scene("/scene", shapes, BEGIN)
        writer.write_scene("/scene", shapes[:1], BEGIN + 1)
    found = read(tmp_path / "a.mcap")
    assert found.schemas == {"/scene": "foxglove.SceneUpdate"}
    (_, first), (_, second) = found.messages["/scene"]
    (entity,) = first.entities
    assert (stamp(entity), entity.frame_id, entity.id) == (BEGIN, "world", "scene")
    (cube,) = entity.cubes
    assert [cube.pose.position.x, cube.pose.position.y, cube.pose.position.z] == [0.1, 0.2, 0.3]
    turn = cube.pose.orientation
    assert [turn.w, turn.x, turn.y, turn.z] == [half, 0, 0, half]
    assert [cube.size.x, cube.size.y, cube.size.z] == [0.4, 0.5, 0.6]
    assert [cube.color.r, cube.color.g, cube.color.b, cube.color.a] == [1, 0, 0, 0.5]
    (cylinder,) = entity.cylinders
    assert (cylinder.size.x, cylinder.size.z, cylinder.bottom_scale, cylinder.top_scale) == (2, 0.1, 1, 1)
    (edges,) = entity.lines
    assert (edges.type, edges.pose.position.z) == (edges.LINE_LIST, 1.5)
    ends = np.array([(p.x, p.y, p.z) for p in edges.points]).reshape(12, 2, 3)
    assert sorted(np.abs(ends[:, 0] - ends[:, 1]).sum(1)) == [1] * 4 + [2] * 4 + [3] * 4
    assert np.array_equal(np.abs(ends).reshape(-1, 3), np.broadcast_to([0.5, 1, 1.5], (24, 3)))
    (entity,) = second.entities
    assert (entity.id, len(entity.cubes)) == ("scene", 0), "it takes the place of the one before"


def test_mcap_holds_numbers_and_metadata(tmp_path: Path) -> None:
    with McapWriter(tmp_path / "a.mcap") as writer:
        writer.write_scalar("/reward", 0.1, BEGIN)
        writer.write_vector("/action", np.array([[1, 2], [3, 4]]), BEGIN)
        writer.describe("episode", {"return": 1.5, "policy": "a < b"})
    found = read(tmp_path / "a.mcap")
    assert found.schemas == {"/reward": "torchrl_gpu.Scalar", "/action": "torchrl_gpu.Vector"}
    ((_, reward),), ((_, action),) = found.messages["/reward"], found.messages["/action"]
    assert (reward.value, stamp(reward), list(action.values)) == (0.1, BEGIN, [1, 2, 3, 4])
    assert found.metadata == {"episode": {"return": "1.5", "policy": "a < b"}}


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.mcap"
    with McapWriter(path) as writer:
        writer.write_scalar("/reward", 1, BEGIN)
        assert [each.name for each in path.parent.iterdir()] == ["a.mcap.part"]
    writer.close()
    writer.discard()
    assert [each.name for each in path.parent.iterdir()] == ["a.mcap"]
    with pytest.raises(RuntimeError, match=r"McapWriter .*closed"):
        writer.write_scalar("/reward", 1, BEGIN)


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with McapWriter(tmp_path / "a.mcap") as writer:
            writer.write_scalar("/reward", 1, BEGIN)
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert not list(tmp_path.iterdir())


def test_mcap_of_a_killed_program_can_be_read(tmp_path: Path) -> None:
    writer, noise = McapWriter(tmp_path / "a.mcap"), np.random.default_rng(0)
    for i in range(40):
        # 16 kB that no compression makes smaller.
        writer.write_vector("/noise", noise.random(2_000), i)
    writer._file.flush()
    cut = (tmp_path / "a.mcap.part").read_bytes()
    writer.discard()
    found = []
    reader = NonSeekingReader(io.BytesIO(cut), decoder_factories=[DecoderFactory()])
    messages = reader.iter_decoded_messages(log_time_order=False)
    with contextlib.suppress(EndOfFile):
        for _, _, message, decoded in messages:
            found.append((message.log_time, len(decoded.values)))
    assert found == [(i, 2_000) for i in range(len(found))]
    assert len(found) >= 32, "all but the last chunk"


@pytest.mark.parametrize("fps", [0, 2000, float("nan"), "fast"])
def test_rates_that_are_none(tmp_path: Path, fps: float) -> None:
    with pytest.raises(ValueError, match=r"McapWriter: fps "):
        McapWriter(tmp_path / "a.mcap", fps)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("frame", [np.zeros(5, np.uint8), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), 7, None])
def test_mcap_refuses_wrong_frames(frame: Any, tmp_path: Path) -> None:
    with McapWriter(tmp_path / "a.mcap") as writer:
        with pytest.raises(ValueError, match=r"McapWriter: .*H×W×3 of uint8"):
            writer.write_video("/camera", frame, 0)
        writer.write_scalar("/x", 1.0, 0)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        # The value is that of the second action, not the best.
        ({"action_value": torch.tensor([[9.0, 8.0, 7.0], [1.0, 2.0, 5.0]])}, 2.0),
        ({"action_value": torch.zeros(2, 3), "chosen_action_value": torch.tensor([[3.0], [4.0]])}, 4.0),
        ({"chosen_action_value": torch.zeros(2, 1), "state_value": torch.tensor([[6.0], [7.0]])}, 7.0),
        ({}, None),
    ],
)
def test_a_value_is_that_of_the_action_or_the_state(
    written: dict[str, Any], value: float | None, tmp_path: Path
) -> None:
    decided = TensorDict({"action": torch.tensor([0, 1]), **written}, [2])
    with EpisodeRecorder(tmp_path / "a.mcap", DishwashingEnv(2, device="cpu"), 1, begin_ns=5) as recorder:
        recorder.decide(decided, ["action"])
    found = {}
    for topic, messages in read(tmp_path / "a.mcap").messages.items():
        found[topic] = [list(each.values) for _, each in messages]
    assert found == {"/action": [[1.0]]} | ({} if value is None else {"/value": [[value]]})
