"""Probes are read back by Prometheus' own parser; labels cannot grow without bound."""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ottla_broker import metrics as metrics_module
from ottla_broker.exposed import OTHER, SECONDS_BOUNDS, Histogram
from ottla_broker.exposition import write_text
from ottla_broker.metrics import (
    AuthorizerProbe,
    GroupsProbe,
    GrpcEdgeProbe,
    KafkaEdgeProbe,
    LogProbe,
    MetadataProbe,
    Metrics,
    PartitionsProbe,
    ReplicationProbe,
)


def _scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = write_text(metrics.families())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_components_count_is_what_a_scrape_shows() -> None:
    metrics = Metrics()
    metrics.kafka.bytes_in += 100
    metrics.kafka.requests.of("Produce").n += 2
    metrics.log.flush_seconds.observe(0.0003)
    metrics.log.flush_seconds.observe(99.0)
    metrics.topics.of("orders").bytes_in += 7
    metrics.describe({"version": "1.2", "broker_id": "3"})

    seen = _scrape(metrics)

    assert seen["ottla_kafka_received_bytes_total", ()] == 100
    assert seen["ottla_kafka_requests_total", (("api", "Produce"),)] == 2
    assert seen["ottla_log_flush_seconds_bucket", (("le", "0.00025"),)] == 0
    assert seen["ottla_log_flush_seconds_bucket", (("le", "0.0005"),)] == 1
    assert seen["ottla_log_flush_seconds_bucket", (("le", "10.0"),)] == 1
    assert seen["ottla_log_flush_seconds_bucket", (("le", "+Inf"),)] == 2
    assert seen["ottla_log_flush_seconds_count", ()] == 2
    assert math.isclose(seen["ottla_log_flush_seconds_sum", ()], 99.0003)
    assert seen["ottla_topic_received_bytes_total", (("topic", "orders"),)] == 7
    assert seen["ottla_broker_info", (("broker_id", "3"), ("version", "1.2"))] == 1


def test_the_grpc_probe_counts_answers_and_refusals() -> None:
    metrics = Metrics()
    metrics.grpc.stream_opened("produce")
    metrics.grpc.answered("produce")
    metrics.grpc.answered("produce", ["NOT_LEADER_OR_FOLLOWER"])
    seen = _scrape(metrics)
    assert seen["ottla_grpc_streams_opened_total", (("method", "produce"),)] == 1
    assert seen["ottla_grpc_requests_total", (("method", "produce"),)] == 2
    assert seen["ottla_grpc_errors_total", (("error", "NOT_LEADER_OR_FOLLOWER"),)] == 1


def test_a_bucket_holds_its_own_upper_bound() -> None:
    histogram = Histogram()
    for bound in SECONDS_BOUNDS:
        histogram.observe(bound)
    assert histogram.counts == [1] * len(SECONDS_BOUNDS) + [0]


def test_topics_beyond_the_limit_are_summed_up() -> None:
    metrics = Metrics(topics_max=2)
    for number in range(50):
        metrics.topics.of(f"t{number}").bytes_out += 1
    metrics.topics.forget("t0")
    metrics.topics.of("late").bytes_out += 5

    seen = _scrape(metrics)
    by_topic = {dict(labels)["topic"]: n for (name, labels), n in seen.items() if "topic_sent" in name}
    assert by_topic == {"t1": 1, "late": 5, OTHER: 48}


def test_hostile_label_values_stay_one_sample() -> None:
    metrics = Metrics()
    nasty = 'a"b\\c\nottla_fake_total 1'
    metrics.kafka.errors.add(nasty)
    seen = _scrape(metrics)
    assert seen["ottla_kafka_errors_total", (("error", nasty),)] == 1
    assert not [name for name, _ in seen if name.startswith("ottla_fake")]


def test_labels_of_closed_sets_are_bounded_all_the_same() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.kafka.errors.add(f"E{number}")
    errors = {
        labels: n for (name, labels), n in _scrape(metrics).items() if name == "ottla_kafka_errors_total"
    }
    assert len(errors) == 129
    assert sum(errors.values()) == 1000


def test_gauges_can_be_counted_when_asked() -> None:
    metrics = Metrics()
    held = [1, 2, 3]
    metrics.before_scrape(lambda: setattr(metrics.partitions, "partitions", len(held)))
    assert _scrape(metrics)["ottla_partitions", ()] == 3
    held.clear()
    assert _scrape(metrics)["ottla_partitions", ()] == 0


def test_every_probe_is_written() -> None:
    """A metric that is always zero says that all is well when nobody looks."""
    package = Path(metrics_module.__file__).parent
    code = "".join(path.read_text() for path in package.rglob("*.py"))
    probes = (
        KafkaEdgeProbe,
        GrpcEdgeProbe,
        LogProbe,
        PartitionsProbe,
        ReplicationProbe,
        GroupsProbe,
        MetadataProbe,
        AuthorizerProbe,
    )
    unwritten = [
        f"{probe.__name__}.{part.name}"
        for probe in probes
        for part in fields(probe)
        if not re.search(rf"\.{part.name}\b( \+?= |\.add\(|\.of\(|\.observe\(|[,)\]}}])", code)
    ]
    assert unwritten == []


def test_every_probe_is_on_the_page() -> None:
    metrics = Metrics()
    names = {family.name for family in metrics.families()}
    probes = [value for value in vars(metrics).values() if is_dataclass(value)]
    assert len(probes) == 13
    parts = [part for probe in probes for part in fields(probe)]
    assert {part.metadata["name"] for part in parts if part.name != "times"} <= names


def test_names_follow_the_conventions_and_are_unique() -> None:
    families = list(Metrics().families())
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        assert re.fullmatch(r"(ottla|kafka)_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.type == "counter"), family.name
        assert family.name.endswith("_seconds") == (family.type == "histogram"), family.name
        assert family.doc.endswith("."), family.name
