"""Completion in any order: W1 to W3 of `completed`, against a model and by example."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_client import ConsumerRecord, TopicPartition
from ottla_client.completed import CompletedOffsets, Run

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def record(offset: int, key: object = None, partition: int = 0) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, 0, key, b"", ())


def all_ready(work: CompletedOffsets) -> list[Run]:
    return list(iter(work.take, None))


def offsets(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.record.partition, run.record.offset) for run in runs]


def test_records_of_a_key_wait_for_each_other_and_others_do_not() -> None:
    work = CompletedOffsets()
    work.add([record(0, b"a"), record(1, b"a"), record(2, b"b"), record(3), record(4), record(5, b"a", 1)])
    first = all_ready(work)
    assert offsets(first) == [(0, 0), (0, 2), (0, 3), (0, 4), (1, 5)]
    work.complete(first[1])
    assert all_ready(work) == [] and work.commits() == {}
    work.complete(first[0])
    (next_one,) = all_ready(work)
    assert next_one.record.offset == 1 and work.commits() == {TP: 1}
    work.complete(next_one)
    assert work.commits() == {TP: 3} == work.commits([TP]) and work.commits([OTHER]) == {}
    assert work.pending == 3


def test_keys_may_be_anything_that_a_deserializer_returns() -> None:
    work = CompletedOffsets()
    work.add([record(0, {"user": 1}), record(1, {"user": 1}), record(2, {"user": 2})])
    assert offsets(all_ready(work)) == [(0, 0), (0, 2)]


def test_a_dropped_partition_is_not_committed_and_may_return() -> None:
    work = CompletedOffsets()
    work.add([record(0, b"a"), record(1, b"a"), record(2), record(7, b"a", 1)])
    first = work.take()
    assert first is not None
    work.forget_waiting([TP])
    assert work.pending == 2 and offsets(all_ready(work)) == [(1, 7)]
    work.drop([TP])
    work.complete(first)  # W3
    assert work.commits() == {} and work.pending == 1
    work.add([record(0, b"a"), record(1, b"a")])
    again = work.take()
    assert again is not None and again.record == first.record
    work.complete(first)  # The run before the partition was lost goes on, and ends only now.
    assert work.take() is None and work.commits() == {}, "the record of the key still runs"
    work.complete(again)
    assert work.commits() == {TP: 1} and work.pending == 2


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, b"a", b"b"])), max_size=30), st.randoms())
def test_in_any_order_nothing_is_skipped(made: list[tuple[int, bytes | None]], chance: object) -> None:
    pick = chance.randrange  # type: ignore[attr-defined]
    work, records = CompletedOffsets(), [record(n * 3, key, part) for n, (part, key) in enumerate(made)]
    running: list[Run] = []
    done: list[ConsumerRecord] = []
    added = 0
    while len(done) < len(records):
        step = pick(3)
        if step == 0 and added < len(records):
            work.add([records[added]])
            added += 1
        elif step == 1 and (started := work.take()) is not None:
            keyed = [(run.tp, run.record.key) for run in running if run.record.key is not None]
            assert (started.tp, started.record.key) not in keyed  # W1
            running.append(started)
        elif running:
            run = running.pop(pick(len(running)))
            done.append(run.record)
            work.complete(run)
        for tp, offset in work.commits().items():  # W2
            before = [r for r in records[:added] if r.partition == tp.partition and r.offset < offset]
            assert before and set(before) <= set(done)
        assert work.pending == added - len(done)
    for key in (b"a", b"b"):
        for partition in (0, 1):
            order = [r.offset for r in done if (r.partition, r.key) == (partition, key)]
            assert order == sorted(order)
    last = {TopicPartition("t", r.partition): r.offset + 1 for r in records}
    assert work.commits() == last
