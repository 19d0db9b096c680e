"""What became of every transaction of a world, as its clients know it, and what must hold of them: I15 to I19.

A transaction whose end nobody has confirmed may be committed or aborted, and is one of them as a whole: the log says
which. Only one whose commit was requested can be committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla_broker.requests import ProducerIdentity
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import HEADER_BYTES, header_at
from sim.spots import Spot

if TYPE_CHECKING:
    from sim.world import Process, World


class Txn:
    __slots__ = ("acknowledged", "is_committed", "name", "wants_commit")

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether somebody has asked to commit it.
        self.wants_commit = False
        #: As its coordinator has confirmed; None: not known.
        self.is_committed: bool | None = None
        #: Acknowledged records, and where they are.
        self.acknowledged: dict[bytes, tuple[Spot, int]] = {}


class TxnLedger:
    def __init__(self, world: World) -> None:
        self._world = world
        self._txns: list[Txn] = []
        self._of: dict[bytes, Txn] = {}
        #: By producer id: the newest epoch that InitProducerId has returned.
        self._epochs: dict[int, int] = {}
        #: Records that readers of what is committed have seen, and how far they have come.
        self._read: dict[Spot, dict[int, bytes]] = {}
        self._positions: dict[Spot, int] = {}
        #: By number of a transactional id that consumes: the offset that is committed in the end.
        self.positions: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(txn.is_committed is True for txn in self._txns)

    # ------------------------------------------------------------------ what clients do

    def begin(self, name: str) -> Txn:
        txn = Txn(name)
        self._txns.append(txn)
        return txn

    def on_sent(self, txn: Txn, values: list[bytes]) -> None:
        self._of.update(dict.fromkeys(values, txn))

    def on_acknowledged(self, txn: Txn, spot: Spot, offset: int, value: bytes) -> None:
        txn.acknowledged[value] = spot, offset

    def on_ending(self, txn: Txn, commits: bool) -> None:
        txn.wants_commit = txn.wants_commit or commits

    def on_ended(self, txn: Txn, commits: bool) -> None:
        txn.is_committed = commits

    def on_initialized(self, producer: ProducerIdentity) -> None:
        before = self._epochs.get(producer.producer_id, -1)
        self._epochs[producer.producer_id] = max(before, producer.producer_epoch)

    # ------------------------------------------------------------------ what must hold meanwhile

    def on_append(self, process: Process, tp: TopicPartition, records: Buffer) -> None:
        """I18: a leader takes no batch of a producer after a later InitProducerId has returned."""
        if len(records) < HEADER_BYTES:
            return
        header = header_at(records)
        if not header.is_transactional or header.producer_epoch >= self._epochs.get(header.producer_id, -1):
            return
        partition = process.broker._host.find(tp)
        for spot, state in self._world.states().items():
            if spot.tp == tp and (state.leader, state.leader_epoch) == (process.id, partition.leader_epoch):
                self._fail(
                    f"I18 {tp}: {process.place} took a batch of producer {header.producer_id} with epoch "
                    f"{header.producer_epoch}, fenced by {self._epochs[header.producer_id]}"
                )

    def on_transaction_read(self, txn: Txn, value: bytes) -> None:
        """What one transaction has read may be what another one has written."""
        writer = self._of.get(value)
        if writer is not None:
            self._world.checkers.groups.on_transaction_read(txn.name, writer.name)

    def on_committed_read(self, spot: Spot, offset: int, value: bytes, *, remembers: bool = True) -> None:
        txn = self._of.get(value)
        if txn is not None and (not txn.wants_commit or txn.is_committed is False):
            self._fail(f"I16 {spot}: read_committed returned {value!r} at {offset}, which is not committed")
        if remembers:
            self._read.setdefault(spot, {})[offset] = value

    def on_position(self, spot: Spot, position: int) -> None:
        self._positions[spot] = max(position, self._positions.get(spot, 0))

    # ------------------------------------------------------------------ what must hold in the end

    def check_end(self, committed: dict[Spot, dict[int, bytes]]) -> None:
        visible = {value: spot for spot, log in committed.items() for value in log.values()}
        for txn in self._txns:
            self._check_whole(txn, visible)
        strangers = [v for v in visible if v in self._of and v not in self._of[v].acknowledged]
        for value in strangers:
            if self._of[value].is_committed is not None or not self._of[value].wants_commit:
                self._fail(f"I15 {value!r} is committed, and was never acknowledged")
        for spot, seen in self._read.items():
            first, end = self._trimmed(spot), self._positions[spot]
            there = {at: value for at, value in committed.get(spot, {}).items() if first <= at < end}
            if there != (seen := {at: value for at, value in seen.items() if first <= at}):
                odd = sorted(set(there.items()) ^ set(seen.items()))[:3]
                self._fail(f"I16 {spot}: a reader passed by what is committed, or saw what is not: {odd}")
        for number, position in self.positions.items():
            self._check_inputs(number, position, visible)

    def _check_whole(self, txn: Txn, visible: dict[bytes, Spot]) -> None:
        there = [v for v, (spot, offset) in txn.acknowledged.items() if v in visible]
        missing = [
            v
            for v, (spot, offset) in txn.acknowledged.items()
            if v not in visible and offset >= self._trimmed(spot)
        ]
        if txn.is_committed and missing:
            self._fail(f"I15 {txn.name} is committed, and {missing} are not there")
        elif (txn.is_committed is False or not txn.wants_commit) and there:
            self._fail(f"I15 {txn.name} is aborted, and {there} are visible")
        elif there and missing:
            self._fail(f"I15 {txn.name} is committed in part: {there} are visible, {missing} are not")

    def _check_inputs(self, number: int, position: int, visible: dict[bytes, Spot]) -> None:
        """I19: each input below the committed offset has one output, and no input above it has any."""
        prefix, found = f"t{number}.".encode(), dict[int, bytes]()
        for value in visible:
            if value.startswith(prefix):
                at = int(value.rpartition(b":")[2])
                if at in found or at >= position:
                    self._fail(
                        f"I19 input {at} has output {value!r} and {found.get(at)!r}, committed is {position}"
                    )
                found[at] = value
        lost = [at for at in range(position) if at not in found and not self._is_trimmed(prefix, at)]
        if lost:
            self._fail(f"I19 inputs {lost[:5]} of {number} are below {position} and have no output")

    def _is_trimmed(self, prefix: bytes, at: int) -> bool:
        """Whether an output of this input may have been deleted."""
        ending = b":%d" % at
        return any(
            value.startswith(prefix) and value.endswith(ending) and offset < self._trimmed(spot)
            for txn in self._txns
            for value, (spot, offset) in txn.acknowledged.items()
        )

    def _trimmed(self, spot: Spot) -> int:
        return self._world.checkers.trimmed.get(spot, 0)

    def _fail(self, text: str) -> None:
        self._world.checkers.fail(text)


class NotingWriter:
    """The record service as `Producing` uses it; tells the ledger of each append, at that moment."""

    def __init__(self, writer: object, on_append: Callable[[TopicPartition, Buffer], None]) -> None:
        self._writer, self._on_append = writer, on_append

    def append(self, tp: TopicPartition, records: Buffer, *more: object) -> object:
        appended = self._writer.append(tp, records, *more)  # type: ignore[attr-defined]
        self._on_append(tp, records)
        return appended

    def acknowledged(self, *arguments: object) -> object:
        return self._writer.acknowledged(*arguments)  # type: ignore[attr-defined]
