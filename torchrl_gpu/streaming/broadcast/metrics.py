"""Counters and gauges in the text format of Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "torchrl_gpu_stream_"
_ACK_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

# What is counted: name, type, and what it says.
_KINDS = {
    "clients": ("gauge", "Viewers connected, by transport."),
    "watchers": ("gauge", "Viewers of a stream, by codec."),
    "frames_published_total": ("counter", "Frames that the program published."),
    "frames_overwritten_total": ("counter", "Frames that a newer one replaced before they were encoded."),
    "frames_encoded_total": ("counter", "Pictures encoded, by codec."),
    "key_frames_total": ("counter", "Pictures of H.264 that a decoder can start at."),
    "encode_seconds_total": ("counter", "Time spent on encoding, by codec."),
    "encode_errors_total": ("counter", "Pictures that could not be encoded, by codec."),
    "encoded_bytes_total": ("counter", "Bytes of encoded pictures, by codec."),
    "frames_sent_total": ("counter", "Pictures sent, by codec and transport."),
    "sent_bytes_total": ("counter", "Bytes of pictures sent, by codec and transport."),
    "frames_dropped_total": ("counter", "Pictures that a viewer was too slow for, by codec."),
    "ack_seconds": ("histogram", "From sending a picture to its acknowledgement."),
    "commands_total": ("counter", "Commands that viewers sent."),
    "failed_tokens_total": ("counter", "Requests with a wrong token."),
    "refused_total": ("counter", "Requests refused, by reason."),
    "peer_errors_total": ("counter", "Errors of packages over what peers sent, by package."),
    "bad_messages_total": ("counter", "Messages of viewers that are none of the protocol's."),
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Numbers with labels; any thread may add to them."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in _KINDS}
        self._lock = threading.Lock()
        self._readers: list[Callable[[], None]] = []

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Adds to a counter."""
        key = tuple(labels.items())
        with self._lock:
            values = self._values[name]
            values[key] = values.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge, or a counter that is kept elsewhere."""
        with self._lock:
            self._values[name][tuple(labels.items())] = value

    def observe(self, name: str, value: float) -> None:
        """Adds to a histogram."""
        with self._lock:
            values = self._values[name]
            for bound in (*_ACK_BUCKETS, float("inf")):
                key = (("le", "+Inf" if bound == float("inf") else str(bound)),)
                values[key] = values.get(key, 0.0) + (value <= bound)
            values[()] = values.get((), 0.0) + value

    def value(self, name: str, **labels: str) -> float:
        """What has been counted under exactly these labels."""
        with self._lock:
            return self._values[name].get(tuple(labels.items()), 0.0)

    def before_reading(self, reader: Callable[[], None]) -> None:
        """Has a function called before each `render`, which sets what is kept elsewhere."""
        self._readers.append(reader)

    def render(self) -> str:
        """Everything, as Prometheus reads it."""
        for reader in self._readers:
            reader()
        with self._lock:
            return "".join(line + "\n" for name in _KINDS for line in self._lines(name))

    def _lines(self, name: str) -> Iterable[str]:
        kind, says = _KINDS[name]
        full = _PREFIX + name
        yield f"# HELP {full} {says}"
        yield f"# TYPE {full} {kind}"
        values = self._values[name]
        if kind != "histogram":
            yield from (f"{full}{_labels(key)} {_number(value)}" for key, value in values.items())
        elif values:
            yield from (f"{full}_bucket{_labels(key)} {_number(value)}" for key, value in values.items() if key)
            yield f"{full}_sum {_number(values[()])}"
            yield f"{full}_count {_number(values[(('le', '+Inf'),)])}"


def _labels(key: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in key) + "}" if key else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
