"""MCAP files for Foxglove and Rerun: video, scenes and numbers, each topic with its schema inside; whole episodes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrl_gpu.envs.viewable import Shape, Spatial, Viewable
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.h264 import H264Encoder
from torchrl_gpu.streaming.codecs.images import check_frame
from torchrl_gpu.system import arguments
from torchrl_gpu.system.parts import Part

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from torchrl_gpu.streaming.codecs.images import Frame

WORLD = "world"  # the frame of reference of scenes
_WHERE = "McapWriter"
_KEY_FRAME_PERIOD_S = 2.0  # how far a program that seeks has to decode
_CHUNK_BYTES = 1 << 17  # what a program that is killed may lose
_EDGE = 0.004  # width of the lines of an outline, of its longest side
_CORNERS = np.array(list(itertools.product((-0.5, 0.5), repeat=3)))
_VALUES = ("state_value", "chosen_action_value", "action_value")  # the first that a policy writes
_COUNTS = ("step", "episode")
_EDGES = np.array([(i, j) for i in range(8) for j in range(i) if (i ^ j).bit_count() == 1])  # corners of a cuboid


class McapWriter:
    """An MCAP file of protobuf messages that Foxglove shows without an extension, and Rerun reads by their schemas.

    Messages must come in the order of their times, nanoseconds since 1970. The file has its name from `close` on;
    until then it ends in ".part", which can be read up to its last chunk of 128 KiB after a crash. Leaving a `with`
    block closes it; by an exception, nothing is left. One thread at a time.

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
        load("av"), load("cv2")
        self.path = Path(path)
        self._encoders: dict[str, H264Encoder] = {}
        self._num_frames: dict[str, int] = {}
        self._part = Part(self.path, _WHERE)
        self._file = self._part.part.open("wb")
        self._writer = load("mcap_protobuf.writer", "mcap", _WHERE).Writer(self._file, chunk_size=_CHUNK_BYTES)
        self._closed = False

    def describe(self, name: str, facts: Mapping[str, Any]) -> None:
        """Adds a record of metadata: facts as text by name."""
        self._writer.add_metadata(name, {key: str(value) for key, value in facts.items()})

    def write_video(self, topic: str, frame: Frame, time_ns: int) -> None:
        """Appends a frame H×W×3 uint8, on any device, as `foxglove.CompressedVideo`: H.264, Annex B, no B-frames.

        There is a key frame every two seconds, and where the size changes.
        """
        check_frame(frame, _WHERE)
        encoder, number = self._encoders.get(topic), self._num_frames.get(topic, 0)
        if encoder is None:
            encoder = self._encoders[topic] = H264Encoder(frame.shape[1], frame.shape[0], self.fps)
        packet = encoder.encode(frame, number % max(1, round(_KEY_FRAME_PERIOD_S * self.fps)) == 0)
        self._num_frames[topic] = number + 1
        message = self._schemas.CompressedVideo(frame_id=topic.strip("/"), data=packet.data, format="h264")
        self._write(topic, message, time_ns)

    def write_scene(self, topic: str, shapes: Sequence[Shape], time_ns: int) -> None:
        """Replaces the bodies of the topic, as one entity of a `foxglove.SceneUpdate`."""
        update = self._schemas.SceneUpdate()
        entity = update.entities.add(frame_id=WORLD, id=topic.strip("/"))
        _set_time(entity.timestamp, time_ns)
        for shape in shapes:
            _add(entity, shape)
        self._write(topic, update, time_ns)

    def write_scalar(self, topic: str, value: float, time_ns: int) -> None:
        """Appends a number, as `value` of a `torchrl_gpu.Scalar`."""
        self._write(topic, self._schemas.Scalar(value=value), time_ns)

    def write_vector(self, topic: str, values: Sequence[float] | np.ndarray, time_ns: int) -> None:
        """Appends some numbers, as `values` of a `torchrl_gpu.Vector`."""
        self._write(topic, self._schemas.Vector(values=np.asarray(values, np.float64).ravel().tolist()), time_ns)

    def close(self) -> None:
        """Finishes the file and gives it its name. Closing again does nothing."""
        if not self._closed:
            try:
                self._writer.finish()
            finally:
                self._free()
            self._part.publish()

    def discard(self) -> None:
        """Deletes what was written; does nothing once the file is closed."""
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

    def _write(self, topic: str, message: Any, time_ns: int) -> None:
        if self._closed:
            raise RuntimeError(f"{_WHERE}: want an open writer; got one that was closed")
        if hasattr(message, "timestamp"):
            _set_time(message.timestamp, time_ns)
        self._writer.write_message(topic, message, log_time=time_ns, publish_time=time_ns)

    def _free(self) -> None:
        self._closed = True
        self._file.close()
        for encoder in self._encoders.values():
            encoder.close()


def _set_time(timestamp: Any, time_ns: int) -> None:
    timestamp.seconds, timestamp.nanos = divmod(time_ns, 1_000_000_000)


def _add(entity: Any, shape: Shape) -> None:
    """Adds a shape to a `foxglove.SceneEntity`."""
    size = [float(side) for side in shape.size]
    lists = {"cuboid": entity.cubes, "cylinder": entity.cylinders, "outline": entity.lines}
    primitive = lists[shape.kind].add()
    _set(primitive.pose.position, "xyz", shape.center)
    _set(primitive.pose.orientation, "wxyz", shape.quaternion)
    _set(primitive.color, "rgba", shape.color)
    if shape.kind == "outline":
        primitive.type, primitive.thickness = primitive.LINE_LIST, _EDGE * max(size)
        for corner in (_CORNERS * size)[_EDGES.ravel()]:
            _set(primitive.points.add(), "xyz", corner)
        return
    _set(primitive.size, "xyz", size)
    if shape.kind == "cylinder":
        primitive.bottom_scale = primitive.top_scale = 1.0


def _set(message: Any, names: str, values: Sequence[float] | np.ndarray) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(message, name, float(value))


@lru_cache
def _schemas() -> SimpleNamespace:
    """Classes of the messages: two of Foxglove's well-known ones, and two of numbers, for which it has none."""
    found = SimpleNamespace()
    for name in ("CompressedVideo", "SceneUpdate"):
        module = load(f"foxglove_schemas_protobuf.{name}_pb2", "mcap", _WHERE)
        setattr(found, name, getattr(module, name))
    found.Scalar, found.Vector = _numbers("Scalar", "value"), _numbers("Vector", "values", several=True)
    return found


def _numbers(name: str, field: str, several: bool = False) -> Any:
    """A message class of a time and a number, or several."""
    names = ("descriptor_pb2", "descriptor_pool", "message_factory", "timestamp_pb2")
    descriptors, pools, factory, times = (load(f"google.protobuf.{each}", "mcap", _WHERE) for each in names)
    path, time, Field = f"torchrl_gpu/{name}.proto", times.DESCRIPTOR.name, descriptors.FieldDescriptorProto
    file = descriptors.FileDescriptorProto(name=path, package="torchrl_gpu", syntax="proto3", dependency=[time])
    fields = file.message_type.add(name=name).field
    once, often, kind = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED, ".google.protobuf.Timestamp"
    fields.add(name="timestamp", number=1, label=once, type=Field.TYPE_MESSAGE, type_name=kind)
    fields.add(name=field, number=2, label=often if several else once, type=Field.TYPE_DOUBLE)
    pool = pools.Default()
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName(f"torchrl_gpu.{name}"))


# -- episodes --


class EpisodeRecorder:
    """Writes one row of a batched environment as an episode: pictures, scenes, actions, values, rewards and metrics.

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
        self.view, self.row, self.num_steps = view, row, 0
        self.begin_ns = time.time_ns() if begin_ns is None else begin_ns

    @property
    def time_ns(self) -> int:
        """Time of the current step, nanoseconds since 1970."""
        return self.begin_ns + round(self.num_steps * 1e9 / self.writer.fps)

    def look(self) -> None:
        """Writes picture, scene and metrics; synchronises with the device."""
        writer, at = self.writer, self.time_ns
        picture: Any = self.view.pictures([self.row], self.width, self.height)[0]
        writer.write_video("/camera", picture, at)
        if isinstance(self.view, Spatial):
            writer.write_scene("/scene", self.view.shapes(self.row), at)
        for name, values in self.view.metrics().items():
            if name not in _COUNTS:
                writer.write_scalar(f"/episode/{name}", values[self.row].item(), at)

    def decide(self, decided: TensorDictBase, actions: Sequence[Any]) -> None:
        """Writes the row's actions of these keys, and the value of the state or the chosen action, if any."""
        for key in actions:
            name = "action" if isinstance(key, str) or len(actions) == 1 else "/".join(key)
            self.writer.write_vector(f"/{name}", _array(decided.get(key)[self.row]), self.time_ns)
        found = {key if isinstance(key, str) else key[-1]: key for key in decided.keys(True, True)}
        given = next((each for each in _VALUES if each in found), None)
        if given is not None:
            values = decided.get(found[given])[self.row]
            if given == "action_value":
                values = values.gather(-1, decided.get(found["action"])[self.row].unsqueeze(-1))
            self.writer.write_vector("/value", _array(values), self.time_ns)

    def advance(self, reward: float) -> None:
        """Moves on to the next step and writes the reward that led to it."""
        self.num_steps += 1
        self.writer.write_scalar("/reward", reward, self.time_ns)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Adds facts about the episode as the metadata `episode`."""
        self.writer.describe("episode", facts)

    def __enter__(self) -> EpisodeRecorder:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.writer.__exit__(*raised)


def check_pictures(size: Sequence[int], fps: float) -> tuple[int, int, float]:
    """Height, width and steps per second, validated."""
    height, width = arguments.pair("EpisodeRecorder", "size", "height and width", size, 16, 8192)
    return height, width, arguments.number("EpisodeRecorder", "fps", fps, 0.1, 1000.0)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
