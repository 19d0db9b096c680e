"""What `ottla top` shows: rates from two scrapes of all brokers. [P]

Everything comes from the brokers' metrics, so a look costs each broker one scrape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ottla_cli.metrics_text import Page

WANTED = frozenset(
    {
        "kafka_consumergroup_lag_sum",
        "kafka_consumergroup_members",
        "kafka_server_replicamanager_underreplicatedpartitions",
        "ottla_client_connections",
        "ottla_client_received_bytes_total",
        "ottla_client_requests_total",
        "ottla_client_sent_bytes_total",
        "ottla_consumergroup_lag_seconds",
        "ottla_controller",
        "ottla_log_dir_free_bytes",
        "ottla_log_dir_log_bytes",
        "ottla_log_dir_total_bytes",
        "ottla_partition_leaders",
        "ottla_topic_log_bytes",
        "ottla_topic_received_bytes_total",
        "ottla_topic_records_total",
        "ottla_topic_sent_bytes_total",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
    }
)


@dataclass(frozen=True, slots=True)
class Scrape:
    at_s: float
    #: By broker id; brokers that did not answer are missing.
    pages: Mapping[int, Page]


@dataclass(frozen=True, slots=True)
class BrokerRow:
    broker: int
    #: None: its metrics could not be read.
    cpu: float | None
    memory_bytes: float | None
    leaders: int | None
    in_bytes_s: float | None
    out_bytes_s: float | None
    log_bytes: float | None
    #: Of the fullest volume.
    disk_used: float | None
    controller: bool


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: str
    records_s: float
    in_bytes_s: float
    out_bytes_s: float
    log_bytes: float


@dataclass(frozen=True, slots=True)
class GroupRow:
    group: str
    topic: str
    lag: int
    #: Age of the oldest record that is not committed; None if unknown.
    lag_s: float | None
    members: int


@dataclass(frozen=True, slots=True)
class ClientRow:
    client: str
    protocol: str
    connections: int
    requests_s: float
    in_bytes_s: float
    out_bytes_s: float


@dataclass(frozen=True, slots=True)
class Look:
    brokers: Sequence[BrokerRow]
    topics: Sequence[TopicRow]
    groups: Sequence[GroupRow]
    clients: Sequence[ClientRow]
    under_replicated: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class _Rates:
    """Increases per second between two scrapes, summed over brokers that were in both."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._seconds = max(0.001, now.at_s - before.at_s)
        self._both = [(before.pages[id_], page) for id_, page in now.pages.items() if id_ in before.pages]

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        sums: dict[tuple[str, ...], float] = {}
        for old, new in self._both:
            was = old.by(name, *labels)
            for key, value in new.by(name, *labels).items():
                # A counter that fell belongs to a process that was restarted.
                rise = max(0.0, value - was.get(key, 0.0))
                sums[key] = sums.get(key, 0.0) + rise / self._seconds
        return sums


def look(broker_ids: Sequence[int], before: Scrape, now: Scrape) -> Look:
    return Look(
        [_broker(id_, before, now) for id_ in sorted(broker_ids)],
        _topics(before, now),
        _groups(now),
        _clients(before, now),
        int(
            sum(
                page.total("kafka_server_replicamanager_underreplicatedpartitions")
                for page in now.pages.values()
            )
        ),
    )


def _broker(id_: int, before: Scrape, now: Scrape) -> BrokerRow:
    page = now.pages.get(id_)
    if page is None:
        return BrokerRow(id_, None, None, None, None, None, None, None, False)
    only = _Rates(
        Scrape(before.at_s, {id_: before.pages[id_]} if id_ in before.pages else {}),
        Scrape(now.at_s, {id_: page}),
    )

    def rate(name: str) -> float | None:
        return sum(only.by(name).values()) if id_ in before.pages else None

    free = page.by("ottla_log_dir_free_bytes", "dir")
    used = [
        1 - free[key] / total
        for key, total in page.by("ottla_log_dir_total_bytes", "dir").items()
        if total and key in free
    ]
    return BrokerRow(
        id_,
        rate("process_cpu_seconds_total"),
        page.total("process_resident_memory_bytes"),
        int(page.total("ottla_partition_leaders")),
        rate("ottla_topic_received_bytes_total"),
        rate("ottla_topic_sent_bytes_total"),
        page.total("ottla_log_dir_log_bytes"),
        max(used, default=None),
        page.total("ottla_controller") > 0,
    )


def _topics(before: Scrape, now: Scrape) -> list[TopicRow]:
    rates = _Rates(before, now)
    records, received, sent = (
        rates.by(f"ottla_topic_{name}_total", "topic") for name in ("records", "received_bytes", "sent_bytes")
    )
    sizes: dict[tuple[str, ...], float] = {}
    for page in now.pages.values():
        for key, size in page.by("ottla_topic_log_bytes", "topic").items():
            sizes[key] = sizes.get(key, 0.0) + size
    rows = [
        TopicRow(
            key[0], records.get(key, 0.0), received.get(key, 0.0), sent.get(key, 0.0), sizes.get(key, 0.0)
        )
        for key in {*records, *sizes}
        if key[0] != "(other)" or records.get(key) or sent.get(key)
    ]
    return sorted(rows, key=lambda r: (-r.in_bytes_s - r.out_bytes_s, -r.log_bytes, r.topic))


def _groups(now: Scrape) -> list[GroupRow]:
    lags: dict[tuple[str, ...], float] = {}
    ages: dict[tuple[str, ...], float] = {}
    members: dict[tuple[str, ...], float] = {}
    for page in now.pages.values():
        lags |= page.by("kafka_consumergroup_lag_sum", "consumergroup", "topic")
        members |= page.by("kafka_consumergroup_members", "consumergroup")
        for labels, age in page.rows("ottla_consumergroup_lag_seconds"):
            key = (labels.get("consumergroup", ""), labels.get("topic", ""))
            ages[key] = max(ages.get(key, 0.0), age)
    rows = [
        GroupRow(group, topic, int(lag), ages.get((group, topic)), int(members.get((group,), 0)))
        for (group, topic), lag in lags.items()
    ]
    return sorted(rows, key=lambda r: (-r.lag, -(r.lag_s or 0), r.group, r.topic))


def _clients(before: Scrape, now: Scrape) -> list[ClientRow]:
    rates = _Rates(before, now)
    keys = ("client_id", "edge")
    requests, received, sent = (
        rates.by(f"ottla_client_{name}_total", *keys) for name in ("requests", "received_bytes", "sent_bytes")
    )
    open_: dict[tuple[str, ...], float] = {}
    for page in now.pages.values():
        for key, count in page.by("ottla_client_connections", *keys).items():
            open_[key] = open_.get(key, 0) + count
    rows = [
        ClientRow(
            key[0], key[1], int(count), requests.get(key, 0.0), received.get(key, 0.0), sent.get(key, 0.0)
        )
        for key, count in open_.items()
        if count or requests.get(key)
    ]
    return sorted(rows, key=lambda r: (-r.in_bytes_s - r.out_bytes_s, -r.requests_s, r.client))


def shares(height: int, wanted: Sequence[int]) -> list[int]:
    """Rows for each table: what it wants, or an equal share of what is left; a table has at least one row."""
    given = [0] * len(wanted)
    left = height
    open_ = [i for i in range(len(wanted)) if wanted[i]]
    while open_ and left > 0:
        part = max(1, left // len(open_))
        for i in list(open_):
            more = min(part, wanted[i] - given[i], left)
            given[i] += more
            left -= more
            if given[i] == wanted[i]:
                open_.remove(i)
            if left <= 0:
                break
    return [max(1, rows) if want else 0 for rows, want in zip(given, wanted, strict=True)]
