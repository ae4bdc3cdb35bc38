"""The protocol: every message there and back, and nothing else."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchrl_gpu.streaming
from torchrl_gpu.streaming.broadcast import protocol
from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.protocol import Ack, Command, Pause, Ping, ProtocolError, Replay, Watch, parse

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2)


JSON = st.recursive(PLAIN, containers, max_leaves=3)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"type": "ack", "seq": 7}, Ack(7)),
        ({"type": "watch", "stream": "worst", "codec": "h264", "fps": 5}, Watch("worst", "h264", 5.0)),
        ({"type": "watch", "stream": "worst", "fps": None}, Watch("worst", "jpeg", None)),
        ({"type": "pause", "on": True}, Pause(True)),
        ({"type": "replay"}, Replay()),
        ({"type": "ping", "t": 12.5}, Ping(12.5)),
        ({"type": "command", "name": "reset", "value": 3}, Command("reset", 3, "best")),
        ({"type": "command", "name": "pause", "more": 1}, Command("pause", None, "best")),
    ],
)
def test_messages_are_parsed(said: dict[str, Any], meant: protocol.Message) -> None:
    assert parse(json.dumps(said), stream="best") == meant


@pytest.mark.parametrize(
    "said",
    [
        "",
        "nonsense",
        "[]",
        "7",
        '{"type": "shutdown"}',
        '{"seq": 7}',
        '{"type": "ack"}',
        '{"type": "ack", "seq": "7"}',
        '{"type": "ack", "seq": true}',
        '{"type": "ack", "seq": NaN}',
        '{"type": "ack", "seq": 1e999}',
        '{"type": "watch"}',
        '{"type": "watch", "stream": "main", "codec": "vp8"}',
        '{"type": "watch", "stream": "main", "fps": 0}',
        '{"type": "watch", "stream": "main", "fps": Infinity}',
        '{"type": "watch", "stream": "' + "a" * 65 + '"}',
        '{"type": "pause", "on": 1}',
        '{"type": "ping", "t": null}',
        '{"type": "command"}',
        '{"type": "command", "name": "a", "value": [1]}',
        '{"type": "command", "name": "a", "value": NaN}',
        '{"type": "command", "name": "a", "value": "' + "a" * 1025 + '"}',
        '{"type": "command", "name": "a\\nb"}',
        '{"type": "command", "name": "\\u001b[2J"}',
        '{"type": "command", "name": "\\ud800"}',
        '{"type": "command", "name": "a", "value": "a\\r\\nEpoch 7: loss 0"}',
        '{"type": "command", "name": "a", "value": "\\udfff"}',
        '{"type": "watch", "stream": "\\u2028"}',
        '{"type": ["ack"], "seq": 7}',
        '{"type": "ack", "seq": 7, "more": NaN}',
        '{"type": "ping", "t": 1, "pad": "' + "a" * 5000 + '"}',
        "[" * 4000,
        '{"type": "ack", "seq": ' + "9" * 4000 + "}",
    ],
)
def test_anything_else_is_refused(said: str) -> None:
    with pytest.raises(ProtocolError, match=r"^[ -~]+$"):
        parse(said)


@settings(deadline=None)
@given(
    st.text(max_size=200)
    | JSON.map(json.dumps)
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["ack", "watch", "pause", "replay", "ping", "command"])},
        optional=dict.fromkeys(("seq", "stream", "codec", "fps", "on", "t", "name", "value"), JSON),
    ).map(json.dumps)
)
def test_garbage_is_understood_or_refused(said: str) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(parse(said), protocol.Message)


def test_a_picture_there_and_back() -> None:
    sent = EncodedPicture(
        "grid", "h264", b"\x00\x01bytes", False, 9, 12.34567, 640, 480, {"step": 3, "name": 'a "quoted" ü'}
    )
    header, payload = protocol.read_picture(protocol.picture_message(sent, sent=13.0, dropped=4))
    assert payload == sent.data
    facts = {"seq": 9, "stream": "grid", "codec": "h264", "key": False, "width": 640, "height": 480, "replay": False}
    times = {"captured": 12.3457, "sent": 13.0}
    assert header == {**facts, **times, "meta": {"step": 3, "name": 'a "quoted" ü'}, "dropped": 4}
    assert sent.head is sent.head, "what is the same for all viewers is written once"


def message(header: bytes, payload: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack(">I", len(header) if length is None else length) + header + payload


WHOLE = message(b'{"seq": 1, "codec": "jpeg"}', b"payload")


def test_a_client_may_read_pictures() -> None:
    expected = {"seq": 1, "codec": "jpeg"}, b"payload"
    for whole in (WHOLE, bytearray(WHOLE), memoryview(WHOLE)):
        assert torchrl_gpu.streaming.read_picture(whole) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hostile", "says"),
    [
        (b"", "4 bytes.* 0"),
        (b"\x00\x00\x00", "4 bytes.* 3"),
        (WHOLE[:20], "header.* 16 bytes.* 27"),
        (message(b"", length=2**32 - 1), "header.* 4294967295"),
        (message(b"{}" + bytes(1 << 21), length=1 << 21), "header.* 1048576 bytes.* 2097152"),
        (message(b""), "header.*JSON"),
        (message(b"\xff\xfe"), "header.*JSON"),
        (message(b"[" * 100_000), "header.*JSON"),
        (message(b'{"seq": ' + b"9" * 5_000 + b"}"), "header.*JSON"),
        (message(b'{"seq": 1, "codec": "jpeg", "captured": NaN}'), "header.*JSON"),
        (message(b"[1]"), "header.*seq.*codec"),
        (message(b'{"codec": "jpeg"}'), "header.*seq.*codec"),
        (message(b'{"seq": true, "codec": "jpeg"}'), "header.*seq.*codec"),
        (message(b'{"seq": 1.5, "codec": "jpeg"}'), "header.*seq.*codec"),
        (message(b'{"seq": 1}'), "header.*seq.*codec"),
        ("text", "message.* str"),
        (None, "message.* NoneType"),
    ],
)
def test_bytes_that_are_no_picture_are_refused(hostile: Any, says: str) -> None:
    with pytest.raises(ValueError, match=rf"^read_picture: .*{says}"):
        protocol.read_picture(hostile)


@given(st.binary(max_size=200) | st.builds(lambda cut, more: WHOLE[:cut] + more, st.integers(0, 40), st.binary()))
def test_any_bytes_are_a_picture_or_a_value_error(hostile: bytes) -> None:
    with contextlib.suppress(ValueError):
        fields, payload = protocol.read_picture(hostile)
        assert isinstance(fields["seq"], int)
        assert hostile.endswith(payload)


def test_a_header_may_stand_in_a_field_of_http() -> None:
    text = protocol.picture_header(
        EncodedPicture("ü\n", "jpeg", b"", True, 1, 0.0, 1, 1, {"a": "\r\nSet-Cookie: b"}), sent=1.0
    )
    assert text.isascii()
    assert text.isprintable()
