"""The WebSocket protocol: messages to and from bytes and text, without a socket.

A picture is binary: four bytes with the length of the header (big-endian), the header as JSON in UTF-8, the payload.
Everything else is text: one JSON object with a `type`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture, Scalar
from torchrl_gpu.streaming.codecs.encoder import CODECS, STILLS, Codec

# Bytes that a viewer may send at once.
MAX_MESSAGE_BYTES = 4_096
# Characters of the name of a stream or a command, and of a command's value.
MAX_NAME = 64
MAX_VALUE = 1_024
# Bytes of a picture's header.
MAX_HEADER_BYTES = 1 << 20
# Bytes of a header in a field of HTTP: proxies take 4 KiB for all fields of an answer.
MAX_FIELD_BYTES = 3_500
# The types of text that the server sends.
SERVER_MESSAGES = ("hello", "state", "streams", "curves", "pong", "error")

# Bytes of the header that are kept free for `left_out`, and for what differs from viewer to viewer.
_ROOM_FOR_COUNT = 20
_ROOM_FOR_REST = 100
_LENGTH = struct.Struct(">I")

Fields: TypeAlias = Mapping[str, object]
"""The JSON object of a message."""


class ProtocolError(ValueError):
    """A message that a viewer may not send.

    The viewer gets its text, which is one line.
    """


class UnknownStream(ProtocolError):
    """A stream that is not there, or not yet."""


@dataclass(frozen=True)
class Ack:
    """Tells that the picture of this number has been painted."""

    seq: int


@dataclass(frozen=True)
class Watch:
    """Asks for the pictures of a stream.

    Attributes:
        fps: Most pictures a second; None for the server's own rate.
        beside: Another stream, whose JPEGs come along.
    """

    stream: str
    codec: Codec = STILLS
    fps: float | None = None
    beside: str | None = None


@dataclass(frozen=True)
class Pause:
    """Asks for no pictures, or for pictures again."""

    on: bool


@dataclass(frozen=True)
class Replay:
    """Asks for the last seconds before the last episode ended."""


@dataclass(frozen=True)
class Ping:
    """Asks for the server's clock, with a number that the answer repeats."""

    t: float


@dataclass(frozen=True)
class Command:
    """A command of a viewer with control to the program.

    Attributes:
        name: 1 to 64 printable characters.
        value: A JSON scalar, text of at most 1,024 printable characters.
        stream: The stream that the viewer watches.
    """

    name: str
    value: Scalar = None
    stream: str = "main"


Message = Ack | Watch | Pause | Replay | Ping | Command


def parse(text: str, stream: str = "main", codec: Codec = STILLS) -> Message:
    """Parse the text of a viewer's message.

    Args:
        text: Of the message.
        stream: Watched by the viewer; the one that a command is about.
        codec: For a `watch` that names none.

    Raises:
        ProtocolError: It is no message of the protocol.
    """
    if len(text.encode("utf-8", "replace")) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message may have at most {MAX_MESSAGE_BYTES} bytes")
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ProtocolError("a message must be a JSON object") from None
    if not isinstance(fields, dict):
        raise ProtocolError("a message must be a JSON object")
    reader = VIEWER_MESSAGES.get(str(fields.get("type")))
    if reader is None:
        raise ProtocolError(f"the type of a message must be one of {', '.join(VIEWER_MESSAGES)}")
    return reader({"codec": codec, **fields}, stream)


# -- pictures ----------------------------------------------------------------------------------------------------------


def picture_message(encoded: EncodedPicture, sent: float, dropped: int) -> bytes:
    """Return the message of a picture for one viewer.

    Args:
        encoded: The picture.
        sent: Now, seconds since 1970.
        dropped: Pictures that the viewer has missed.
    """
    header = picture_header(encoded, sent, dropped).encode()
    return b"".join((_LENGTH.pack(len(header)), header, encoded.data))


def picture_header(encoded: EncodedPicture, sent: float, dropped: int = 0) -> str:
    """Return the header of a picture for one viewer: a JSON object in ASCII."""
    head = bounded_head(encoded, MAX_HEADER_BYTES - _ROOM_FOR_REST)
    return f'{head}, "sent": {sent:.4f}, "dropped": {dropped}}}'


def field_header(encoded: EncodedPicture, sent: float) -> str:
    """Return the header of a picture as a field of an HTTP answer.

    Metadata that is too long for such a field is left out.
    """
    return f'{bounded_head(encoded, MAX_FIELD_BYTES)}, "sent": {sent:.4f}, "dropped": 0}}'


def bounded_head(encoded: EncodedPicture, most: int) -> str:
    """Return the head of a picture, in at most `most` bytes.

    A longer head goes without the longest values of its metadata; `left_out` is the number of missing ones.
    """
    if len(encoded.head) <= most:
        return encoded.head
    meta = dict(encoded.meta)
    sizes = {name: len(json.dumps({name: value})) for name, value in meta.items()}
    by_size = sorted(sizes, key=sizes.__getitem__)
    size = len(encoded.head) + _ROOM_FOR_COUNT
    while by_size and size > most:
        longest = by_size.pop()
        size -= sizes[longest]
        del meta[longest]
    num_left_out = len(sizes) - len(meta)
    return f'{replace(encoded, meta=meta).head}, "left_out": {num_left_out}'


def read_picture(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Read the header and the payload of a picture's message, for clients in Python.

    Raises:
        ValueError: The bytes are no such message.
    """
    if not isinstance(message, bytes | bytearray | memoryview):
        raise ValueError(f"read_picture: message must be bytes, not {type(message).__name__}")
    data = bytes(message)
    if len(data) < _LENGTH.size:
        raise ValueError(f"read_picture: a message begins with 4 bytes, the length of its header; it has {len(data)}")
    length: int = _LENGTH.unpack_from(data)[0]
    end = _LENGTH.size + length
    if length > MAX_HEADER_BYTES or end > len(data):
        most = min(MAX_HEADER_BYTES, len(data) - _LENGTH.size)
        raise ValueError(f"read_picture: the header of this message may have at most {most} bytes, not {length}")
    try:
        header_bytes = data[_LENGTH.size : end]
        header = json.loads(header_bytes.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"read_picture: the header is not valid JSON: {type(error).__name__}") from None
    if not isinstance(header, dict) or type(header.get("seq")) is not int or not isinstance(header.get("codec"), str):
        raise ValueError("read_picture: the header must be a JSON object with an integer seq and a codec")
    return header, data[end:]


# -- texts -------------------------------------------------------------------------------------------------------------


def text_message(kind: str, **fields: object) -> str:
    """Return a message of text, of one of the types of `SERVER_MESSAGES`."""
    assert kind in SERVER_MESSAGES, kind
    return json.dumps({"type": kind, **fields})


def read_watch(fields: Fields, stream: str = "main") -> Watch:
    """Read the fields of a message `watch`.

    Raises:
        ProtocolError: One of them is invalid.
    """
    codec = fields.get("codec", STILLS)
    if not isinstance(codec, str) or codec not in CODECS:
        raise ProtocolError(f"watch: codec must be one of {', '.join(CODECS)}")
    beside = None if fields.get("beside") is None else _name(fields, "beside")
    watched = _name(fields, "stream")
    fps = None if fields.get("fps") is None else read_fps(fields["fps"])
    return Watch(watched, codec, fps, beside)


def read_fps(value: Any) -> float:
    """Return a rate that a viewer asks for, frames per second.

    Raises:
        ProtocolError: It is no number from 0.1 to 1,000.
    """
    try:
        fps = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        fps = math.nan
    if not 0.1 <= fps <= 1000:
        raise ProtocolError("fps must be 0.1 to 1000 frames per second")
    return fps


def _read_ack(fields: Fields, stream: str) -> Ack:
    return Ack(int(_number(fields, "seq")))


def _read_replay(fields: Fields, stream: str) -> Replay:
    return Replay()


def _read_ping(fields: Fields, stream: str) -> Ping:
    return Ping(_number(fields, "t"))


def _read_pause(fields: Fields, stream: str) -> Pause:
    on = fields.get("on")
    if not isinstance(on, bool):
        raise ProtocolError("pause: on must be true or false")
    return Pause(on)


def _read_command(fields: Fields, stream: str) -> Command:
    value = fields.get("value")
    if not isinstance(value, Scalar) or (isinstance(value, str) and not _is_line(value, MAX_VALUE)):
        raise ProtocolError(f"command: value must be a JSON scalar of at most {MAX_VALUE} printable characters")
    if isinstance(value, float) and not math.isfinite(value):
        raise ProtocolError("command: value must be finite")
    return Command(_name(fields, "name"), value, stream)


def _name(fields: Fields, key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value or not _is_line(value, MAX_NAME):
        raise ProtocolError(f"{fields['type']}: {key} must be 1 to {MAX_NAME} printable characters")
    return value


def _number(fields: Fields, key: str) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        raise ProtocolError(f"{fields['type']}: {key} must be a number")
    return value


def _is_line(text: str, most: int) -> bool:
    """Return whether text is safe to print and log.

    It has no control characters, no line breaks and no halves of characters.
    """
    return len(text) <= most and text.isprintable()


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, which Python's reader takes and JSON does not have."""
    raise ValueError(f"{name} is no JSON")


# What a viewer may send, by type.
VIEWER_MESSAGES: dict[str, Callable[[Fields, str], Message]] = {
    "ack": _read_ack,
    "watch": read_watch,
    "pause": _read_pause,
    "replay": _read_replay,
    "ping": _read_ping,
    "command": _read_command,
}
