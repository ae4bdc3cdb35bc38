"""ROS 2 by Cyclone DDS from PyPI: no ROS is installed, and nodes of any DDS take part.

cyclonedds' own codec writes sequences byte by byte, 65 ms for an image of 640×480. Types here carry their bytes, which
rosbags wrote.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, TEXT, type_store
from torchrl_gpu.streaming.ros2.transport import Callback, ros_domain

_LOG = logging.getLogger(__name__)
_WHERE = "RosBridge"
_LAST_NS = 200_000_000  # that the last messages may take to arrive
_FOREVER = 2**63 - 1  # nanoseconds, DDS_INFINITY

# An image is one sample of many UDP packets: fewer and larger ones, and room for several images while Python is busy.
CONFIG = """<CycloneDDS><Domain><General>{network}<MaxMessageSize>65500B</MaxMessageSize>
<FragmentSize>65000B</FragmentSize></General>{discovery}
<Internal><SocketReceiveBufferSize min="default" max="16MB"/></Internal></Domain></CycloneDDS>"""
LOOPBACK = {
    "network": '<Interfaces><NetworkInterface name="lo" multicast="false"/></Interfaces>'
    "<AllowMulticast>false</AllowMulticast>",
    "discovery": '<Discovery><Peers><Peer address="127.0.0.1"/></Peers><ParticipantIndex>auto</ParticipantIndex>'
    "</Discovery>",
}


class CycloneDds:
    """A participant of a DDS domain; see `Transport`. A process has one of them for each domain.

    Images are sent and received as ROS 2's sensor data are, best effort, the newest alone; what else is sent is
    reliable, so that every kind of reader gets it, and received best effort, which every kind of writer allows. Texts
    are requests and answers: reliable, as ROS 2's own publishers are, and none of the last 64 is left out.

    With ROS_LOCALHOST_ONLY=1 it stays on this machine, without multicast. The variable CYCLONEDDS_URI replaces the
    settings of the network. ValueError where the domain is in use, or the network cannot be used.
    """

    def __init__(self, domain: int | None = None) -> None:
        self.domain = ros_domain(domain)
        names = ("core", "domain", "topic", "sub", "pub", "qos", "idl", "idl.types")
        self._dds = {name: load(f"cyclonedds.{name}", "ros2", _WHERE) for name in names}
        stays_here = os.environ.get("ROS_LOCALHOST_ONLY") == "1"
        config = CONFIG.format(**(LOOPBACK if stays_here else {"network": "", "discovery": ""}))
        core, domains = self._dds["core"], self._dds["domain"]
        try:
            self._domain = domains.Domain(self.domain, os.environ.get("CYCLONEDDS_URI") or config)
            self._participant = domains.DomainParticipant(self.domain)
        except core.DDSException as error:
            wanted = "a network that Cyclone DDS can use, and a domain that nothing else in this process uses"
            raise ValueError(f"{_WHERE}: want {wanted}; got {error} in domain {self.domain}") from None
        self._types: dict[str, Any] = {}
        self._writers: dict[tuple[str, str], Any] = {}
        self._readers: list[tuple[Any, Callback]] = []
        self._entities: list[Any] = []  # Python's wrappers end what they stand for
        self._lock = threading.Lock()
        self._closed = False
        self._wake = core.GuardCondition(self._participant)
        self._waiting = core.WaitSet(self._participant)
        self._waiting.attach(self._wake)
        self._thread = threading.Thread(target=self._receive, name="torchrl_gpu ros receiver", daemon=True)
        self._thread.start()

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        core = self._dds["core"]
        with self._lock:
            self._refuse_if_closed()
            reader = self._dds["sub"].DataReader(
                self._participant, self._topic(topic, type_name), self._qos(type_name == TEXT, type_name)
            )
            mask = core.SampleState.Any | core.ViewState.Any | core.InstanceState.Any
            condition = core.ReadCondition(reader, mask)
            self._entities.append(condition)
            self._waiting.attach(condition)
            self._readers = [*self._readers, (reader, callback)]
            self._wake.set(True)

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        with self._lock:
            self._writer(topic, type_name).write(self._types[type_name](data))

    def is_matched(self, topic: str, type_name: str) -> bool:
        """True if a topic has a subscriber; declares the publisher."""
        with self._lock:
            return bool(self._writer(topic, type_name).get_matched_subscriptions())

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake.set(True)
            for (_, type_name), writer in self._writers.items():
                if type_name not in (IMAGE, COMPRESSED):
                    writer.wait_for_acks(_LAST_NS)
        self._thread.join()
        with self._lock:
            self._readers, self._writers, self._entities = [], {}, []
            del self._waiting, self._wake, self._participant, self._domain

    def _receive(self) -> None:
        """Waits in C, without the lock of the interpreter, until something comes."""
        while True:
            self._waiting.wait(_FOREVER)
            if self._closed:
                return
            self._wake.set(False)
            for reader, callback in self._readers:
                for sample in reader.take(1):
                    if (data := getattr(sample, "data", None)) is not None:  # else a writer has left
                        callback(data)

    def _writer(self, topic: str, type_name: str) -> Any:
        self._refuse_if_closed()
        if (topic, type_name) not in self._writers:
            qos = self._qos(type_name not in (IMAGE, COMPRESSED), type_name)
            made = self._dds["pub"].DataWriter(self._participant, self._topic(topic, type_name), qos)
            self._writers[topic, type_name] = made
        return self._writers[topic, type_name]

    def _topic(self, topic: str, type_name: str) -> Any:
        if type_name not in self._types:
            self._types[type_name] = _carrier(self._struct(type_name))
        return self._dds["topic"].Topic(self._participant, f"rt{topic}", self._types[type_name])

    def _qos(self, reliable: bool, type_name: str = "") -> Any:
        policy = self._dds["qos"].Policy
        kind = policy.Reliability.Reliable(100_000_000) if reliable else policy.Reliability.BestEffort
        return self._dds["qos"].Qos(kind, policy.History.KeepLast(64 if type_name == TEXT else 1))

    def _struct(self, type_name: str) -> Any:
        """The DDS type, with ROS 2's names, by which other participants recognise it."""
        package, _, short = type_name.split("/")
        types, fields = self._dds["idl.types"], type_store().fielddefs[type_name][1]
        plain = {"bool": bool, "string": str, "char": types.uint8}

        def resolved(form: Any) -> Any:
            kind, value = form[0].name, form[1]
            if kind == "BASE":
                return plain.get(value[0]) or getattr(types, value[0])
            if kind == "NAME":
                return self._struct(value)
            inner = resolved(value[0])
            return types.sequence[inner] if kind == "SEQUENCE" else types.array[inner, value[1]]

        named = {name: resolved(form) for name, form in fields}
        return self._dds["idl"].make_idl_struct(f"{short}_", f"{package}::msg::dds_::{short}_", named)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("CycloneDds: want an open transport; got one that was closed")


def _carrier(struct: Any) -> Any:
    """The type, of objects that hold the bytes of a message and nothing else."""

    def __init__(self: Any, data: bytes) -> None:
        self.data = data

    struct.__init__ = __init__
    struct.serialize = lambda self, use_version_2=None: self.data
    struct.deserialize = classmethod(lambda cls, data, **_: cls(data))
    struct.deserialize_key = struct.deserialize
    return struct
