"""Which transactions a listing includes, for both edges. [P]"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ottla_broker.linear_regex import LinearRegex
from ottla_broker.txn.messages import ListedTransaction
from ottla_broker.txn.transaction import State

_TITLES = frozenset(state.title for state in State)


@dataclass(frozen=True, slots=True)
class ListingFilter:
    """An empty collection stands for all of them, a negative duration for any."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    duration_ms: int = -1
    #: A regular expression that the whole id has to match.
    pattern: LinearRegex | None = None

    @property
    def unknown_states(self) -> list[str]:
        return [name for name in self.states if name not in _TITLES]

    def matches(self, listed: ListedTransaction, now_ms: int) -> bool:
        txn = listed.value
        if self.duration_ms >= 0 and (txn.started_ms < 0 or now_ms - txn.started_ms < self.duration_ms):
            return False
        if self.pattern is not None and not self.pattern.matches(listed.transactional_id):
            return False
        return (not self.states or txn.state.title in self.states) and (
            not self.producer_ids or txn.producer_id in self.producer_ids
        )


EVERYTHING = ListingFilter()
