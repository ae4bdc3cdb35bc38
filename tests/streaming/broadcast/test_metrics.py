"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.metrics import PREFIX

# The names and labels that dashboards rely on.
NAMES = {
    "clients": {"transport"},
    "watchers": {"stream", "codec"},
    "frames_published": {"stream"},
    "frames_overwritten": {"stream"},
    "frames_encoded": {"stream", "codec"},
    "key_frames": {"stream"},
    "encode_seconds": {"stream", "codec"},
    "encode_errors": {"stream", "codec"},
    "encoded_bytes": {"stream", "codec"},
    "frames_sent": {"codec", "transport"},
    "sent_bytes": {"codec", "transport"},
    "frames_dropped": {"codec"},
    "ack_seconds": {"le"},
    "commands": set(),
    "failed_tokens": set(),
    "refused": {"reason"},
    "peer_errors": {"package"},
    "bad_messages": set(),
}


def test_names_and_labels_are_those_that_dashboards_know() -> None:
    hub = Hub()
    hub.declare('odd "name" \\ of a stream')
    metrics = hub.metrics
    for name, labels in NAMES.items():
        if name not in ("watchers", "frames_published", "ack_seconds") and labels:
            metric = getattr(metrics, name).labels(**dict.fromkeys(labels, 'a "b" \\ c\nd'))
            (metric.set if name == "clients" else metric.inc)(3)
    metrics.ack_seconds.observe(0.03)
    families = list(text_string_to_metric_families(generate_latest(metrics.registry).decode()))
    assert {family.name.removeprefix(PREFIX) for family in families} == NAMES.keys(), "and no times of creation"
    for family in families:
        labels = NAMES[family.name.removeprefix(PREFIX)]
        assert family.samples, family.name
        for sample in family.samples:
            assert set(sample.labels) == (labels if sample.name.endswith("_bucket") or labels != {"le"} else set())
        assert family.samples[0].name.endswith("_total") == (family.type == "counter")
    by_name = {family.name.removeprefix(PREFIX): family for family in families}
    assert by_name["frames_encoded"].samples[0].labels["codec"] == 'a "b" \\ c\nd'
    assert by_name["frames_published"].samples[0].labels["stream"] == 'odd "name" \\ of a stream'


def test_each_server_counts_for_itself_and_none_in_the_registry_of_the_program() -> None:
    one, other = Hub(), Hub()
    one.metrics.commands.inc()
    assert other.metrics.registry.get_sample_value(f"{PREFIX}commands_total") == 0
    assert PREFIX not in generate_latest(REGISTRY).decode()
