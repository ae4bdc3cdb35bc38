"""Bytes of ROS messages to values and back, by the types of rosbags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.ros2.images import RosImage, view_pixels
from torchrl_gpu.streaming.ros2.picture_files import check_picture
from torchrl_gpu.system.policy_messages import BadMessage, check_finite

if TYPE_CHECKING:
    from rosbags.typesys.store import Typestore

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED = "sensor_msgs/msg/CompressedImage"
JOINTS = "sensor_msgs/msg/JointState"
TEXT = "std_msgs/msg/String"
FLOATS = "std_msgs/msg/Float32MultiArray"
DOUBLES = "std_msgs/msg/Float64MultiArray"
IMAGES = {"Image": IMAGE, "CompressedImage": COMPRESSED}
VECTORS = {"Float32MultiArray": FLOATS, "Float64MultiArray": DOUBLES, "JointState": JOINTS}

Message: TypeAlias = Any
"""A message of rosbags, whose class is made at run time from a definition of ROS."""

_SECOND = 1_000_000_000  # ns
# Characters of an error that are quoted.
_MOST_QUOTED = 160


class RosVector(NamedTuple):
    """Numbers of an observation.

    Attributes:
        values: (F,) float32, finite.
        stamp_ns: As of `RosImage`; an array without a header has none.
    """

    values: np.ndarray
    stamp_ns: int = 0


class Messages:
    """Reads and writes messages of ROS 2: CDR, with the types of Humble."""

    def __init__(self) -> None:
        self.store = type_store()

    # -- read ----------------------------------------------------------------------------------------------------------

    def image(self, data: bytes | memoryview, type_name: str = IMAGE) -> RosImage:
        """Read an `Image` or a `CompressedImage` (JPEG or PNG).

        Raises:
            BadMessage: It is neither.
        """
        message = self._read(data, type_name)
        stamp_ns = _stamp(message)
        frame_id = message.header.frame_id
        if type_name == COMPRESSED:
            return RosImage(_decompress(message.data), "bgr8", stamp_ns, frame_id)
        pixels = view_pixels(
            height=message.height,
            width=message.width,
            encoding=message.encoding,
            step=message.step,
            is_bigendian=message.is_bigendian,
            data=message.data,
        )
        return RosImage(pixels, message.encoding, stamp_ns, frame_id)

    def vector(self, data: bytes | memoryview, type_name: str, width: int) -> RosVector:
        """Read the numbers of an array, or of joints.

        Of joints, these are positions, then velocities, then efforts.

        Raises:
            BadMessage: There are not `width` numbers, or one is not finite.
        """
        message = self._read(data, type_name)
        stamp_ns = 0
        if type_name == JOINTS:
            values = np.concatenate([message.position, message.velocity, message.effort])
            stamp_ns = _stamp(message)
        else:
            values = message.data[message.layout.data_offset :]
        if len(values) != width:
            raise BadMessage(f"{type_name}: the policy needs {width} numbers, not {len(values)}")
        # What is too large for float32 becomes infinite, and is refused.
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        check_finite(f"{type_name}: every number must be finite", values)
        return RosVector(values, stamp_ns)

    def text(self, data: bytes | memoryview) -> str:
        """Read the text of a `String`.

        Raises:
            BadMessage: It is none.
        """
        return str(self._read(data, TEXT).data)

    # -- write ---------------------------------------------------------------------------------------------------------

    def joints(self, names: Sequence[str], values: Sequence[float], stamp_ns: int) -> bytes:
        """Write a `JointState` with positions alone."""
        none = np.zeros(0)
        position = np.asarray(values, np.float64)
        header = self.header(stamp_ns, "")
        return self.write(JOINTS, header=header, name=list(names), position=position, velocity=none, effort=none)

    def floats(self, values: Sequence[float] | np.ndarray, type_name: str = FLOATS) -> bytes:
        """Write a `Float32MultiArray` or `Float64MultiArray`."""
        layout = self._make("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=0)
        dtype = np.float32 if type_name == FLOATS else np.float64
        return self.write(type_name, layout=layout, data=np.asarray(values, dtype))

    def string(self, text: str) -> bytes:
        """Write a `String`."""
        return self.write(TEXT, data=text)

    def jpeg(self, jpeg: bytes, stamp_ns: int, frame_id: str = "") -> bytes:
        """Write a `CompressedImage`."""
        data = np.frombuffer(jpeg, np.uint8)
        return self.write(COMPRESSED, header=self.header(stamp_ns, frame_id), format="jpeg", data=data)

    def pixels(self, pixels: np.ndarray, encoding: str, stamp_ns: int, frame_id: str = "") -> bytes:
        """Write an `Image`, in the byte order of this machine.

        Args:
            pixels: (H, W, C) uint8, or (H, W) uint16 or float32.
            encoding: One of `images.ENCODINGS`.
            stamp_ns: When it was taken.
            frame_id: Of the camera.
        """
        pixels = np.ascontiguousarray(pixels)
        height, width = pixels.shape[:2]
        return self.write(
            IMAGE,
            header=self.header(stamp_ns, frame_id),
            height=height,
            width=width,
            encoding=encoding,
            is_bigendian=0,
            step=pixels.nbytes // height,
            data=pixels.reshape(-1).view(np.uint8),
        )

    # -- by rosbags, whose types are made while the program runs -------------------------------------------------------

    def header(self, stamp_ns: int, frame_id: str) -> object:
        seconds, nanoseconds = divmod(stamp_ns, _SECOND)
        stamp = self._make("builtin_interfaces/msg/Time", sec=seconds, nanosec=nanoseconds)
        return self._make("std_msgs/msg/Header", stamp=stamp, frame_id=frame_id)

    def _make(self, type_name: str, **fields: object) -> object:
        make: Callable[..., object] = self.store.types[type_name]
        return make(**fields)

    def write(self, type_name: str, **fields: object) -> bytes:
        return bytes(self.store.serialize_cdr(self._make(type_name, **fields), type_name))

    def _read(self, data: bytes | memoryview, type_name: str) -> Message:
        try:
            return self.store.deserialize_cdr(data, type_name)
        except Exception as error:
            # Made-up bytes fail in many ways.
            failure = " ".join(str(error).split())[:_MOST_QUOTED]
            raise BadMessage(f"{type_name}: this is no message of this type: {failure}") from None


@cache
def type_store() -> Typestore:
    """Return the message types of ROS 2 Humble.

    Those used here are the same in later distributions.
    """
    typesys = load("rosbags.typesys", "ros2", "RosBridge")
    return typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)


def _stamp(message: Message) -> int:
    """Return the stamp of a message, nanoseconds."""
    stamp = message.header.stamp
    return int(stamp.sec) * _SECOND + int(stamp.nanosec)


def _decompress(data: np.ndarray) -> np.ndarray:
    """Return the pixels of a file, (H, W, 3) uint8, blue first.

    The file's sizes are validated before memory is taken for it.
    """
    cv2 = load("cv2", "ros2", "RosBridge")
    try:
        file = np.frombuffer(check_picture(data.tobytes()), np.uint8)
    except BadMessage as error:
        raise BadMessage(f"{COMPRESSED}: {error}") from None
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels: np.ndarray | None = cv2.imdecode(file, flags)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise BadMessage(f"{COMPRESSED}: the JPEG or PNG file cannot be decoded")
    return pixels
