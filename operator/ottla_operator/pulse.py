"""Detects changes on a Cluster's brokers within seconds, and schedules the affected resources. [S]

It sends two requests for all Topics of a Cluster, instead of two per Topic: reconciling every Topic every few seconds
would take thousands of requests. It compares only leaders and ISRs; drift of settings waits for the regular interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ottla_core.errors import RequestError
from ottla_operator.brokers import Beat, BrokersAway
from ottla_operator.cast import CLUSTER, TOPIC, Tools
from ottla_operator.schedule import Key
from ottla_operator.specs import InvalidSpec, Meta, TopicSpec

#: Polling interval, and how many partitions add a second to it: the response grows with them.
_INTERVAL_S = 3.0
_PARTITIONS_PER_S = 1000


@dataclass(slots=True)
class _Last:
    beat: Beat | None = None
    #: Whether the brokers answered.
    answered: bool = field(default=True)


class Pulse:
    def __init__(self, tools: Tools, soon: Callable[[Key], None]) -> None:
        self._tools = tools
        self._soon = soon
        self._last: dict[tuple[str, str], _Last] = {}

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(CLUSTER, key)
        if body is None or Meta.of(body).deleting:
            self._last.pop(key, None)
            return None
        last = self._last.setdefault(key, _Last())
        try:
            beat: Beat = await self._tools.links.ask(*key, lambda brokers: brokers.beat())
        except (BrokersAway, RequestError):
            if last.answered and last.beat is not None:
                self._all(key, None)
            last.answered = False
            return _INTERVAL_S
        if last.beat is not None:
            if not last.answered:
                self._all(key, None)
            elif last.beat != beat:
                self._changed(key, last.beat, beat)
        last.beat, last.answered = beat, True
        return max(_INTERVAL_S, beat.partitions / _PARTITIONS_PER_S)

    def _changed(self, key: tuple[str, str], before: Beat, after: Beat) -> None:
        if (before.brokers, before.controller) != (after.brokers, after.controller):
            self._soon((CLUSTER, *key))
        names = {*before.topics, *after.topics}
        self._all(key, {name for name in names if before.topics.get(name) != after.topics.get(name)})

    def _all(self, key: tuple[str, str], topics: set[str] | None) -> None:
        """Reconcile the Topics with these names; None: all of them, and the Cluster."""
        if topics is None:
            self._soon((CLUSTER, *key))
        for place in self._tools.cast.of_cluster(TOPIC, *key):
            body = self._tools.cast.get(TOPIC, place)
            try:
                name = TopicSpec.of(body or {}).topic
            except (InvalidSpec, KeyError):
                continue
            if topics is None or name in topics:
                self._soon((TOPIC, *place))
