"""Counters as Prometheus reads them."""

from __future__ import annotations

import re
import threading

from torchrl_gpu.streaming.broadcast.metrics import Metrics

LINE = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? [-+0-9.e]+')


def test_every_line_is_one_that_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.add("frames_encoded_total", stream='odd "name" \\ of\na stream', codec="jpeg")
    metrics.add("encode_seconds_total", 0.25, stream="main", codec="jpeg")
    metrics.set("clients", 3, transport="websocket")
    metrics.observe("ack_seconds", 0.03)
    lines = metrics.render().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in samples), samples
    assert 'torchrl_gpu_stream_clients{transport="websocket"} 3' in samples
    assert 'torchrl_gpu_stream_encode_seconds_total{stream="main",codec="jpeg"} 0.25' in samples
    assert sum(line.startswith("# TYPE") for line in lines) == sum(line.startswith("# HELP") for line in lines) > 10


def test_a_histogram_by_hand() -> None:
    metrics = Metrics()
    for seconds in (0.004, 0.03, 0.04, 9.0):
        metrics.observe("ack_seconds", seconds)
    lines = dict(
        line.rsplit(" ", 1) for line in metrics.render().splitlines() if "ack_seconds" in line and "#" not in line
    )
    name = "torchrl_gpu_stream_ack_seconds"
    assert lines[f'{name}_bucket{{le="0.005"}}'] == "1"
    assert lines[f'{name}_bucket{{le="0.02"}}'] == "1"
    assert lines[f'{name}_bucket{{le="0.05"}}'] == "3"
    assert lines[f'{name}_bucket{{le="+Inf"}}'] == lines[f"{name}_count"] == "4"
    assert float(lines[f"{name}_sum"]) == 9.074


def test_threads_lose_nothing() -> None:
    metrics = Metrics()
    threads = [threading.Thread(target=lambda: [metrics.add("commands_total") for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value("commands_total") == 8000


def test_what_is_kept_elsewhere_is_read_when_it_is_asked_for() -> None:
    metrics, published = Metrics(), [0]
    metrics.before_reading(lambda: metrics.set("frames_published_total", published[0], stream="main"))
    published[0] = 12
    assert 'frames_published_total{stream="main"} 12\n' in metrics.render()
