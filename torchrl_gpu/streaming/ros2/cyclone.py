"""ROS 2 by Cyclone DDS from PyPI.

No ROS need be installed, and nodes of any DDS take part. cyclonedds' own codec writes sequences byte by byte, 65 ms for
an image of 640×480. So the types here carry bytes, which rosbags wrote.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, TEXT, type_store
from torchrl_gpu.streaming.ros2.transport import Callback, ros_domain

_WHERE = "RosBridge"
_MODULES = ("core", "domain", "topic", "sub", "pub", "qos", "idl", "idl.types")
# Nanoseconds that the last messages may take to arrive.
_LAST_NS = 200_000_000
# Nanoseconds that a reliable writer may wait for a slow reader.
_BLOCK_NS = 100_000_000
# Nanoseconds, DDS_INFINITY.
_FOREVER = 2**63 - 1
# Texts that are kept for a reader; of everything else, the newest.
_KEPT_TEXTS = 64

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


class _Reader(Protocol):
    """A `cyclonedds.sub.DataReader`."""

    def take(self, most: int) -> list[object]: ...


class _Writer(Protocol):
    """A `cyclonedds.pub.DataWriter`."""

    def write(self, sample: object) -> None: ...

    def wait_for_acks(self, timeout: int) -> bool: ...

    def get_matched_subscriptions(self) -> list[object]: ...


class CycloneDds:
    """A participant of a DDS domain.

    A `Transport`. A process has one of them for each domain.

    Images are sent and received as ROS 2's sensor data are, best effort, the newest alone; what else is sent is
    reliable, so that every kind of reader gets it, and received best effort, which every kind of writer allows. Texts
    are requests and answers: reliable, as ROS 2's own publishers are, and none of the last 64 is left out.

    With ROS_LOCALHOST_ONLY=1 it stays on this machine, without multicast. The variable CYCLONEDDS_URI replaces the
    settings of the network.

    Raises:
        ValueError: The domain is in use, or the network cannot be used.
    """

    def __init__(self, domain: int | None = None) -> None:
        self.domain = ros_domain(domain)
        self._dds: dict[str, ModuleType] = {name: load(f"cyclonedds.{name}", "ros2", _WHERE) for name in _MODULES}
        stays_here = os.environ.get("ROS_LOCALHOST_ONLY") == "1"
        network = LOOPBACK if stays_here else {"network": "", "discovery": ""}
        config = os.environ.get("CYCLONEDDS_URI") or CONFIG.format(**network)
        core = self._dds["core"]
        domains = self._dds["domain"]
        try:
            self._domain = domains.Domain(self.domain, config)
            self.participant = domains.DomainParticipant(self.domain)
        except core.DDSException as error:
            raise ValueError(
                f"{_WHERE}: Cyclone DDS cannot use the network in domain {self.domain}, or something else in this"
                f" process uses the domain: {error}"
            ) from None
        self.types: dict[str, Callable[[bytes], object]] = {}
        self.writers: dict[tuple[str, str], _Writer] = {}
        self.readers: list[tuple[_Reader, Callback]] = []
        # Python's wrappers end what they stand for when nothing refers to them any more.
        self._entities: list[object] = []
        self._lock = threading.Lock()
        self._closed = False
        self._wake = core.GuardCondition(self.participant)
        self._waiting = core.WaitSet(self.participant)
        self._waiting.attach(self._wake)
        self._thread = threading.Thread(target=self._receive, name="torchrl_gpu ros receiver", daemon=True)
        self._thread.start()

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        core = self._dds["core"]
        with self._lock:
            self._refuse_if_closed()
            is_text = type_name == TEXT
            reader = self._dds["sub"].DataReader(
                self.participant, self.topic_of(topic, type_name), self.quality_of(is_text, type_name)
            )
            mask = core.SampleState.Any | core.ViewState.Any | core.InstanceState.Any
            condition = core.ReadCondition(reader, mask)
            self._entities.append(condition)
            self._waiting.attach(condition)
            # A new list each time: the receiver may be going through the old one.
            self.readers = [*self.readers, (reader, callback)]
            self._wake.set(True)

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        with self._lock:
            self._writer(topic, type_name).write(self.types[type_name](data))

    def is_matched(self, topic: str, type_name: str) -> bool:
        """Declare the publisher of a topic, and return whether there is a subscriber."""
        with self._lock:
            return bool(self._writer(topic, type_name).get_matched_subscriptions())

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake.set(True)
            # The last action must arrive. Pictures are sent best effort, so that no reader acknowledges them.
            for (_, type_name), writer in self.writers.items():
                if type_name not in (IMAGE, COMPRESSED):
                    writer.wait_for_acks(_LAST_NS)
        self._thread.join()
        with self._lock:
            self.readers = []
            self.writers = {}
            self._entities = []
            del self._waiting, self._wake, self.participant, self._domain

    def _receive(self) -> None:
        """Wait in C, without the lock of the interpreter, until something comes."""
        while True:
            self._waiting.wait(_FOREVER)
            if self._closed:
                return
            self._wake.set(False)
            for reader, callback in self.readers:
                for sample in reader.take(1):
                    # A sample without data tells that a writer has left.
                    data = getattr(sample, "data", None)
                    if data is not None:
                        callback(data)

    def _writer(self, topic: str, type_name: str) -> _Writer:
        self._refuse_if_closed()
        if (topic, type_name) not in self.writers:
            is_reliable = type_name not in (IMAGE, COMPRESSED)
            quality = self.quality_of(is_reliable, type_name)
            made_topic = self.topic_of(topic, type_name)
            writer = self._dds["pub"].DataWriter(self.participant, made_topic, quality)
            self.writers[topic, type_name] = writer
        return self.writers[topic, type_name]

    def topic_of(self, topic: str, type_name: str) -> object:
        if type_name not in self.types:
            self.types[type_name] = _carrier(self.struct_of(type_name))
        made: object = self._dds["topic"].Topic(self.participant, f"rt{topic}", self.types[type_name])
        return made

    def quality_of(self, is_reliable: bool, type_name: str) -> object:
        """Return the quality of service of a reader or writer."""
        policy = self._dds["qos"].Policy
        kind = policy.Reliability.Reliable(_BLOCK_NS) if is_reliable else policy.Reliability.BestEffort
        kept = policy.History.KeepLast(_KEPT_TEXTS if type_name == TEXT else 1)
        quality: object = self._dds["qos"].Qos(kind, kept)
        return quality

    def struct_of(self, type_name: str) -> object:
        """Return the DDS type of a message.

        It has ROS 2's names, by which other participants recognise it.
        """
        package, _, short = type_name.split("/")
        fields = type_store().fielddefs[type_name][1]
        forms = {name: self._form(form) for name, form in fields}
        struct: object = self._dds["idl"].make_idl_struct(f"{short}_", f"{package}::msg::dds_::{short}_", forms)
        return struct

    def _form(self, form: Any) -> object:
        """Return the DDS type of a field, from the form that rosbags gives it."""
        types = self._dds["idl.types"]
        kind, value = form
        if kind.name == "BASE":
            plain = {"bool": bool, "string": str, "char": types.uint8}
            plain_name = value[0]
            found: object = plain.get(plain_name) or getattr(types, plain_name)
            return found
        if kind.name == "NAME":
            return self.struct_of(value)
        inner = self._form(value[0])
        made: object = types.sequence[inner] if kind.name == "SEQUENCE" else types.array[inner, value[1]]
        return made

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("CycloneDds is closed")


class _Carrier:
    """What a type of messages does: it holds their bytes, and nothing else."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self, use_version_2: bool | None = None) -> bytes:
        return self.data

    @classmethod
    def deserialize(cls, data: bytes, **_: object) -> _Carrier:
        return cls(data)


def _carrier(struct: Any) -> Callable[[bytes], object]:
    """Make a DDS type carry the bytes of its messages, in place of their fields."""
    struct.__init__ = _Carrier.__init__
    struct.serialize = _Carrier.serialize
    struct.deserialize = classmethod(_Carrier.deserialize.__func__)  # type: ignore[attr-defined]
    struct.deserialize_key = struct.deserialize
    carrier: Callable[[bytes], object] = struct
    return carrier
