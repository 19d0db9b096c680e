"""The driver's lookups: one request for all topics, and which topics a pattern names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla_client import TopicDescription
from ottla_client.admin import PartitionDescription
from ottla_client.record import OffsetAndTimestamp
from ottla_core.errors import GroupAuthorizationFailed, RequestError
from ottla_core.ids import TopicPartition
from pyspark_ottla.lookup import ClusterLookup, ReadProblem
from pyspark_ottla.offsets import Position
from pyspark_ottla.options import read_options
from pyspark_ottla.reader import StreamReader


def topic(name: str, internal: bool = False, partitions: int = 2) -> TopicDescription:
    made = tuple(PartitionDescription(n, 0, 0, (0,), (0,), ()) for n in range(partitions))
    return TopicDescription(name, f"id-{name}", internal, made)


class FakeAdmin:
    """Has these topics, and keeps what it was asked for."""

    def __init__(self, *topics: TopicDescription) -> None:
        self._topics = {each.name: each for each in topics}
        self.asked: list[list[str] | None] = []
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.refusal: RequestError | None = None

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.committed.setdefault(group, {}).update(offsets)

    def list_offsets(
        self, asked: Iterable[TopicPartition], *, isolation_level: str
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return {tp: OffsetAndTimestamp(10, -1) for tp in asked}

    def describe_topics(self, names: Iterable[str] | None, *, missing_ok: bool) -> list[TopicDescription]:
        assert missing_ok
        wanted = None if names is None else list(names)
        self.asked.append(wanted)
        return [each for name, each in self._topics.items() if wanted is None or name in wanted]


def lookup(admin: FakeAdmin, **options: str) -> ClusterLookup:
    made: Any = ClusterLookup(read_options({"bootstrap.servers": "h:1", **options}, streaming=True))
    made._admin = admin
    return made  # type: ignore[no-any-return]


def test_all_topics_are_one_request() -> None:
    admin = FakeAdmin(*(topic(f"t{n}") for n in range(50)))
    names = [f"t{n}" for n in reversed(range(50))]
    found = lookup(admin, subscribe=",".join(names)).subscribed().complete()
    assert [tp.topic for tp in found.partitions[::2]] == names, "in the order of the option"
    assert found.ids["t7"] == "id-t7"
    assert len(admin.asked) == 1


def test_a_missing_topic_does_not_hide_the_others() -> None:
    admin = FakeAdmin(topic("a"), topic("c", partitions=1))
    found = lookup(admin, subscribe="a,b,c").subscribed()
    assert found.partitions == [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("c", 0)]
    with pytest.raises(ReadProblem, match="Topic 'b' does not exist at h:1"):
        found.complete()
    assert len(admin.asked) == 1


def test_a_pattern_names_no_internal_topics_and_no_decisions_of_sinks() -> None:
    """A stream that wrote exactly once and read `.*` would read the decisions of its own batches, without end."""
    admin = FakeAdmin(topic("a"), topic("__consumer_offsets", internal=True), topic("__spark_sink_state"))
    found = lookup(admin, subscribePattern=".*").subscribed()
    assert list(found.ids) == ["a"]
    assert admin.asked == [None]


def test_the_decisions_of_sinks_can_be_read_by_name() -> None:
    admin = FakeAdmin(topic("__spark_sink_state"))
    assert lookup(admin, subscribe="__spark_sink_state").subscribed().complete().ids


def stream(admin: FakeAdmin, **options: str) -> StreamReader:
    given = {"bootstrap.servers": "h:1", "subscribe": "a", **options}
    made: Any = StreamReader(read_options(given, streaming=True))
    made._opened = lookup(admin, **options, subscribe="a")
    return made  # type: ignore[no-any-return]


def at(offset: int, *, initial: bool = False) -> dict[str, Any]:
    return Position({TopicPartition("a", 0): offset}, {"a": "id-a"}, initial=initial).to_nested()


def test_a_stream_with_a_group_id_commits_where_the_next_batch_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = FakeAdmin(topic("a", partitions=1))
    reader = stream(admin, **{"kafka.group.id": "g"})
    reader.latestOffset(at(5, initial=True), ReadAllAvailable())
    assert admin.committed == {}, "nothing is done yet"
    reader.latestOffset(at(7), ReadAllAvailable())
    assert admin.committed == {"g": {TopicPartition("a", 0): 7}}
    admin.refusal = GroupAuthorizationFailed()
    reader.latestOffset(at(7), ReadAllAvailable())
    assert not caplog.text, "what is committed is not committed again"
    reader.latestOffset(at(9), ReadAllAvailable())
    assert "The lag of group g is not up to date" in caplog.text, "the query goes on"
    admin.refusal = None
    reader.latestOffset(at(9), ReadAllAvailable())
    assert admin.committed == {"g": {TopicPartition("a", 0): 7}}, "it does not try all the time"
    reader.__dict__["_show_at"] -= 10
    reader.latestOffset(at(9), ReadAllAvailable())
    assert admin.committed == {"g": {TopicPartition("a", 0): 9}}, "it tries again"


def test_a_stream_without_a_group_id_commits_nothing() -> None:
    admin = FakeAdmin(topic("a", partitions=1))
    stream(admin).latestOffset(at(5), ReadAllAvailable())
    assert admin.committed == {}
