"""One produce request, the same for both edges: verify, append, wait for the acknowledgement, collect outcomes. [S]

What happens to one partition is the `Writer`'s business, which is `RecordService`.

* P1: one outcome per write, in the order of the writes. A write that fails does not affect the others.
* P2: whatever has to be awaited before a write is awaited before the first append (`_verified`), and the edge handles
  the next request of the connection after the last append. So pipelined requests are appended in their order.
* P3: acknowledgements are awaited together, so that their timeouts run together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias, cast

from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.requests import WAIT_S_MAX, Appended, Maybe, Outcome, Write
from ottla_broker.steps import PARTITIONS_PER_STEP, Steps
from ottla_core.errors import InvalidRecord, InvalidRequiredAcks, InvalidTxnState, RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Buffer

_ACKS = frozenset((0, 1, ACKS_ALL))
#: Requests with more writes are handled in steps of so many. An append costs some 20 µs for a small batch, and more
#: for a large one.
WRITES_PER_STEP = PARTITIONS_PER_STEP // 2

ProduceSteps: TypeAlias = Steps[Maybe[list[Outcome]]]
#: The writes that may be appended with their check, the others with their refusal.
Verified: TypeAlias = Sequence[Write]
#: Index of the outcome, what to await for it.
_Wait: TypeAlias = tuple[int, Awaitable[Appended | None]]


class Writer(Protocol):
    """What one partition is asked for."""

    def append(
        self,
        tp: TopicPartition,
        records: Buffer,
        acks: int,
        check_transaction: Callable[[], None] | None = None,
    ) -> Maybe[Appended]: ...

    def acknowledged(
        self, tp: TopicPartition, appended: Appended, acks: int, timeout_s: float
    ) -> Awaitable[None] | None: ...


class Verify(Protocol):
    def __call__(
        self, transactional_id: str, writes: Sequence[Write], adds_partitions: bool
    ) -> Maybe[Verified]:
        """Check that the transaction of this id is open and includes the partition of each write (rule 21).

        With `adds_partitions` (a client with transactions v2) missing partitions are added to the transaction.
        """


def no_transaction(transactional_id: str, writes: Sequence[Write], adds_partitions: bool) -> Verified:
    refusal = InvalidTxnState(f"Transactional id {transactional_id!r} has no open transaction.")
    return [write._replace(refusal=write.refusal or refusal) for write in writes]


class Producing:
    def __init__(self, writer: Writer, verify: Verify = no_transaction) -> None:
        self._writer = writer
        self._verify = verify

    def produce(self, writes: Sequence[Write], *, acks: int, timeout_s: float) -> Maybe[list[Outcome]]:
        """Append all writes now, for up to `WRITES_PER_STEP`. The records are not used after this returns.

        A raised `RequestError` refuses the request as a whole: nothing was written.
        """
        if acks not in _ACKS:
            raise InvalidRequiredAcks()
        if not 0.0 <= timeout_s <= WAIT_S_MAX:
            timeout_s = min(max(timeout_s, 0.0), WAIT_S_MAX)
        outcomes: list[Outcome] = []
        waits: list[_Wait] = []
        for write in writes:
            self._write(write, acks, timeout_s, outcomes, waits)
        return _collected(outcomes, waits) if waits else outcomes

    def produce_in_steps(
        self,
        writes: Sequence[Write],
        *,
        acks: int,
        timeout_s: float,
        transactional_id: str | None = None,
        adds_partitions: bool = False,
    ) -> ProduceSteps:
        """The same in slices: for many writes, and for those of a transaction, which have to be verified.

        The records must stay in place until the last slice.
        """
        if acks not in _ACKS:
            raise InvalidRequiredAcks()
        if not 0.0 <= timeout_s <= WAIT_S_MAX:
            timeout_s = min(max(timeout_s, 0.0), WAIT_S_MAX)
        if transactional_id is not None:
            writes = yield from self._verified(writes, transactional_id, adds_partitions)
        outcomes: list[Outcome] = []
        waits: list[_Wait] = []
        for number, write in enumerate(writes, 1):
            self._write(write, acks, timeout_s, outcomes, waits)
            if number % WRITES_PER_STEP == 0:
                yield None
        return _collected(outcomes, waits) if waits else outcomes

    def _verified(
        self, writes: Sequence[Write], transactional_id: str, adds_partitions: bool
    ) -> Steps[Sequence[Write]]:
        """The writes, with refusals where the transaction does not allow them."""
        found = self._verify(transactional_id, writes, adds_partitions)
        if isinstance(found, Sequence):
            return found
        verifying = asyncio.ensure_future(found)
        try:
            yield verifying
        finally:
            verifying.cancel()  # Only if the client is gone; else it is done.
        return verifying.result()

    def _write(
        self, write: Write, acks: int, timeout_s: float, outcomes: list[Outcome], waits: list[_Wait]
    ) -> None:
        tp, records, refusal, check_transaction = write
        wait: Awaitable[Appended | None] | None = None
        try:
            if refusal is not None:
                raise refusal
            if not records:
                raise InvalidRecord(
                    "A produce request must bring a record batch for each partition it names."
                )
            appended = self._writer.append(tp, records, acks, check_transaction)
            if type(appended) is not Appended:
                waits.append((len(outcomes), self._written_later(tp, appended, acks, timeout_s)))
                outcomes.append(_PENDING)
                return
            if acks:
                wait = self._writer.acknowledged(tp, appended, acks, timeout_s)
        except Exception as error:
            outcomes.append(_detached(error))
            return
        if wait is not None:
            waits.append((len(outcomes), wait))
        outcomes.append(appended)

    async def _written_later(
        self, tp: TopicPartition, later: Maybe[Appended], acks: int, timeout_s: float
    ) -> Appended:
        """A write whose batches take long to check."""
        appended = await cast(Awaitable[Appended], later)
        wait = self._writer.acknowledged(tp, appended, acks, timeout_s) if acks else None
        if wait is not None:
            await wait
        return appended


#: Holds the place of an outcome that is awaited.
_PENDING = RequestError()


def _detached(error: Exception) -> Exception:
    """The error as an outcome. The traceback of a refusal leads to frames that hold the outcomes and the records: kept,
    it would make a cycle, and the memory of refused records would wait for the garbage collector."""
    return error.with_traceback(None) if isinstance(error, RequestError) else error


async def _collected(outcomes: list[Outcome], waits: list[_Wait]) -> list[Outcome]:
    if len(waits) == 1:
        index, wait = waits[0]
        try:
            written = await wait
        except Exception as error:
            outcomes[index] = _detached(error)
        else:
            outcomes[index] = written or outcomes[index]
        return outcomes
    results = await asyncio.gather(*(wait for _, wait in waits), return_exceptions=True)
    for (index, _), result in zip(waits, results, strict=True):
        if isinstance(result, Exception | Appended):
            outcomes[index] = result
        elif result is not None:
            raise result
    return outcomes
