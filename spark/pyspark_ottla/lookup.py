"""The driver's lookups in the cluster: partitions and offsets. [A]

Called by `reader` on the driver; a streaming query keeps one instance for its lifetime. Errors become messages for a
Spark user.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla_client import TopicDescription
from ottla_client.errors import ClientError, RequestError
from ottla_client.sync import Admin
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.real.clock import RealClock
from pyspark_ottla.decision_log import TOPIC as DECISIONS_TOPIC
from pyspark_ottla.offsets import (
    Bound,
    OffsetProblem,
    Position,
    Question,
    listed,
    questions,
    resolved,
    too_young,
)
from pyspark_ottla.options import ReadOptions
from pyspark_ottla.plan import losses_until

log = logging.getLogger(__name__)


class ReadProblem(Exception):
    """Why the data cannot be read, in one sentence."""


@dataclass(frozen=True, slots=True)
class Found:
    """Partitions that exist, their topics' ids, and a sentence for each topic or partition that does not exist."""

    partitions: list[TopicPartition] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def complete(self) -> Found:
        """Returns itself; raises ReadProblem if something is missing."""
        if self.missing:
            raise ReadProblem(self.missing[0])
        return self


def _found(described: Iterable[TopicDescription]) -> Found:
    found = Found()
    for topic in described:
        found.ids[topic.name] = topic.topic_id
        found.partitions.extend(TopicPartition(topic.name, each.partition) for each in topic.partitions)
    return found


#: A broker learns within milliseconds that a topic was created or deleted. An answer that still differs after this
#: long is correct.
_SECOND_LOOK_S = 1.0


class ClusterLookup:
    """Connects at the first lookup."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or RealClock()
        self._admin: Admin | None = None

    def close(self) -> None:
        if self._admin is not None:
            self._admin.stop()
            self._admin = None

    def __enter__(self) -> ClusterLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def subscribed(self) -> Found:
        """All partitions that the options name, as they exist now."""
        topics = self._options.topics
        if topics.assigned:
            found = self.topics(dict.fromkeys(tp.topic for tp in topics.assigned))
            lacking = sorted(
                tp for tp in set(topics.assigned) - set(found.partitions) if tp.topic in found.ids
            )
            if lacking:
                found.missing.append(f"assign names {listed(lacking)}, which does not exist.")
            wanted = [tp for tp in topics.assigned if tp in set(found.partitions)]
            return Found(wanted, found.ids, found.missing)
        if topics.pattern is None:
            return self.topics(topics.named)
        pattern = re.compile(topics.pattern)
        matching = [
            each for each in self._described(None) if not each.internal and pattern.fullmatch(each.name)
        ]
        # A query that read the decisions of its own sink would never come to an end.
        return _found([each for each in matching if each.name != DECISIONS_TOPIC])

    def topics(self, names: Iterable[str]) -> Found:
        names = list(dict.fromkeys(names))
        described = {each.name: each for each in self._described(names)}
        found = _found([described[name] for name in names if name in described])
        found.missing.extend(
            f"Topic {name!r} does not exist at {self._options.bootstrap}; create it first, or check the name."
            for name in names
            if name not in described
        )
        return found

    def _described(self, names: Iterable[str] | None) -> list[TopicDescription]:
        """Topics that exist, all if none are named; one request, however many they are."""
        try:
            return self._open().describe_topics(names, missing_ok=True)
        except (ClientError, RequestError) as error:
            raise ReadProblem(str(error)) from None

    def latest(self) -> Position:
        """End offsets of the subscribed partitions, without topics that do not exist."""
        found = self.subscribed()
        return Position(self._existing("latest", found), found.ids)

    def latest_after(self, start: Position) -> Position:
        """Like `latest`. If a topic of `start` seems deleted or recreated, look it up a second time to be sure."""
        found = self.latest()
        if losses_until(start, found):
            self._pause()
            found = self.latest()
        return found

    def oldest(self, planned: Position) -> Position:
        """Earliest offsets of the planned partitions that exist, and the current ids of their topics."""
        found = self.topics(dict.fromkeys(tp.topic for tp in planned.offsets))
        if any(planned.ids.get(topic, id_now) != id_now for topic, id_now in found.ids.items()):
            self._pause()
            found = self.topics(found.ids)
        wanted = [tp for tp in found.partitions if tp in planned.offsets]
        return Position(self._existing("earliest", Found(wanted, found.ids)), found.ids)

    def _pause(self) -> None:
        asyncio.run(self._clock.sleep(_SECOND_LOOK_S))

    def _existing(self, question: str, found: Found) -> dict[TopicPartition, int]:
        """Offsets of partitions, without those whose topic is deleted meanwhile."""
        try:
            return self.same(question, found.partitions)
        except ReadProblem:
            left = set(self.topics(found.ids).partitions)
            if left.issuperset(found.partitions):
                raise
            return self.same(question, [tp for tp in found.partitions if tp in left])

    def offsets(self, asked: Mapping[TopicPartition, Question]) -> dict[TopicPartition, int]:
        """The offset for each question; -1 if there is no record at or after the time."""
        if not asked:
            return {}
        isolation = "read_committed" if self._options.read_committed else "read_uncommitted"
        try:
            found = self._open().list_offsets(asked, isolation_level=isolation)
        except (ClientError, RequestError) as error:
            raise ReadProblem(f"Cannot look up offsets: {error}") from None
        return {tp: each.offset for tp, each in found.items()}

    def same(self, question: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self.offsets(dict.fromkeys(partitions, question))

    def bound(self, bound: Bound, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """A starting or ending bound as offsets."""
        found = self.offsets(questions(bound, partitions))
        late = too_young(bound, found)
        is_start = bound.option.startswith("starting")
        if late and is_start and not self._options.latest_if_too_young:
            raise ReadProblem(
                f"{listed(late)} has no record at or after {bound.option}; set "
                "startingOffsetsByTimestampStrategy to latest to start with the next record."
            )
        latest = self.same("latest", [tp for tp, offset in found.items() if offset < 0])
        try:
            return resolved(bound, partitions, found, latest)
        except OffsetProblem as error:
            raise ReadProblem(str(error)) from None

    def commit(self, group: str, reached: Mapping[TopicPartition, int]) -> bool:
        """Store offsets as those of a consumer group, so that its lag is that of the query. The query itself goes by
        its checkpoint, so a failure is no reason to stop it. Returns whether they are stored."""
        try:
            self._open().alter_group_offsets(group, reached)
        except (ClientError, RequestError, ReadProblem) as error:
            log.warning("The lag of group %s is not up to date: %s", group, error)
            return False
        return True

    def _open(self) -> Admin:
        if self._admin is None:
            admin = Admin(
                self._options.bootstrap,
                security=self._options.security,
                request_timeout_ms=self._options.request_timeout_ms,
            )
            try:
                admin.start()
            except ValueError as error:
                raise ReadProblem(f"bootstrap.servers: {error}") from None
            except (ClientError, RequestError) as error:
                raise ReadProblem(str(error)) from None
            self._admin = admin
        return self._admin
