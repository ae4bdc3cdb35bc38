"""Prometheus metrics of a server."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

PREFIX = "torchrl_gpu_stream_"
_ACK_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # seconds


class _Registry(CollectorRegistry):
    """A registry that leaves out when each counter was created.

    The times of creation would double the number of series.
    """

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            samples = metric.samples
            metric.samples = [sample for sample in samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """Counters, gauges and a histogram of one server.

    They have a registry of their own, so that a program may have several servers. Any thread may add to them.
    """

    def __init__(self) -> None:
        self.registry = registry = _Registry()

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, help_text, labels, registry=registry)

        self.clients = Gauge(f"{PREFIX}clients", "Viewers connected.", ["transport"], registry=registry)
        self.frames_overwritten = counter(
            "frames_overwritten", "Frames that a newer one replaced before they were encoded.", "stream"
        )
        self.frames_encoded = counter("frames_encoded", "Pictures encoded.", "stream", "codec")
        self.key_frames = counter("key_frames", "Pictures of H.264 that a decoder can start at.", "stream")
        self.encode_seconds = counter("encode_seconds", "Time spent on encoding.", "stream", "codec")
        self.encode_errors = counter("encode_errors", "Pictures that could not be encoded.", "stream", "codec")
        self.encoded_bytes = counter("encoded_bytes", "Bytes of encoded pictures.", "stream", "codec")
        self.frames_sent = counter("frames_sent", "Pictures sent.", "codec", "transport")
        self.sent_bytes = counter("sent_bytes", "Bytes of pictures sent.", "codec", "transport")
        self.frames_dropped = counter("frames_dropped", "Pictures that a viewer was too slow for.", "codec")
        self.ack_seconds = Histogram(
            f"{PREFIX}ack_seconds",
            "From sending a picture to its acknowledgement.",
            buckets=_ACK_BUCKETS,
            registry=registry,
        )
        self.commands = counter("commands", "Commands that viewers sent.")
        self.failed_tokens = counter("failed_tokens", "Requests with a wrong token.")
        self.refused = counter("refused", "Requests refused.", "reason")
        self.peer_errors = counter("peer_errors", "Errors of packages over what peers sent.", "package")
        self.bad_messages = counter("bad_messages", "Messages of viewers that are none of the protocol's.")

    def count_dropped(self, codec: str, number: int) -> None:
        self.frames_dropped.labels(codec).inc(number)

    def count_sent(self, codec: str, transport: str, size: int) -> None:
        """Count one picture and its bytes."""
        self.frames_sent.labels(codec, transport).inc()
        self.sent_bytes.labels(codec, transport).inc(size)
