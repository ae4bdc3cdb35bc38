"""MCAP files for Foxglove and Rerun: video, scenes, numbers, and whole episodes.

Each topic has its schema in the file.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from torchrl_gpu.envs.viewable import Shape, Spatial, Viewable
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.h264 import H264Encoder
from torchrl_gpu.streaming.codecs.images import check_frame
from torchrl_gpu.system import arguments
from torchrl_gpu.system.parts import Part

if TYPE_CHECKING:
    from tensordict import NestedKey, TensorDictBase
    from torch import Tensor

    from torchrl_gpu.streaming.codecs.images import Frame

WORLD = "world"
"""The frame of reference of scenes."""

_WHERE = "McapWriter"
_SECOND = 1_000_000_000  # ns
# Seconds that a program which seeks has to decode at most.
_KEY_FRAME_PERIOD_S = 2.0
# Bytes that a program which is killed may lose.
_CHUNK_BYTES = 1 << 17
# Width of the lines of an outline, as a share of its longest side.
_EDGE = 0.004
# Corners of a cuboid of side 1, (8, 3), and the pairs of them that an edge joins, (12, 2).
_CORNERS = np.array(list(itertools.product((-0.5, 0.5), repeat=3)))
_EDGES = np.array([(i, j) for i, j in itertools.product(range(8), repeat=2) if j < i and (i ^ j).bit_count() == 1])
# Entries with a value, of which the first that a policy writes is recorded.
_VALUES = ("state_value", "chosen_action_value", "action_value")
# Metrics that count, and say nothing of an episode.
_COUNTS = ("step", "episode")

Message: TypeAlias = Any
"""A message of protobuf, whose class is made while the program runs."""


class _Schemas(NamedTuple):
    """Classes of the messages."""

    compressed_video: Message
    scene_update: Message
    scalar: Message
    vector: Message


class McapWriter:
    """An MCAP file of protobuf messages.

    Foxglove shows it without an extension, and Rerun reads it by the schemas inside. Messages must come in the order of
    their times, nanoseconds since 1970. The file has its name from `close` on; until then it ends in ".part", which can
    be read up to its last chunk of 128 KiB after a crash. Leaving a `with` block closes it; by an exception, nothing is
    left. One thread at a time.

    Args:
        path: Of the file, which is replaced; parent folders are made.
        fps: Frames per second for the rate control of the video.

    Raises:
        ValueError: `fps` is not 0.1 to 1000.
        ModuleNotFoundError: The extra `mcap` or PyAV is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float = 10.0) -> None:
        self.fps = arguments.number(_WHERE, "fps", fps, 0.1, 1000.0)
        self._schemas = _schemas()
        load("av")
        load("cv2")
        self.path = Path(path)
        self._encoders: dict[str, H264Encoder] = {}
        self._num_frames: dict[str, int] = {}
        self._part = Part(self.path, _WHERE)
        self._file: BinaryIO = self._part.part.open("wb")
        self._writer = load("mcap_protobuf.writer", "mcap", _WHERE).Writer(self._file, chunk_size=_CHUNK_BYTES)
        self._closed = False

    def describe(self, name: str, facts: Mapping[str, object]) -> None:
        """Add a record of metadata: facts as text by name."""
        self._writer.add_metadata(name, {key: str(value) for key, value in facts.items()})

    def write_video(self, topic: str, frame: Frame, time_ns: int) -> None:
        """Append a frame H×W×3 uint8, on any device, as `foxglove.CompressedVideo`.

        That is H.264, Annex B, no B-frames, with a key frame every two seconds, and whenever the size changes.
        """
        check_frame(frame, _WHERE)
        encoder = self._encoders.get(topic)
        number = self._num_frames.get(topic, 0)
        if encoder is None:
            encoder = self._encoders[topic] = H264Encoder(frame.shape[1], frame.shape[0], self.fps)
        key_frame_period = max(1, round(_KEY_FRAME_PERIOD_S * self.fps))
        packet = encoder.encode(frame, number % key_frame_period == 0)
        self._num_frames[topic] = number + 1
        # Foxglove wants one access unit a message, which the encoder gives.
        message = self._schemas.compressed_video(frame_id=topic.strip("/"), data=packet.data, format="h264")
        self._write(topic, message, time_ns)

    def write_scene(self, topic: str, shapes: Sequence[Shape], time_ns: int) -> None:
        """Replace the bodies of the topic, as one entity of a `foxglove.SceneUpdate`."""
        update = self._schemas.scene_update()
        entity = update.entities.add(frame_id=WORLD, id=topic.strip("/"))
        _set_time(entity.timestamp, time_ns)
        for shape in shapes:
            _add_shape(entity, shape)
        self._write(topic, update, time_ns)

    def write_scalar(self, topic: str, value: float, time_ns: int) -> None:
        """Append a number, as `value` of a `torchrl_gpu.Scalar`."""
        self._write(topic, self._schemas.scalar(value=value), time_ns)

    def write_vector(self, topic: str, values: Sequence[float] | np.ndarray, time_ns: int) -> None:
        """Append some numbers, as `values` of a `torchrl_gpu.Vector`."""
        numbers = np.asarray(values, np.float64).ravel().tolist()
        self._write(topic, self._schemas.vector(values=numbers), time_ns)

    def close(self) -> None:
        """Finish the file and give it its name. Closing again does nothing."""
        if not self._closed:
            try:
                self._writer.finish()
            finally:
                self._free()
            self._part.publish()

    def discard(self) -> None:
        """Delete what was written.

        Does nothing once the file is closed.
        """
        if not self._closed:
            self._free()
            self._part.discard()

    def __enter__(self) -> McapWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _write(self, topic: str, message: Message, time_ns: int) -> None:
        if self._closed:
            raise RuntimeError(f"{_WHERE} is closed")
        # A scene has its time in each entity.
        if hasattr(message, "timestamp"):
            _set_time(message.timestamp, time_ns)
        self._writer.write_message(topic, message, log_time=time_ns, publish_time=time_ns)

    def _free(self) -> None:
        self._closed = True
        self._file.close()
        for encoder in self._encoders.values():
            encoder.close()


# -- messages of protobuf ----------------------------------------------------------------------------------------------


def _set_time(timestamp: Message, time_ns: int) -> None:
    timestamp.seconds, timestamp.nanos = divmod(time_ns, _SECOND)


def _add_shape(entity: Message, shape: Shape) -> None:
    """Add a shape to a `foxglove.SceneEntity`."""
    size = [float(side) for side in shape.size]
    lists = {"cuboid": entity.cubes, "cylinder": entity.cylinders, "outline": entity.lines}
    primitive = lists[shape.kind].add()
    _set_fields(primitive.pose.position, "xyz", shape.center)
    _set_fields(primitive.pose.orientation, "wxyz", shape.quaternion)
    _set_fields(primitive.color, "rgba", shape.color)
    if shape.kind == "outline":
        primitive.type = primitive.LINE_LIST
        primitive.thickness = _EDGE * max(size)
        for corner in (_CORNERS * size)[_EDGES.ravel()]:
            _set_fields(primitive.points.add(), "xyz", corner)
        return
    _set_fields(primitive.size, "xyz", size)
    if shape.kind == "cylinder":
        primitive.bottom_scale = primitive.top_scale = 1.0


def _set_fields(message: Message, names: str, values: Sequence[float] | np.ndarray) -> None:
    """Set fields whose names are single letters."""
    for name, value in zip(names, values, strict=True):
        setattr(message, name, float(value))


@lru_cache
def _schemas() -> _Schemas:
    """Return two of Foxglove's messages, and two of numbers, for which it has none."""
    video = load("foxglove_schemas_protobuf.CompressedVideo_pb2", "mcap", _WHERE)
    scene = load("foxglove_schemas_protobuf.SceneUpdate_pb2", "mcap", _WHERE)
    scalar = _make_class("Scalar", "value", is_repeated=False)
    vector = _make_class("Vector", "values", is_repeated=True)
    return _Schemas(video.CompressedVideo, scene.SceneUpdate, scalar, vector)


def _make_class(name: str, field: str, *, is_repeated: bool) -> Message:
    """Make the class of messages of a time and a number, or several."""
    descriptors = _protobuf("descriptor_pb2")
    timestamp = _protobuf("timestamp_pb2").DESCRIPTOR.name
    Field = descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(
        name=f"torchrl_gpu/{name}.proto", package="torchrl_gpu", syntax="proto3", dependency=[timestamp]
    )
    fields = file.message_type.add(name=name).field
    fields.add(
        name="timestamp",
        number=1,
        label=Field.LABEL_OPTIONAL,
        type=Field.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
    )
    label = Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL
    fields.add(name=field, number=2, label=label, type=Field.TYPE_DOUBLE)
    pool = _protobuf("descriptor_pool").Default()
    pool.Add(file)
    return _protobuf("message_factory").GetMessageClass(pool.FindMessageTypeByName(f"torchrl_gpu.{name}"))


def _protobuf(module: str) -> ModuleType:
    found: ModuleType = load(f"google.protobuf.{module}", "mcap", _WHERE)
    return found


# -- episodes ----------------------------------------------------------------------------------------------------------


class EpisodeRecorder:
    """Writes one row of a batched environment as an episode.

    Step t, counted from 0, is at `begin_ns + t / fps` seconds. `/camera` (video), `/scene` (of an environment with
    `shapes`) and `/episode/NAME` (its metrics, with the return) are from before the step, `/action` and `/value` of its
    decision; `/reward` of step t is at the time of step t + 1. Leaving a `with` block closes the file; by an
    exception, nothing is left.

    Args:
        path: Of the file; see `McapWriter`.
        view: The environment, as `viewable` gives it.
        row: Which of its environments.
        size: Height and width of the pictures.
        fps: Steps per second.
        begin_ns: Time of the first step, nanoseconds since 1970; None for now.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        view: Viewable,
        row: int = 0,
        *,
        size: Sequence[int] = (480, 640),
        fps: float = 10.0,
        begin_ns: int | None = None,
    ) -> None:
        self.height, self.width, fps = check_pictures(size, fps)
        self.writer = McapWriter(path, fps)
        self.view = view
        self.row = row
        self.num_steps = 0
        self.begin_ns = time.time_ns() if begin_ns is None else begin_ns

    @property
    def time_ns(self) -> int:
        """Time of the current step, nanoseconds since 1970."""
        return self.begin_ns + round(self.num_steps * 1e9 / self.writer.fps)

    def look(self) -> None:
        """Write picture, scene and metrics.

        Synchronises with the device.
        """
        at = self.time_ns
        pictures = self.view.pictures([self.row], self.width, self.height)
        self.writer.write_video("/camera", pictures[0], at)
        if isinstance(self.view, Spatial):
            self.writer.write_scene("/scene", self.view.shapes(self.row), at)
        for name, values in self.view.metrics().items():
            if name not in _COUNTS:
                self.writer.write_scalar(f"/episode/{name}", values[self.row].item(), at)

    def decide(self, decided: TensorDictBase, actions: Sequence[NestedKey]) -> None:
        """Write the row's actions, and the value of state or action, if any.

        Args:
            decided: What the policy wrote.
            actions: Keys of the actions.
        """
        for key in actions:
            # The topic of a single action has the same name in every environment.
            name = "action" if isinstance(key, str) or len(actions) == 1 else "/".join(key)
            self.writer.write_vector(f"/{name}", _array(decided.get(key)[self.row]), self.time_ns)
        keys = {key if isinstance(key, str) else key[-1]: key for key in decided.keys(True, True)}
        value_name = next((name for name in _VALUES if name in keys), None)
        if value_name is not None:
            values = decided.get(keys[value_name])[self.row]
            if value_name == "action_value":
                chosen = decided.get(keys["action"])[self.row]
                values = values.gather(-1, chosen.unsqueeze(-1))
            self.writer.write_vector("/value", _array(values), self.time_ns)

    def advance(self, reward: float) -> None:
        """Go on to the next step, and write the reward that led to it."""
        self.num_steps += 1
        self.writer.write_scalar("/reward", reward, self.time_ns)

    def describe(self, facts: Mapping[str, object]) -> None:
        """Add facts about the episode as the metadata `episode`."""
        self.writer.describe("episode", facts)

    def __enter__(self) -> EpisodeRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self.writer.__exit__(kind, *raised)


def check_pictures(size: Sequence[int], fps: float) -> tuple[int, int, float]:
    """Return height, width and steps per second, validated."""
    height, width = arguments.pair("EpisodeRecorder", "size", "height and width", size, 16, 8192)
    return height, width, arguments.number("EpisodeRecorder", "fps", fps, 0.1, 1000.0)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
