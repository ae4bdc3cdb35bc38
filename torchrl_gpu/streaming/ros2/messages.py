"""Bytes of ROS messages to values and back, by the types of rosbags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.ros2.images import MAX_PIXELS, MAX_SIDE, RosImage, view_pixels
from torchrl_gpu.system.policy_messages import BadMessage, check_finite

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")  # that decide the pixels; others may be packed, or hold more pictures
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by PNG's type of colour
_TIGHTEST = 1100  # bytes that one of deflate can stand for: 1,032, and some for the ends of streams
# Pixels of a JPEG: its blocks of 64 take a bit or more, and colours may have half the columns and rows.
_MOST_PER_BYTE = 512
_MOST_SCANS = 20  # of a progressive JPEG; encoders write ten or so, and each is decoded over the whole picture
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)  # behind coded data, where FF00 and restarts are data


def checked_picture(data: bytes) -> bytes:
    """A PNG or JPEG file of eight bits a channel that may be decoded: of PNG, only the chunks of the picture itself.

    BadMessage for another file, one that is cut off, and one that takes too much memory or time.
    """
    if data.startswith(_PNG):
        return _checked_png(data)
    if data.startswith(_JPEG):
        return _checked_jpeg(data)
    raise BadMessage(f"want a JPEG or PNG file; got {len(data)} bytes of something else")


def _check_form(width: int, height: int, bits: int) -> None:
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise BadMessage(f"want sides of 1 to {MAX_SIDE} and {MAX_PIXELS} pixels at most; got {width}×{height}")
    if bits > 8:
        raise BadMessage(f"want 8 bits a channel, as colours have (depth comes as an Image of 16UC1); got {bits}")


def _cut(kind: str) -> BadMessage:
    return BadMessage(f"want a JPEG or PNG file that can be decoded; got a {kind} that is cut off or broken")


def _checked_png(data: bytes) -> bytes:
    kept, at, packed, size = [_PNG], len(_PNG), 0, 0
    while True:
        length, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if at + 12 + length > len(data) or (len(kept) == 1) is not (name == b"IHDR"):
            raise _cut("PNG")
        if name == b"IHDR":
            if length != 13:
                raise _cut("PNG")
            width, height = (int.from_bytes(data[at + i : at + i + 4], "big") for i in (8, 12))
            _check_form(width, height, data[at + 16])
            size = height * (1 + width * data[at + 16] * _CHANNELS.get(data[at + 17], 4) // 8)
        if name in _CHUNKS:
            kept.append(data[at : at + 12 + length])
            packed += length if name == b"IDAT" else 0
        at += 12 + length
        if name == b"IEND":
            break
    if size > _TIGHTEST * packed:
        raise _cut("PNG")
    return b"".join(kept)


def _checked_jpeg(data: bytes) -> bytes:
    at, frames, scans = len(_JPEG), 0, 0
    while True:
        found = _MARKER.search(data, at) if scans else _MARKER.match(data, at)
        if found is None:
            raise _cut("JPEG")
        marker, at = found[1][0], found.end()
        if marker == 0xD9:
            break
        length = int.from_bytes(data[at : at + 2], "big")
        if marker == 0x01 or length < 2 or at + length > len(data):
            raise _cut("JPEG")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # tables, and one that is reserved
            frames += 1
            height, width = (int.from_bytes(data[at + i : at + i + 2], "big") for i in (3, 5))
            _check_form(width, height, data[at + 2])
            if length < 8 or width * height > _MOST_PER_BYTE * len(data):
                raise _cut("JPEG")
        scans += marker == 0xDA
        at += length
    if frames != 1 or not 1 <= scans <= _MOST_SCANS:
        wanted = f"one picture in 1 to {_MOST_SCANS} scans"
        raise BadMessage(f"want a JPEG or PNG file, of JPEG {wanted}; got {frames} in {scans}")
    return data


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
