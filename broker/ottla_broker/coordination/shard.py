"""A coordinator shard: a state machine whose only storage is one partition of an internal topic. [P]

A shard decides and remembers; `runtime.py` appends what it decided, sends replies, carries out effects. The contract:

* C1: `handle`, `expire` and `on_metadata` return a `Decision`: entries to append, replies to requests by their tickets,
  and effects. A request that has to wait for others (a join, a sync) is not answered now; a later decision names its
  ticket.
* C2: `replay` and `replay_marker` are the only mutators of what the log holds. Right after a decision the runtime
  replays its entries, and when leadership arrives it replays the whole partition: both lead to the same state.
  State that no record holds (a pending join, a session deadline) is soft, and is lost with the leadership.
* C3: decisions rest on what was appended, committed or not. So every reply and every effect, also one without
  entries of its own, waits until everything appended before it is committed.
* C4: nothing here waits, reads a clock or fails half-way: time comes in as `Now`, and a request that is refused
  (`RequestError`) has changed nothing.
* C5: an effect is work outside the shard (append to another partition, write a marker). Its outcome comes back as a
  request to `handle`. Effects are lost with the leadership, so `loaded` decides again on those that are still due.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla_broker.coordination.metadata_change import MetadataChange
from ottla_broker.coordination.timers import Timers
from ottla_broker.requests import ProducerIdentity
from ottla_core.errors import RequestError

#: Names one request until it is answered.
Ticket: TypeAlias = int
#: Of the outcome of an effect, which has no client that waits for the reply.
NO_TICKET: Ticket = 0


class Now(NamedTuple):
    #: Wall clock for records; may jump.
    wall_ms: int
    #: Monotonic clock for timeouts.
    monotonic_ms: int


class StateRecord(NamedTuple):
    """One record of the internal topic. Without a value it is a tombstone."""

    key: bytes
    value: bytes | None
    #: Set on a record that is part of a transaction: it counts when a marker of this producer commits it.
    producer: ProducerIdentity | None = None


class TransactionMarker(NamedTuple):
    """Ends the transaction of a producer in this partition."""

    producer: ProducerIdentity
    coordinator_epoch: int
    commits: bool


#: What a decision appends, in order.
Entry: TypeAlias = StateRecord | TransactionMarker


@dataclass(slots=True)
class Decision:
    records: list[Entry] = field(default_factory=list)
    #: Tickets with what they get, a reply or a refusal, in the order in which they are to be sent.
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)
    #: Work for the runtime's `perform`, begun once the records are committed (C5).
    effects: list[Any] = field(default_factory=list)

    def reply(self, ticket: Ticket, reply: Any) -> None:
        self.replies.append((ticket, reply))

    def refuse(self, ticket: Ticket, error: RequestError) -> None:
        self.replies.append((ticket, error))


class Shard(Protocol):
    #: The runtime wakes the shard by `expire` when the first of these is due.
    timers: Timers

    def handle(self, request: Any, ticket: Ticket, now: Now) -> Decision:
        """Decide about one request. RequestError: refused, nothing has changed."""

    def expire(self, now: Now) -> Decision:
        """Decide about all timers that are due."""

    def on_metadata(self, change: MetadataChange, now: Now) -> Decision:
        """Decide about a new cluster image; the first one comes right after `loaded`."""

    def replay(self, record: StateRecord) -> None:
        """Take over what a record says. Records of unknown kinds (of a newer version) are ignored."""

    def replay_marker(self, marker: TransactionMarker) -> None:
        """Commit or drop what the records of this producer said since its last marker."""

    def loaded(self, now: Now) -> Decision:
        """Everything has been replayed: start what soft state needs, and decide on effects that are still due."""


def replay_entry(shard: Shard, entry: Entry) -> None:
    if isinstance(entry, StateRecord):
        shard.replay(entry)
    else:
        shard.replay_marker(entry)
