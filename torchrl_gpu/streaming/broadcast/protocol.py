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
from typing import Any

from torchrl_gpu.streaming.broadcast.frames import EncodedPicture, Scalar
from torchrl_gpu.streaming.codecs.encoder import CODECS, STILLS, Codec

MAX_MESSAGE_BYTES = 4_096  # bytes that a viewer may send at once
MAX_NAME = 64
MAX_VALUE = 1_024
MAX_HEADER_BYTES = 1 << 20  # bytes of a picture's header
MAX_FIELD_BYTES = 3_500  # of a header in a field of HTTP: proxies take 4 KiB for all fields of an answer
SERVER_MESSAGES = ("hello", "state", "streams", "curves", "pong", "error")  # the types of text that the server sends
_ROOM_FOR_COUNT, _ROOM_FOR_REST = 20, 100  # bytes of `left_out`, and of what is another for each viewer
_LENGTH = struct.Struct(">I")


class ProtocolError(ValueError):
    """A message that a viewer may not send; its text is one line, which the viewer gets."""


class UnknownStream(ProtocolError):
    """A stream that is not there, or not yet."""


@dataclass(frozen=True)
class Ack:
    """The picture of this number has been painted."""

    seq: int


@dataclass(frozen=True)
class Watch:
    """Asks for a stream, at most at a rate (None for the server's own), and for JPEGs of another one beside it."""

    stream: str
    codec: Codec = STILLS
    fps: float | None = None
    beside: str | None = None


@dataclass(frozen=True)
class Pause:
    """Send no pictures, or go on."""

    on: bool


@dataclass(frozen=True)
class Replay:
    """Show the last seconds before the last episode ended."""


@dataclass(frozen=True)
class Ping:
    """Asks for the server's clock; `t` comes back as it was."""

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
    """The message in a text of a viewer; or ProtocolError.

    A command is about `stream`, which the viewer watches; a `watch` that names no codec asks for `codec`.
    """
    if len(text.encode("utf-8", "replace")) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"want at most {MAX_MESSAGE_BYTES} bytes a message")
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ProtocolError("want a JSON object") from None
    if not isinstance(fields, dict):
        raise ProtocolError("want a JSON object")
    reader = _READERS.get(str(fields.get("type")))
    if reader is None:
        raise ProtocolError(f"want a type out of {', '.join(_READERS)}")
    return reader({"codec": codec, **fields}, stream)


def picture_message(encoded: EncodedPicture, sent: float, dropped: int) -> bytes:
    """A picture for one viewer: `sent` is now, seconds since 1970, `dropped` the pictures that it has missed."""
    head = picture_header(encoded, sent, dropped).encode()
    return b"".join((_LENGTH.pack(len(head)), head, encoded.data))


def picture_header(encoded: EncodedPicture, sent: float, dropped: int = 0) -> str:
    """The header of a picture for one viewer: a JSON object in ASCII."""
    head = bounded_head(encoded, MAX_HEADER_BYTES - _ROOM_FOR_REST)
    return f'{head}, "sent": {sent:.4f}, "dropped": {dropped}}}'


def field_header(encoded: EncodedPicture, sent: float) -> str:
    """The header of a picture as a field of an HTTP answer, without metadata that is too long for one."""
    return f'{bounded_head(encoded, MAX_FIELD_BYTES)}, "sent": {sent:.4f}, "dropped": 0}}'


def bounded_head(encoded: EncodedPicture, most: int) -> str:
    """The head of a picture, without the longest values of its metadata where it has more bytes than `most`.

    How many are missing stands beside the rest, as `left_out`.
    """
    if len(encoded.head) <= most:
        return encoded.head
    meta = dict(encoded.meta)
    sizes = {name: len(json.dumps({name: value})) for name, value in meta.items()}
    longest = sorted(sizes, key=sizes.__getitem__)
    size = len(encoded.head) + _ROOM_FOR_COUNT
    while longest and size > most:
        name = longest.pop()
        size -= sizes[name]
        del meta[name]
    return f'{replace(encoded, meta=meta).head}, "left_out": {len(sizes) - len(meta)}'


def read_picture(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a binary message of the server, for clients in Python; ValueError for other bytes."""
    if not isinstance(message, bytes | bytearray | memoryview):
        raise ValueError(f"read_picture: want the bytes of a message; got {type(message).__name__}")
    data = bytes(message)
    if len(data) < _LENGTH.size:
        raise ValueError(f"read_picture: want 4 bytes with the length of the header; got {len(data)} bytes")
    length: int = _LENGTH.unpack_from(data)[0]
    end = _LENGTH.size + length
    if length > MAX_HEADER_BYTES or end > len(data):
        most = min(MAX_HEADER_BYTES, len(data) - _LENGTH.size)
        raise ValueError(f"read_picture: want a header of at most {most} bytes here; got a length of {length}")
    try:
        fields = json.loads(data[_LENGTH.size : end].decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"read_picture: want a header in JSON; got what is none: {type(error).__name__}") from None
    seq, codec = (fields.get("seq"), fields.get("codec")) if isinstance(fields, dict) else (None, None)
    if type(seq) is not int or not isinstance(codec, str):
        raise ValueError("read_picture: want a JSON object with an integer seq and a codec; got another header")
    return fields, data[end:]


def text_message(kind: str, **fields: Any) -> str:
    assert kind in SERVER_MESSAGES, kind
    return json.dumps({"type": kind, **fields})


def read_watch(fields: Mapping[str, Any], stream: str = "main") -> Watch:
    """The fields of a message `watch`; or ProtocolError."""
    codec, fps = fields.get("codec", STILLS), fields.get("fps")
    if not isinstance(codec, str) or codec not in CODECS:
        raise ProtocolError(f"watch: want a codec out of {', '.join(CODECS)}")
    beside = None if fields.get("beside") is None else _name(fields, "beside")
    return Watch(_name(fields, "stream"), codec, None if fps is None else read_fps(fps), beside)


def _pause(fields: Mapping[str, Any], stream: str) -> Pause:
    if not isinstance(fields.get("on"), bool):
        raise ProtocolError("pause: want on to be true or false")
    return Pause(fields["on"])


def _command(fields: Mapping[str, Any], stream: str) -> Command:
    value = fields.get("value")
    if not isinstance(value, Scalar) or (isinstance(value, str) and not _is_line(value, MAX_VALUE)):
        raise ProtocolError(f"command: want a JSON scalar of at most {MAX_VALUE} printable characters as value")
    if isinstance(value, float) and not math.isfinite(value):
        raise ProtocolError("command: want a finite value")
    return Command(_name(fields, "name"), value, stream)


def read_fps(value: Any) -> float:
    """A rate that a viewer may ask for; raises ProtocolError for all but 0.1 to 1,000 frames per second."""
    try:
        fps = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        fps = math.nan
    if not 0.1 <= fps <= 1000:
        raise ProtocolError("want 0.1 to 1000 frames per second")
    return fps


def _name(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value or not _is_line(value, MAX_NAME):
        raise ProtocolError(f"{fields['type']}: want {key} to be 1 to {MAX_NAME} printable characters")
    return value


def _is_line(text: str, most: int) -> bool:
    """True if text is safe to print and log: no control characters, no line breaks, no halves of characters."""
    return len(text) <= most and text.isprintable()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _number(fields: Mapping[str, Any], key: str) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        raise ProtocolError(f"{fields['type']}: want {key} to be a number")
    return value


# What a viewer may say, by type.
_READERS: dict[str, Callable[[Mapping[str, Any], str], Message]] = {
    "ack": lambda fields, stream: Ack(int(_number(fields, "seq"))),
    "watch": read_watch,
    "pause": _pause,
    "replay": lambda fields, stream: Replay(),
    "ping": lambda fields, stream: Ping(_number(fields, "t")),
    "command": _command,
}
