"""ROS 2 nodes that run on rmw_zenoh, by eclipse-zenoh.

This follows what the design document of rmw_zenoh and its attachments say of the wire. A publisher's key is
DOMAIN/TOPIC/TYPE/HASH; an attachment to the bytes of a message has its number, its time and its sender. Distributions
differ in the hash (Humble has none) and in whether the parts of the attachment have names (until Kilted). Messages that
come show which distribution it is; until then, messages are sent as Jazzy does. Nodes of this transport do not appear
in `ros2 node list`. It was tested against itself and against recorded attachments, not against a ROS 2 node.
"""

from __future__ import annotations

import json
import os
import threading
import time
from itertools import count
from types import ModuleType
from typing import NamedTuple, Protocol

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.ros2.messages import type_store
from torchrl_gpu.streaming.ros2.transport import Callback, ros_domain

_WHERE = "RosBridge"
_ROUTER = "tcp/localhost:7447"
# Seconds that the router may take to answer, and between two looks.
_ROUTER_S = 3.0
_LOOK_S = 0.02
_NO_HASH = "TypeHashNotSupported"
# The name of the first part of an attachment whose parts have names, behind its length.
_FIRST_NAME = b"\x0fsequence_number"
# Characters of an error that are quoted.
_MOST_QUOTED = 200


class _Bytes(Protocol):
    """A `zenoh.ZBytes`."""

    def to_bytes(self) -> bytes: ...


class _Sample(Protocol):
    """A `zenoh.Sample`."""

    @property
    def key_expr(self) -> object: ...

    @property
    def attachment(self) -> _Bytes | None: ...

    @property
    def payload(self) -> _Bytes: ...


class _ZenohPublisher(Protocol):
    """A `zenoh.Publisher`."""

    def put(self, data: bytes, *, attachment: bytes) -> None: ...


class _Publisher(NamedTuple):
    """A publisher of a topic, with the numbers of its messages."""

    publisher: _ZenohPublisher
    numbers: count[int]


class Zenoh:
    """A session of a zenoh network.

    A `Transport`.

    The file ZENOH_SESSION_CONFIG_URI says which network; without one it is that of this machine's router.

    Raises:
        ValueError: No router and no peer answers.
    """

    def __init__(self, domain: int | None) -> None:
        self.domain = ros_domain(domain)
        zenoh: ModuleType = load("zenoh", "zenoh", _WHERE)
        settings = {"mode": "peer", "connect": {"endpoints": [_ROUTER]}, "scouting": {"multicast": {"enabled": False}}}
        file = os.environ.get("ZENOH_SESSION_CONFIG_URI")
        try:
            config = zenoh.Config.from_file(file) if file else zenoh.Config.from_json5(json.dumps(settings))
            self._session = zenoh.open(config)
        except Exception as error:
            # zenoh has errors of its own.
            reason = " ".join(str(error).split())[:_MOST_QUOTED]
            raise ValueError(f"{_WHERE}: the zenoh network cannot be used: {reason}") from None
        if not self._is_connected():
            self._session.close()
            raise ValueError(
                f"{_WHERE}: no zenoh router or peer answers; start one, such as `ros2 run rmw_zenoh_cpp rmw_zenohd`,"
                f" at {_ROUTER}"
            )
        self._lock = threading.Lock()
        # By topic, type and whether the key has the type's hash.
        self._publishers: dict[tuple[str, str, bool], _Publisher] = {}
        # What is known of the distribution of the other nodes.
        self._is_named = True
        self._has_hash = True
        self._closed = False

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        def receive(sample: _Sample) -> None:
            if self._closed:
                return
            self._has_hash = not str(sample.key_expr).endswith(_NO_HASH)
            if sample.attachment is not None:
                self._is_named = is_named(sample.attachment.to_bytes())
            callback(sample.payload.to_bytes())

        self._session.declare_subscriber(key(self.domain, topic, type_name, "*"), receive)

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("Zenoh is closed")
            place = (topic, type_name, self._has_hash)
            if place not in self._publishers:
                type_hash = type_store().hash_rihs01(type_name) if self._has_hash else _NO_HASH
                declared = self._session.declare_publisher(key(self.domain, topic, type_name, type_hash))
                self._publishers[place] = _Publisher(declared, count(1))
            publisher, numbers = self._publishers[place]
            sender = bytes.fromhex(str(self._session.zid()).rjust(32, "0"))
            publisher.put(data, attachment=attachment(next(numbers), time.time_ns(), sender, self._is_named))

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._session.close()

    def _is_connected(self) -> bool:
        ends = time.monotonic() + _ROUTER_S
        while not (self._session.info.routers_zid() or self._session.info.peers_zid()):
            if time.monotonic() > ends:
                return False
            time.sleep(_LOOK_S)
        return True


def key(domain: int, topic: str, type_name: str, type_hash: str) -> str:
    """Return the key of a publisher, or with "*" as hash that of a subscriber."""
    package, _, short = type_name.split("/")
    return f"{domain}/{topic.strip('/')}/{package}::msg::dds_::{short}_/{type_hash}"


def attachment(number: int, time_ns: int, sender: bytes, named: bool) -> bytes:
    """Return the attachment of a message.

    Args:
        number: Of the message, int64 little endian.
        time_ns: When it is sent, int64 little endian.
        sender: 16 bytes.
        named: Whether each part has its name.
    """
    values = {
        "sequence_number": number.to_bytes(8, "little"),
        "source_timestamp": time_ns.to_bytes(8, "little"),
        "source_gid": bytes([16]) + sender,
    }
    parts = []
    for name, value in values.items():
        if named:
            parts.append(bytes([len(name)]) + name.encode())
        parts.append(value)
    return b"".join(parts)


def is_named(found: bytes) -> bool:
    """Return whether the parts of an attachment have names."""
    return found.startswith(_FIRST_NAME)
