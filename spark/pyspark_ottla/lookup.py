"""The driver's questions to the cluster: which partitions are there, and which offsets do they have. [A]

Called by `reader` on the driver, where a streaming query keeps one of these for its life. Refusals become sentences
for a Spark user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ottla_client.errors import ClientError, RequestError, UnknownTopicOrPartition
from ottla_client.sync import Admin
from ottla_core.ids import TopicPartition
from pyspark_ottla.offsets import Bound, OffsetProblem, Question, listed, questions, resolved, too_young
from pyspark_ottla.options import ReadOptions


class ReadProblem(Exception):
    """Why nothing can be read, in one sentence."""


class ClusterLookup:
    """Opened at the first question."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._admin: Admin | None = None

    def close(self) -> None:
        if self._admin is not None:
            self._admin.stop()
            self._admin = None

    def __enter__(self) -> ClusterLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partitions(self) -> list[TopicPartition]:
        """All partitions that the options speak of, as they are now."""
        topics = self._options.topics
        if topics.assigned:
            names = list(dict.fromkeys(tp.topic for tp in topics.assigned))
        elif topics.pattern is not None:
            pattern = re.compile(topics.pattern)
            try:
                names = [name for name in self._open().list_topics() if pattern.fullmatch(name)]
            except (ClientError, RequestError) as error:
                raise ReadProblem(str(error)) from None
        else:
            names = list(topics.named)
        found = [tp for name in names for tp in self._partitions_of(name)]
        if not topics.assigned:
            return found
        missing = sorted(set(topics.assigned) - set(found))
        if missing:
            raise ReadProblem(f"assign names {listed(missing)}, which does not exist.")
        return list(topics.assigned)

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        try:
            (described,) = self._open().describe_topics([topic])
        except UnknownTopicOrPartition:
            raise ReadProblem(
                f"Topic {topic!r} does not exist at {self._options.bootstrap}; create it first, or check the name."
            ) from None
        except (ClientError, RequestError) as error:
            raise ReadProblem(str(error)) from None
        return [TopicPartition(topic, each.partition) for each in described.partitions]

    def offsets(self, asked: Mapping[TopicPartition, Question]) -> dict[TopicPartition, int]:
        """The offset for each question; -1 where no record is that young."""
        if not asked:
            return {}
        isolation = "read_committed" if self._options.read_committed else "read_uncommitted"
        try:
            found = self._open().list_offsets(asked, isolation_level=isolation)
        except (ClientError, RequestError) as error:
            raise ReadProblem(f"Offsets could not be looked up: {error}") from None
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
                f"No record of {listed(late)} is as young as {bound.option} asks; set "
                "startingOffsetsByTimestampStrategy to latest to wait for the next ones."
            )
        latest = self.same("latest", [tp for tp, offset in found.items() if offset < 0])
        try:
            return resolved(bound, partitions, found, latest)
        except OffsetProblem as error:
            raise ReadProblem(str(error)) from None

    def _open(self) -> Admin:
        if self._admin is None:
            admin = Admin(self._options.bootstrap)
            try:
                admin.start()
            except ValueError as error:
                raise ReadProblem(f"bootstrap.servers: {error}") from None
            except (ClientError, RequestError) as error:
                raise ReadProblem(str(error)) from None
            self._admin = admin
        return self._admin
