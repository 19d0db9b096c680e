"""What a coordinator is: a state machine whose only storage is one partition of an internal topic. [P]

A shard decides and remembers; `runtime.py` appends what it decided, and lets replies out. The contract:

* C1: `handle` and `expire` give a `Decision`: records to append, and replies to requests by their tickets. A request
  that has to wait for others (a join, a sync) is not answered now; a later decision names its ticket.
* C2: what a record says is changed by `replay` and by nothing else. Right after a decision the runtime replays
  its records, and when leadership comes it replays the whole partition: both ways lead to the same state.
  What no record holds (who is joining, when a session ends) is soft, and dies with the leadership.
* C3: decisions are made on what was written, committed or not; so every reply, also one without records of its own,
  waits until all that was written before it is committed. Nobody learns of what could still be lost.
* C4: nothing here waits, reads a clock or fails half-way: time comes in as `Now`, and a request that is refused
  (`RequestError`) has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla_broker.coordination.timers import Timers
from ottla_core.errors import RequestError

#: Names one request until it is answered.
Ticket: TypeAlias = int


class Now(NamedTuple):
    #: Goes into records; may jump.
    wall_ms: int
    #: Decides timeouts; never goes back.
    monotonic_ms: int


class StateRecord(NamedTuple):
    """One record of the internal topic. No value: forget the key."""

    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Decision:
    records: list[StateRecord] = field(default_factory=list)
    #: Tickets with what they get, a reply or a refusal, in the order in which they are to be sent.
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)

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

    def replay(self, record: StateRecord) -> None:
        """Take over what a record says. Unknown kinds (a newer version's) are passed over."""

    def loaded(self, now: Now) -> Decision:
        """All has been replayed: start what soft state needs, sessions for instance."""
