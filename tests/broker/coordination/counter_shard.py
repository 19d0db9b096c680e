"""A coordinator that is as simple as can be: named counters, with everything that the runtime offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ottla_broker.coordination.metadata_change import MetadataChange
from ottla_broker.coordination.shard import NO_TICKET, Decision, Now, StateRecord, Ticket, TransactionMarker
from ottla_broker.coordination.timers import Timers
from ottla_broker.requests import ProducerIdentity


@dataclass(frozen=True)
class Add:
    name: bytes
    amount: int
    producer: ProducerIdentity | None = None
    writes: ClassVar[bool] = True


@dataclass(frozen=True)
class End:
    """Ends a transaction."""

    marker: TransactionMarker
    writes: ClassVar[bool] = True


@dataclass(frozen=True)
class Announce:
    """Has the current value told to the outside, once it is committed."""

    name: bytes
    writes: ClassVar[bool] = True


@dataclass(frozen=True)
class Announced:
    """The outcome of a `Tell`."""

    name: bytes
    writes: ClassVar[bool] = True


@dataclass(frozen=True)
class Read:
    name: bytes
    writes: ClassVar[bool] = False


@dataclass(frozen=True)
class Tell:
    """The effect of `Announce`."""

    name: bytes
    value: int


class CounterShard:
    def __init__(self) -> None:
        self.timers = Timers()
        self.values: dict[bytes, int] = {}
        self.pending: dict[int, list[StateRecord]] = {}
        self.changes: list[MetadataChange] = []

    def handle(self, request: Any, ticket: Ticket, now: Now) -> Decision:
        out = Decision()
        match request:
            case Add(name, amount, producer):
                value = self.values.get(name, 0) + amount
                out.records.append(StateRecord(name, b"%d" % value, producer))
                out.reply(ticket, value)
            case End(marker):
                out.records.append(marker)
                out.reply(ticket, None)
            case Announce(name):
                out.records.append(StateRecord(b"due:" + name, b"1"))
                out.effects.append(Tell(name, self.values.get(name, 0)))
                out.reply(ticket, None)
            case Announced(name):
                assert ticket == NO_TICKET
                out.records.append(StateRecord(b"due:" + name, None))
                out.reply(ticket, "nobody waits for this")
            case Read(name):
                out.reply(ticket, self.values.get(name))
        return out

    def expire(self, now: Now) -> Decision:
        return Decision()

    def on_metadata(self, change: MetadataChange, now: Now) -> Decision:
        self.changes.append(change)
        return Decision([StateRecord(b"images", b"%d" % len(self.changes))])

    def replay(self, record: StateRecord) -> None:
        if record.producer is not None:
            self.pending.setdefault(record.producer.producer_id, []).append(record._replace(producer=None))
        elif record.value is None:
            self.values.pop(record.key, None)
        else:
            self.values[record.key] = int(record.value)

    def replay_marker(self, marker: TransactionMarker) -> None:
        for record in self.pending.pop(marker.producer.producer_id, []):
            if marker.commits:
                self.replay(record)

    def loaded(self, now: Now) -> Decision:
        due = [name.removeprefix(b"due:") for name in self.values if name.startswith(b"due:")]
        return Decision(effects=[Tell(name, self.values.get(name, 0)) for name in due])
