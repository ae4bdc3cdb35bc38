"""Bytes of ROS messages to values and back, by the types of rosbags."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.ros2.images import RosImage, view_pixels
from torchrl_gpu.streaming.ros2.picture_files import checked_picture
from torchrl_gpu.system.policy_messages import BadMessage, check_finite

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
JOINTS, TEXT = "sensor_msgs/msg/JointState", "std_msgs/msg/String"
FLOATS, DOUBLES = "std_msgs/msg/Float32MultiArray", "std_msgs/msg/Float64MultiArray"
IMAGES = {"Image": IMAGE, "CompressedImage": COMPRESSED}
VECTORS = {"Float32MultiArray": FLOATS, "Float64MultiArray": DOUBLES, "JointState": JOINTS}
_SECOND = 1_000_000_000


class RosVector(NamedTuple):
    """Numbers of an observation."""

    values: np.ndarray  # (F,) float32, finite
    stamp_ns: int = 0  # as of `RosImage`; an array without a header has none


class Messages:
    """Reads and writes messages of ROS 2: CDR, with the types of Humble."""

    def __init__(self) -> None:
        self.store = type_store()

    def image(self, data: bytes | memoryview, type_name: str = IMAGE) -> RosImage:
        """An `Image` or `CompressedImage` (JPEG or PNG); BadMessage for what is none."""
        message = self._read(data, type_name)
        stamp_ns, frame_id = _stamp(message), message.header.frame_id
        if type_name == COMPRESSED:
            return RosImage(_decompressed(message.data), "bgr8", stamp_ns, frame_id)
        fields = ("height", "width", "encoding", "step", "is_bigendian", "data")
        pixels = view_pixels(**{name: getattr(message, name) for name in fields})
        return RosImage(pixels, message.encoding, stamp_ns, frame_id)

    def vector(self, data: bytes | memoryview, type_name: str, width: int) -> RosVector:
        """Numbers of an array, or of joints: their positions, then velocities, then efforts, those that there are.

        BadMessage for another width and for numbers that are not finite.
        """
        message = self._read(data, type_name)
        if type_name == JOINTS:
            values, stamp_ns = np.concatenate([message.position, message.velocity, message.effort]), _stamp(message)
        else:
            values, stamp_ns = message.data[message.layout.data_offset :], 0
        if len(values) != width:
            raise BadMessage(f"{type_name}: want {width} numbers; got {len(values)}")
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and refused
            values = values.astype(np.float32)
        check_finite(f"{type_name}: want finite numbers", values)
        return RosVector(values, stamp_ns)

    def joints(self, names: Sequence[str], values: Sequence[float], stamp_ns: int) -> bytes:
        none, position = np.zeros(0), np.asarray(values, np.float64)
        header = self._header(stamp_ns, "")
        return self._write(JOINTS, header=header, name=list(names), position=position, velocity=none, effort=none)

    def floats(self, values: Sequence[float] | np.ndarray, type_name: str = FLOATS) -> bytes:
        layout = self._make("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=0)
        dtype = np.float32 if type_name == FLOATS else np.float64
        return self._write(type_name, layout=layout, data=np.asarray(values, dtype))

    def text(self, data: bytes | memoryview) -> str:
        """The text of a `String`; BadMessage for what is none."""
        return str(self._read(data, TEXT).data)

    def string(self, text: str) -> bytes:
        return self._write(TEXT, data=text)

    def jpeg(self, jpeg: bytes, stamp_ns: int, frame_id: str = "") -> bytes:
        data = np.frombuffer(jpeg, np.uint8)
        return self._write(COMPRESSED, header=self._header(stamp_ns, frame_id), format="jpeg", data=data)

    def pixels(self, pixels: np.ndarray, encoding: str, stamp_ns: int, frame_id: str = "") -> bytes:
        """An `Image` of (H, W, C) uint8 or (H, W) uint16 or float32, in the byte order of this machine."""
        pixels = np.ascontiguousarray(pixels)
        height, width = pixels.shape[:2]
        return self._write(
            IMAGE,
            header=self._header(stamp_ns, frame_id),
            height=height,
            width=width,
            encoding=encoding,
            is_bigendian=0,
            step=pixels.nbytes // height,
            data=pixels.reshape(-1).view(np.uint8),
        )

    def _header(self, stamp_ns: int, frame_id: str) -> Any:
        seconds, nanoseconds = divmod(stamp_ns, _SECOND)
        stamp = self._make("builtin_interfaces/msg/Time", sec=seconds, nanosec=nanoseconds)
        return self._make("std_msgs/msg/Header", stamp=stamp, frame_id=frame_id)

    def _make(self, type_name: str, **fields: Any) -> Any:
        return self.store.types[type_name](**fields)

    def _write(self, type_name: str, **fields: Any) -> bytes:
        return bytes(self.store.serialize_cdr(self._make(type_name, **fields), type_name))

    def _read(self, data: bytes | memoryview, type_name: str) -> Any:
        try:
            return self.store.deserialize_cdr(data, type_name)
        except Exception as error:  # of made-up bytes: of many kinds
            failure = " ".join(str(error).split())[:160]
            raise BadMessage(f"{type_name}: want a message of this type; got what fails with {failure}") from None


@cache
def type_store() -> Any:
    """Message types of ROS 2 Humble; those used here are the same in later distributions."""
    typesys = load("rosbags.typesys", "ros2", "RosBridge")
    return typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)


def _stamp(message: Any) -> int:
    stamp = message.header.stamp
    return int(stamp.sec) * _SECOND + int(stamp.nanosec)


def _decompressed(data: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8, blue first; the file's sizes are validated before memory is taken for it."""
    cv2 = load("cv2", "ros2", "RosBridge")
    try:
        file = np.frombuffer(checked_picture(data.tobytes()), np.uint8)
    except BadMessage as error:
        raise BadMessage(f"{COMPRESSED}: {error}") from None
    try:
        pixels: np.ndarray | None = cv2.imdecode(file, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise BadMessage(f"{COMPRESSED}: want a JPEG or PNG file that can be decoded; got one that cannot")
    return pixels
