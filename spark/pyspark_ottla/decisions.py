"""What an exactly-once write decides: which transactions of a batch are committed, once and for all. [P]

Tasks write in transactions of their own and prepare them; `settle` asks here what to do with them, and stores the
answer (`decision_log`) before it commits anything. docs/decisions/0017 has the reasons.

D1. A batch has one decision. After it, a replay of the batch commits the same transactions, and no others.
D2. Nothing is committed before its decision is stored, and nothing that is decided is aborted.
D3. A decision is marked as done when all its transactions are committed; only then may brokers forget their ids.

A batch write (`df.write`) is a sink of its own with the single batch 0, unless its options name a sink and a batch:
then it may be repeated, as a micro-batch may.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ottla_client.record import PreparedTransaction

_STREAM = "spark-"
_BATCH = "spark-batch-"
_NAMED = "spark-named-"
#: Batch, partition and random part. Exactly: the name of another sink may be this one's with numbers added, such as a
#: date, and its attempts have the batch after those.
_ATTEMPT = re.compile(r"(?P<batch>[0-9]+)-[0-9]+-[0-9a-f]{12}")
_VERSION = 1


class DecisionProblem(Exception):
    """Why a batch cannot be committed, in one sentence that says what to do."""


def stream_sink(query_id: str) -> str:
    """The name of a streaming query's sink: transactional id of its driver, and key of its decisions."""
    return _STREAM + query_id


def batch_sink(job_id: str) -> str:
    return _BATCH + job_id


def named_sink(sink_id: str) -> str:
    """The sink of batch writes with the option sinkId, which have numbers, as micro-batches have."""
    return _NAMED + sink_id


def is_batch_sink(name: str) -> bool:
    return name.startswith(_BATCH)


def prefix_of(sink: str) -> str:
    """All transactional ids of the sink's tasks start with it, and no others."""
    return f"{sink}-"


def attempt_id(sink: str, batch: int, partition: int, random: str) -> str:
    """The transactional id of one attempt of one task; `random` makes it different from all other attempts: 12
    hexadecimal digits."""
    return f"{prefix_of(sink)}{batch}-{partition}-{random}"


def batch_of(sink: str, transactional_id: str) -> int:
    """The batch that an attempt belongs to; -1 for ids of another form."""
    rest = transactional_id.removeprefix(prefix_of(sink))
    if rest == transactional_id or (found := _ATTEMPT.fullmatch(rest)) is None:
        return -1
    return int(found["batch"])


@dataclass(frozen=True, slots=True)
class Decision:
    batch: int
    #: Empty once the decision is done, and for a job that failed.
    transactions: tuple[PreparedTransaction, ...] = ()
    done: bool = False
    rows: int = 0

    def as_done(self) -> Decision:
        return replace(self, transactions=(), done=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the driver does, in the order of the fields."""

    #: Commit the transactions of an earlier decision that is not marked as done, and mark it.
    finish: Decision | None = None
    #: Store this decision, commit its transactions, and mark it as done.
    record: Decision | None = None
    #: Attempts that must not become visible.
    abort: tuple[PreparedTransaction, ...] = ()
    #: Attempts up to this batch are decided: those that are left of them are aborted and forgotten.
    clean_until: int = -1
    #: Then fail.
    refusal: str | None = None


def plan_commit(
    last: Decision | None, batch: int, attempts: Iterable[PreparedTransaction], rows: int = 0
) -> Plan:
    """One attempt of each task of the batch is prepared, and Spark asks to commit them."""
    attempts = tuple(attempts)
    finish = _undone(last)
    if last is not None and last.batch > batch:
        refusal = _older_checkpoint(last.batch, batch)
        return Plan(finish, abort=_others(attempts, last), clean_until=last.batch, refusal=refusal)
    if last is not None and last.batch == batch:
        return Plan(finish, abort=_others(attempts, last), clean_until=batch)
    if not attempts:
        # An empty batch needs no decision: another attempt of it may still decide.
        return Plan(finish, clean_until=-1 if last is None else last.batch)
    return Plan(finish, record=Decision(batch, attempts, rows=rows), clean_until=batch)


def plan_abort(sink: str, last: Decision | None, batch: int, attempts: Iterable[PreparedTransaction]) -> Plan:
    """Spark gives this attempt of the batch up; also when `commit` failed, perhaps after it had decided.

    Another driver may have attempts of the same batch, and commit them: only the given ones are aborted. A batch write
    has one driver, so its failure is final; its decision stops tasks that are still running.
    """
    abort = _others(tuple(attempts), last)
    if last is not None:
        return Plan(_undone(last), abort=abort, clean_until=last.batch)
    if is_batch_sink(sink):
        return Plan(record=Decision(batch, done=True), abort=abort, clean_until=batch)
    return Plan(abort=abort)


def is_decided(last: Decision | None, batch: int) -> bool:
    """True if rows of another attempt of this batch are not needed any more."""
    return last is not None and last.batch >= batch


def leftovers(sink: str, until: int, listed: Iterable[str]) -> list[str]:
    """Ids of attempts of the batches up to this one."""
    return [name for name in listed if -1 < batch_of(sink, name) <= until]


def missing(
    attempts: Iterable[PreparedTransaction], listed: Iterable[tuple[PreparedTransaction, str]]
) -> tuple[list[str], list[str]]:
    """Ids that are not listed, and ids of transactions that are not open any more (someone has aborted them)."""
    found = {each.transactional_id: (each, state) for each, state in listed}
    unknown, ended = [], []
    for attempt in attempts:
        name = attempt.transactional_id
        if name not in found:
            unknown.append(name)
        elif found[name] != (attempt, "Ongoing"):
            ended.append(name)
    return unknown, ended


def _undone(last: Decision | None) -> Decision | None:
    return last if last is not None and not last.done else None


def _others(
    attempts: tuple[PreparedTransaction, ...], last: Decision | None
) -> tuple[PreparedTransaction, ...]:
    # Those of a decision that is done are not known any more: brokers refuse to abort what is committed.
    decided = frozenset(() if last is None else last.transactions)
    return tuple(each for each in attempts if each not in decided)


def _older_checkpoint(last: int, batch: int) -> str:
    return (
        f"The query has written batch {last} already, and its checkpoint asks for batch {batch}: another driver runs "
        "the query, or the checkpoint is an older copy. Stop the other driver; or start with a new checkpoint (in "
        "foreachBatch, also with a new sinkId), at the offsets that you want."
    )


def aborted_before(batch: int, names: Iterable[str]) -> str:
    some = ", ".join(sorted(names)[:3])
    return (
        f"Transactions of batch {batch} were aborted before it was committed ({some}); nothing of it is visible. "
        "Run it again."
    )


def not_visible_yet(batch: int, problem: str) -> str:
    return (
        f"Batch {batch} is decided, but not all of its rows are visible yet: {problem} Restart the query; after a "
        "batch write, do not write again: the next batch write makes the rows visible."
    )


def aborted_after(batch: int) -> str:
    return (
        f"Batch {batch} was decided, but brokers do not have all of its transactions any more: its driver was stopped "
        "for longer than transaction.two.phase.commit.max.timeout.ms, or someone aborted them. Some of its rows are "
        "missing: write them again, with a new checkpoint that starts at the offsets of this batch."
    )


# --- the record ---


def encode(sink: str, decision: Decision) -> bytes:
    prefix = prefix_of(sink)
    transactions = [[name.removeprefix(prefix), *identity] for name, *identity in decision.transactions]
    made = {
        "version": _VERSION,
        "batch": decision.batch,
        "done": decision.done,
        "rows": decision.rows,
        "transactions": transactions,
    }
    return json.dumps(made, separators=(",", ":")).encode()


def decode(sink: str, value: bytes) -> Decision:
    """Raises DecisionProblem for a record of a later version, or one that is damaged."""
    try:
        found = json.loads(value)
        if found["version"] != _VERSION:
            raise DecisionProblem(
                f"The last decision of {sink} has version {found['version']}, which this version of ottla cannot read; "
                "run the query with the newer version."
            )
        prefix = prefix_of(sink)
        return Decision(
            int(found["batch"]),
            tuple(
                PreparedTransaction(prefix + name, int(producer_id), int(epoch))
                for name, producer_id, epoch in found["transactions"]
            ),
            bool(found["done"]),
            int(found["rows"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise DecisionProblem(
            f"The last decision of {sink} cannot be read ({error!r}); start with a new checkpoint."
        ) from None
