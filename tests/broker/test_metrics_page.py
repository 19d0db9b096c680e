"""The metrics page of a real broker, read as strictly as promtool does, and what it says of the logs."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer

pytestmark = pytest.mark.integration

_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


def page_of(cluster: LocalCluster) -> str:
    with urllib.request.urlopen(f"http://{cluster.brokers[0].http}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read(), "utf-8")


def check_strictly(text: str) -> None:
    """What Prometheus' own linter demands: order, types, one sample per series, and whole histograms."""
    assert text.endswith("\n") and "\n\n" not in text
    heads = [line.split(" ")[:3] for line in text.splitlines() if line.startswith("#")]
    for (_, first, named), (_, second, typed) in zip(heads[::2], heads[1::2], strict=True):
        assert (first, second) == ("HELP", "TYPE") and named == typed
    assert len(heads) == 2 * len({name for _, _, name in heads}), "a family is told twice"
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)), "a series is there twice"
    for family in text_string_to_metric_families(text):
        check_family(family)


def check_family(family: Metric) -> None:
    assert family.documentation.endswith("."), family.name
    assert all(not math.isnan(sample.value) for sample in family.samples), family.name
    for sample in family.samples:
        assert sample.name.removeprefix(family.name) in _SUFFIXES[family.type], sample
        assert family.type == "gauge" or sample.value >= 0, sample
    if family.type != "histogram":
        return
    by_labels = groupby(family.samples, lambda s: {k: v for k, v in s.labels.items() if k != "le"})
    for _, samples in by_labels:
        rows = list(samples)
        buckets = [(float(s.labels["le"]), s.value) for s in rows if s.name.endswith("_bucket")]
        assert all(a < b and low <= high for (a, low), (b, high) in pairwise(buckets)), family.name
        (count,) = [s.value for s in rows if s.name.endswith("_count")]
        assert buckets[-1] == (math.inf, count), family.name


def total(text: str, name: str) -> float:
    found = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples if not s.labels}
    return found[name]


def test_rolls_and_recoveries_are_counted(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    with Admin(cluster.grpc_bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, configs={"segment.bytes": "1048576"})])
    with Producer(cluster.grpc_bootstrap, linger_ms=0) as producer:
        for _ in range(15):
            producer.send("t", bytes(200_000)).result(10)
    before = page_of(cluster)
    check_strictly(before)
    assert total(before, "ottla_log_segments_rolled_total") >= 2
    assert total(before, "ottla_log_recovered_bytes_total") == 0
    cluster.kill(0)
    cluster.restart(0)
    after = page_of(cluster)
    check_strictly(after)
    assert total(after, "ottla_log_recovered_bytes_total") >= 200_000
    assert total(after, "ottla_log_recovery_cut_bytes_total") == 0
    assert total(after, "ottla_log_corruptions_total") == 0
