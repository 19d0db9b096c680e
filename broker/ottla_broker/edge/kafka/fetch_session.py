"""Fetch sessions (KIP-227): a client with thousands of partitions sends only what changed, and gets only
that. [P]

A session belongs to the connection that opened it and ends with it. Clients keep one per broker and start a
new one after a reconnect, so nothing is lost by that, and there is nothing to evict, to guess or to expire.

Theory of operation. The client's first full fetch opens a session with epoch 0 and gets its id. The
following ones carry epoch 1, 2, … and only the partitions to add, change or forget; any other epoch means
that one of us missed something, and the client starts over. An incremental answer leaves out partitions
about which nothing is new: no records, no error, the same high watermark and log start offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla_broker.edge.kafka.fetch_wire import FetchPartition, FetchRequest, FetchTopic
from ottla_broker.requests import Fetched
from ottla_core.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from ottla_core.ids import NO_BROKER

SESSIONLESS_EPOCH = -1
FIRST_EPOCH = 0
_EPOCH_MAX = (1 << 31) - 1
#: Partitions in all sessions together, at ~300 bytes each. A fetch that would exceed it is served without a
#: session.
PARTITIONS_MAX = 100_000

#: The key of a topic (name or id, as the client says it), and per partition index what was fetched.
Answers = list[tuple[bytes, list[tuple[int, Fetched]]]]


@dataclass(slots=True)
class _Known:
    """One partition of a session: the client's request, and the last response."""

    wanted: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1
    #: An error was returned: include the partition in the next response, whatever has changed.
    failed: bool = False


class FetchSession:
    def __init__(self, session_id: int, by_id: bool) -> None:
        self.id = session_id
        #: Whether topics are named by id; a session cannot change that on its way.
        self.by_id = by_id
        self._next_epoch = FIRST_EPOCH + 1
        #: In the order in which they are read: partitions that returned records move to the end, so that all get
        #: their turn.
        self._partitions: dict[tuple[bytes, int], _Known] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def advance(self, epoch: int) -> None:
        if epoch != self._next_epoch:
            raise InvalidFetchSessionEpoch()
        self._next_epoch = FIRST_EPOCH + 1 if epoch == _EPOCH_MAX else epoch + 1

    def update(self, topics: Iterable[FetchTopic], forgotten: Iterable[tuple[bytes, list[int]]] = ()) -> None:
        for key, indexes in forgotten:
            for index in indexes:
                self._partitions.pop((key, index), None)
        for topic in topics:
            for wanted in topic.partitions:
                known = self._partitions.get((topic.key, wanted.partition))
                if known is None:
                    self._partitions[topic.key, wanted.partition] = _Known(wanted)
                else:
                    known.wanted = wanted

    def topics(self) -> list[FetchTopic]:
        """The session's partitions in round-robin order; a topic may appear several times.

        Grouped by topic, partitions that were served would come before others that were not.
        """
        grouped: list[FetchTopic] = []
        for (key, _), known in self._partitions.items():
            if not grouped or grouped[-1].key != key:
                grouped.append(FetchTopic(key, []))
            grouped[-1].partitions.append(known.wanted)
        return grouped

    def news(self, answers: Answers) -> Answers:
        """The changes since the last response; they count as sent from now on."""
        changed: Answers = []
        for key, partitions in answers:
            fresh = [(index, fetched) for index, fetched in partitions if self._is_news(key, index, fetched)]
            if fresh:
                changed.append((key, fresh))
        return changed

    def _is_news(self, key: bytes, index: int, fetched: Fetched) -> bool:
        known = self._partitions.get((key, index))
        if known is None:
            return True
        is_news = (
            bool(fetched.records)
            or fetched.error is not None
            or known.failed
            or fetched.preferred_replica != NO_BROKER
            or fetched.high_watermark != known.high_watermark
            or fetched.log_start_offset != known.log_start_offset
        )
        known.high_watermark = fetched.high_watermark
        known.log_start_offset = fetched.log_start_offset
        known.failed = fetched.error is not None
        if fetched.records:
            self._partitions[key, index] = self._partitions.pop((key, index))
        return is_news


class FetchSessions:
    """How many sessions there are on all connections, within limits."""

    def __init__(self, sessions_max: int) -> None:
        self._max = sessions_max
        self._last_id = 0
        self._sessions: dict[int, int] = {}
        self._partitions = 0

    def open(self, request: FetchRequest, *, by_id: bool) -> FetchSession | None:
        """A session for what a full fetch asks; None if there is no room for it."""
        size = sum(len(topic.partitions) for topic in request.topics)
        if len(self._sessions) >= self._max or self._partitions + size > PARTITIONS_MAX:
            return None
        self._last_id = self._last_id % _EPOCH_MAX + 1
        session = FetchSession(self._last_id, by_id)
        session.update(request.topics)
        self._sessions[session.id] = 0
        self.resized(session)
        return session

    def resume(self, session: FetchSession | None, request: FetchRequest, *, by_id: bool) -> FetchSession:
        """The session of an incremental fetch, brought up to date."""
        if session is None or session.id != request.session_id or session.by_id != by_id:
            raise FetchSessionIdNotFound()
        session.advance(request.session_epoch)
        session.update(request.topics, request.forgotten)
        self.resized(session)
        if self._partitions > PARTITIONS_MAX:
            # It grew beyond all measure: the client goes on without, as after any lost session.
            self.close(session)
            raise FetchSessionIdNotFound()
        return session

    def resized(self, session: FetchSession) -> None:
        self._partitions += len(session) - self._sessions[session.id]
        self._sessions[session.id] = len(session)

    def close(self, session: FetchSession) -> None:
        self._partitions -= self._sessions.pop(session.id, 0)
