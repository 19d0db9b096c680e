"""The streams of one client, one per leader: opened on demand, broken when overdue, removed when lost. [S]"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from ottla_client.cluster import Cluster
from ottla_client.connection import Broker
from ottla_client.request_stream import RequestStream

log = logging.getLogger(__name__)

Stream = TypeVar("Stream", bound=RequestStream[Any])


class Streams(Generic[Stream]):
    def __init__(self, cluster: Cluster, make: Callable[[Broker], Stream], answer_within_s: float) -> None:
        """A stream whose oldest request waits longer than `answer_within_s` is overdue."""
        self._cluster = cluster
        self._make = make
        self._answer_within_s = answer_within_s
        self._by_leader: dict[int, Stream] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._by_leader.values()))

    def to(self, leader: int) -> Stream | None:
        """The stream to a leader; None if its address is unknown."""
        stream = self._by_leader.get(leader)
        if stream is None:
            broker = self._cluster.broker(leader)
            if broker is not None:
                stream = self._by_leader[leader] = self._make(broker)
        return stream

    def outstanding(self, leader: int) -> int:
        stream = self._by_leader.get(leader)
        return 0 if stream is None else stream.outstanding

    def forget(self, stream: Stream) -> None:
        self._by_leader = {leader: known for leader, known in self._by_leader.items() if known is not stream}

    def break_overdue(self, now: float) -> None:
        for stream in self:
            sent_at = stream.oldest_sent_at()
            if sent_at is not None and sent_at + self._answer_within_s <= now:
                address = stream.broker.address
                log.warning("%s did not answer within request_timeout_ms; reconnecting", address)
                stream.break_off()

    def overdue_at(self) -> Iterator[float]:
        """When each stream with unanswered requests becomes overdue."""
        for stream in self:
            sent_at = stream.oldest_sent_at()
            if sent_at is not None:
                yield sent_at + self._answer_within_s
