"""Requests moves, and waits until the brokers have carried them out. [S]

The controller bounds how many partitions a broker copies at once, so all moves are requested together and nothing is
left to do for this process but to watch: it may end at any time, and the moves go on.

While it watches, brokers may die, the controller may change and topics may be deleted. Requests are repeated until
they are answered, which is safe because a move that has begun already begins only once; a deleted topic is left out;
a partition that the brokers refuse to move does not keep the others from moving.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from ottla_client.admin import Admin
from ottla_client.cluster_admin import Reassignment
from ottla_client.errors import ClientClosed, ClientError, RequestError, UnknownTopicOrPartition
from ottla_client.rebalance import Move
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock

T = TypeVar("T")

#: Between two looks at the moves: each asks the brokers concerned for the sizes of the logs that move.
_EVERY_S = 1.0
#: Errors in a row are endured for so long: a cluster that lost its controller or its etcd may well come back by then.
PATIENCE_S = 300.0
#: A broker may answer from metadata that does not show the last of the requested moves yet.
_LATE_S = 10.0


@dataclass(slots=True)
class Carried:
    """How the moves ended."""

    #: Deleted meanwhile.
    vanished: list[TopicPartition] = field(default_factory=list)
    refused: dict[TopicPartition, RequestError] = field(default_factory=dict)
    #: No longer moving, and not where they were to go: the move was cancelled, or replaced by another one.
    elsewhere: list[TopicPartition] = field(default_factory=list)


async def patiently(clock: Clock, ask: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
    """The answer, as soon as a broker gives one."""
    deadline = clock.monotonic() + patience_s
    while True:
        try:
            return await ask()
        except (ClientError, RequestError, TimeoutError) as error:
            hopeless = isinstance(error, ClientClosed | UnknownTopicOrPartition) or (
                isinstance(error, RequestError) and not error.retriable
            )
            if hopeless or clock.monotonic() > deadline:
                raise
        await clock.sleep(_EVERY_S)


class CarryOut:
    def __init__(
        self,
        admin: Admin,
        clock: Clock,
        moves: Sequence[Move],
        *,
        also: Collection[TopicPartition] = (),
        on_progress: Callable[[int, int], None] = lambda _left, _moving: None,
    ) -> None:
        """`also`: partitions that move already, to be waited for. `on_progress`: bytes left, partitions left."""
        self._admin = admin
        self._clock = clock
        self._targets = {TopicPartition(each.topic, each.partition): each for each in moves}
        self._also = frozenset(also)
        self._on_progress = on_progress
        self._carried = Carried()

    async def run(self) -> Carried:
        open_ = await self._request(dict(self._targets))
        late_at = self._clock.monotonic() + _LATE_S
        while True:
            moving = await patiently(self._clock, self._admin.list_partition_reassignments)
            ours = [each for each in moving if each.tp in self._targets or each.tp in self._also]
            self._report(ours)
            if not ours:
                left = await self._not_there(open_)
                if not left or self._clock.monotonic() > late_at:
                    break
            else:
                late_at = self._clock.monotonic() + _LATE_S
            await self._clock.sleep(_EVERY_S)
        self._carried.elsewhere = left
        arrived = [tp for tp in open_ if tp not in self._carried.vanished and tp not in left]
        await patiently(self._clock, lambda: self._admin.elect_leaders(arrived))
        return self._carried

    async def _request(self, pending: dict[TopicPartition, Move]) -> dict[TopicPartition, Move]:
        """Begin all moves; return those that did."""
        begun: dict[TopicPartition, Move] = {}
        deadline = self._clock.monotonic() + PATIENCE_S
        while pending:
            targets = {tp: move.after for tp, move in pending.items()}
            ask = partial(self._admin.alter_partition_reassignments, targets)
            outcomes = await patiently(self._clock, ask)
            for tp, error in ((each.tp, each.error) for each in outcomes):
                if error is None:
                    begun[tp] = pending.pop(tp)
                elif isinstance(error, UnknownTopicOrPartition):
                    self._carried.vanished.append(tp)
                    del pending[tp]
                elif not error.retriable or self._clock.monotonic() > deadline:
                    self._carried.refused[tp] = error
                    del pending[tp]
            if pending:
                await self._clock.sleep(_EVERY_S)
        return begun

    def _report(self, ours: Sequence[Reassignment]) -> None:
        left = 0
        for each in ours:
            planned = self._targets.get(each.tp)
            known = all(replica.bytes_total >= 0 for replica in each.progress)
            left += (
                sum(replica.bytes_left for replica in each.progress)
                if known or planned is None
                else planned.copied
            )
        self._on_progress(left, len(ours))

    async def _not_there(self, begun: Mapping[TopicPartition, Move]) -> list[TopicPartition]:
        """Partitions that are not where they were to go; those of deleted topics are noted."""
        topics = await patiently(self._clock, self._admin.describe_topics)
        replicas = {
            TopicPartition(topic.name, each.partition): tuple(each.replicas)
            for topic in topics
            for each in topic.partitions
        }
        self._carried.vanished += [
            tp for tp in begun if tp not in replicas and tp not in self._carried.vanished
        ]
        return [tp for tp, move in begun.items() if tp in replicas and replicas[tp] != move.after]
