"""`ottla top`: reading metrics, rates between two scrapes, and what fits on a screen."""

from __future__ import annotations

import pytest

from cli.ottla_command import Ottla
from ottla_broker.exposed import Family, Sample
from ottla_broker.exposition import write_text
from ottla_cli.local_cluster import LocalCluster
from ottla_cli.metrics_text import Page, read_page
from ottla_cli.quantities import setting_value, show_age
from ottla_cli.top_view import WANTED, Scrape, look, shares

ODD = 'a "quoted" \\ name\nin two lines'


def page(*families: tuple[str, list[tuple[dict[str, str], float]]]) -> Page:
    """Through the broker's own writer."""
    text = write_text(
        Family(name, "gauge", "X.", [Sample("", tuple(labels.items()), value) for labels, value in rows])
        for name, rows in families
    )
    return read_page(text, WANTED)


def test_pages_of_the_brokers_writer_are_read() -> None:
    found = page(
        ("ottla_topic_records_total", [({"topic": "a"}, 3), ({"topic": ODD}, 4.5)]),
        ("ottla_not_wanted", [({}, 1)]),
    )
    assert found.by("ottla_topic_records_total", "topic") == {("a",): 3, (ODD,): 4.5}
    assert set(found.series) == {"ottla_topic_records_total"}
    assert read_page("garbage\nottla_controller {\nottla_controller x\n", WANTED).series == {}


def _broker(records: float, sent: float, cpu_s: float, lag: float) -> Page:
    return page(
        ("ottla_topic_records_total", [({"topic": "a"}, records), ({"topic": "b"}, 7)]),
        ("ottla_topic_received_bytes_total", [({"topic": "a"}, records * 10)]),
        ("ottla_topic_log_bytes", [({"topic": "a", "dir": "/x"}, 100), ({"topic": "a", "dir": "/y"}, 50)]),
        ("process_cpu_seconds_total", [({}, cpu_s)]),
        ("process_resident_memory_bytes", [({}, 1e6)]),
        ("kafka_consumergroup_lag_sum", [({"consumergroup": "g", "topic": "a"}, lag)]),
        ("kafka_consumergroup_members", [({"consumergroup": "g"}, 2)]),
        (
            "ottla_consumergroup_lag_seconds",
            [({"consumergroup": "g", "topic": "a", "partition": str(p)}, 5.0 + p) for p in (0, 1)],
        ),
        ("ottla_client_connections", [({"client_id": "c", "edge": "kafka"}, 1)]),
        ("ottla_client_sent_bytes_total", [({"client_id": "c", "edge": "kafka"}, sent)]),
    )


def test_rates_are_increases_per_second_and_a_restart_is_no_negative_rate() -> None:
    found = look(
        [0, 1, 2],
        Scrape(10.0, {0: _broker(100, 0, 1.0, 0), 1: _broker(500, 0, 1.0, 0)}),
        Scrape(12.0, {0: _broker(160, 400, 2.0, 9), 1: _broker(2, 0, 0.1, 9)}),
    )
    (a, b) = found.topics
    assert (a.topic, a.records_s, a.in_bytes_s, a.log_bytes) == ("a", 30, 300, 300)
    assert (b.topic, b.records_s) == ("b", 0)
    zero, one, two = found.brokers
    assert zero.cpu == 0.5 and one.cpu == 0 and one.leaders == 0
    assert two.memory_bytes is None and two.cpu is None, "offline"
    ((group),) = found.groups
    assert (group.lag, group.lag_s, group.members) == (9, 6.0, 2)
    assert found.clients[0].out_bytes_s == 200


@pytest.mark.parametrize(
    ("height", "wanted", "given"),
    [(20, [3, 3, 3], [3, 3, 3]), (9, [10, 10, 10], [3, 3, 3]), (10, [2, 50, 0], [2, 8, 0]), (0, [5, 5, 0], [1, 1, 0])],
)  # fmt: skip
def test_tables_share_the_screen(height: int, wanted: list[int], given: list[int]) -> None:
    assert shares(height, wanted) == given


def test_values_as_people_write_them() -> None:
    assert setting_value("retention.ms", "7d") == "604800000"
    assert setting_value("retention.ms", "-1") == "-1"
    assert setting_value("segment.bytes", "64MiB") == str(64 * 1024 * 1024)
    assert setting_value("cleanup.policy", "7d") == "7d"
    assert [show_age(each) for each in (0.4, 59, 90, 7200, 200_000)] == [
        "0 s",
        "59 s",
        "2 min",
        "2.0 h",
        "2.3 d",
    ]


@pytest.mark.integration
def test_top_shows_a_real_cluster(ottla: Ottla, local_cluster: LocalCluster) -> None:
    topic = ottla.topic("--partitions", "2")
    ottla.produce(topic, given=b"one\ntwo\n")
    ottla.consume(topic, "--group", f"{topic}-readers", "-e", "--max", "1")
    found = ottla("top", "--json", "--interval", "0.5").json
    (broker,) = found["brokers"]
    assert broker["controller"] and broker["memory_bytes"] > 1e6 and broker["disk_used"] > 0
    assert any(each["topic"] == topic and each["log_bytes"] > 0 for each in found["topics"])
    assert any(each["group"] == f"{topic}-readers" and each["lag"] == 1 for each in found["groups"])
    shown = ottla("top", "--once", "--interval", "0.5").out
    assert "1 of 1 brokers, controller 0" in shown and topic in shown
