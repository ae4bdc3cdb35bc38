"""ROS 2 nodes that run on rmw_zenoh, by eclipse-zenoh: what its design document and its attachments say of the wire.

A publisher's key is DOMAIN/TOPIC/TYPE/HASH; beside the bytes of a message stand its number, its time and its sender.
Distributions differ in the hash (Humble has none) and in whether what stands beside is named (until Kilted). What the
graph sends says which it is; until something has come, messages are sent as Jazzy does. Nodes of this transport do not
appear in `ros2 node list`. It was tested against itself and against recorded attachments, not against a ROS 2 node.
"""

from __future__ import annotations

import json
import os
import threading
import time
from itertools import count
from typing import Any

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.ros2.messages import type_store
from torchrl_gpu.streaming.ros2.transport import Callback, ros_domain

_WHERE = "RosBridge"
_ROUTER = "tcp/localhost:7447"
_ROUTER_S = 3.0  # that it may take to answer
_NO_HASH = "TypeHashNotSupported"


class Zenoh:
    """A session of a zenoh network; see `Transport`. ValueError where no router and no peer answers.

    The file ZENOH_SESSION_CONFIG_URI says which network; without one it is that of this machine's router.
    """

    def __init__(self, domain: int | None) -> None:
        self.domain = ros_domain(domain)
        zenoh = load("zenoh", "zenoh", _WHERE)
        settings = {"mode": "peer", "connect": {"endpoints": [_ROUTER]}, "scouting": {"multicast": {"enabled": False}}}
        file = os.environ.get("ZENOH_SESSION_CONFIG_URI")
        try:
            config = zenoh.Config.from_file(file) if file else zenoh.Config.from_json5(json.dumps(settings))
            self._session = zenoh.open(config)
        except Exception as error:  # zenoh's own
            raise ValueError(f"{_WHERE}: want a zenoh network; got {' '.join(str(error).split())[:200]}") from None
        if not self._is_connected():
            self._session.close()
            wanted = f"a zenoh router or peer, such as `ros2 run rmw_zenoh_cpp rmw_zenohd` at {_ROUTER}"
            raise ValueError(f"{_WHERE}: want {wanted}; got no answer")
        self._lock = threading.Lock()
        self._publishers: dict[tuple[str, str, bool], tuple[Any, count[int]]] = {}
        self._is_named, self._has_hash, self._closed = True, True, False

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        def receive(sample: Any) -> None:
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
                raise RuntimeError("Zenoh: want an open transport; got one that was closed")
            of = topic, type_name, self._has_hash
            if of not in self._publishers:
                found = type_store().hash_rihs01(type_name) if self._has_hash else _NO_HASH
                declared = self._session.declare_publisher(key(self.domain, topic, type_name, found))
                self._publishers[of] = declared, count(1)
            publisher, numbers = self._publishers[of]
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
            time.sleep(0.02)
        return True


def key(domain: int, topic: str, type_name: str, of_type: str) -> str:
    package, _, short = type_name.split("/")
    return f"{domain}/{topic.strip('/')}/{package}::msg::dds_::{short}_/{of_type}"


def attachment(number: int, time_ns: int, sender: bytes, named: bool) -> bytes:
    """Attachment of a message: its number and its time, int64 little endian, and 16 bytes of its sender."""
    values = {
        "sequence_number": number.to_bytes(8, "little"),
        "source_timestamp": time_ns.to_bytes(8, "little"),
        "source_gid": bytes([16]) + sender,
    }
    return b"".join((bytes([len(name)]) + name.encode() if named else b"") + value for name, value in values.items())


def is_named(found: bytes) -> bool:
    return found.startswith(b"\x0fsequence_number")
