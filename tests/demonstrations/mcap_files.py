"""Content of MCAP files, by the format's own reader and by libavcodec."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory


class Recording(NamedTuple):
    # Schemas by topic.
    schemas: dict[str, str]
    # Times in nanoseconds and messages, by topic.
    messages: dict[str, list[tuple[int, Any]]]
    metadata: dict[str, dict[str, str]]


def read(path: Path) -> Recording:
    """All of a file, decoded by nothing but the schemas inside it."""
    messages: dict[str, list[tuple[int, Any]]] = {}
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        for _, channel, message, decoded in reader.iter_decoded_messages():
            assert channel.message_encoding == "protobuf"
            assert message.publish_time == message.log_time
            messages.setdefault(channel.topic, []).append((message.log_time, decoded))
        metadata = {each.name: dict(each.metadata) for each in reader.iter_metadata()}
    assert summary.statistics.message_count == sum(map(len, messages.values()))
    schemas = {each.topic: summary.schemas[each.schema_id].name for each in summary.channels.values()}
    return Recording(schemas, messages, metadata)


def stamp(message: Any) -> int:
    time: int = message.timestamp.seconds * 1_000_000_000 + message.timestamp.nanos
    return time


def nal_types(data: bytes) -> list[int]:
    """Return the types of the parts of an Annex B access unit.

    1 is a slice, 5 an IDR slice, 7 and 8 are parameter sets.
    """
    return [part[0] & 31 for part in data.split(b"\0\0\1")[1:]]


def frames(videos: list[Any]) -> list[np.ndarray]:
    """Yield the pictures of messages.

    Each is decoded before the next one is seen, so nothing waits for a later frame.
    """
    decoder, found = av.CodecContext.create("h264", "r"), []
    decoder.flags |= av.codec.context.Flags.low_delay
    for video in videos:
        (frame,) = decoder.decode(av.Packet(video.data))
        assert frame.pict_type in (av.video.frame.PictureType.I, av.video.frame.PictureType.P)
        found.append(frame.to_ndarray(format="rgb24"))
    return found
