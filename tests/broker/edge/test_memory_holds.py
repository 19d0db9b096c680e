"""What a fetch may read when memory is short, and when freed memory is given back."""

from __future__ import annotations

from ottla_broker.edge.memory import WAITING_BYTES, Hold, Memory

MIB = 1 << 20


def test_within_the_budget_all_is_granted_and_counted_until_released() -> None:
    memory = Memory(10 * MIB)
    hold = Hold(memory, 2.0)
    assert hold.ask(9 * MIB, MIB) == 9 * MIB
    assert (memory.used, memory.room) == (9 * MIB, MIB)
    hold.release()
    assert memory.used == 0


def test_beyond_the_budget_one_batch_and_beyond_twice_one_small_batch() -> None:
    memory = Memory(10 * MIB)
    memory.owe(10 * MIB)
    assert Hold(memory, 2.0).ask(9 * MIB, MIB) == MIB
    memory.owe(10 * MIB)
    assert Hold(memory, 2.0).ask(9 * MIB, MIB) == 0
    assert Hold(memory, 2.0).ask(9 * MIB, 1000) == 1000


def test_an_answer_that_is_dropped_is_counted_no_longer() -> None:
    memory = Memory(10 * MIB)
    hold = Hold(memory, 2.0)
    hold.ask(MIB, MIB)
    del hold
    assert memory.used == 0


def test_a_fetch_that_waits_for_many_partitions_is_counted_until_it_is_answered() -> None:
    memory = Memory(10 * MIB)
    hold = Hold(memory, 2.0)
    assert hold.wait(1000) and memory.waiting == 1000 * WAITING_BYTES
    assert hold.ask(MIB, MIB) == MIB
    assert memory.used == MIB, "waiting takes no room from answers"
    hold.release()
    assert (memory.used, memory.waiting) == (0, 0)
    assert hold.wait(1) and memory.waiting == 0, "no more than a small request"


def test_many_fetches_of_many_partitions_do_not_wait_without_bound() -> None:
    memory = Memory(10 * MIB)
    holds: list[Hold] = []
    while len(holds) < 1000:
        holds.append(Hold(memory, 2.0))
        if not holds[-1].wait(1000):
            break
    assert 9 * MIB < memory.waiting <= 10 * MIB and memory.used == 0
    assert holds[-1].wait(10), "one of few partitions may wait all the same"
    holds.clear()
    assert memory.used == 0


def test_memory_is_given_back_once_after_a_peak() -> None:
    memory = Memory(100 * MIB)
    memory.owe(90 * MIB)
    assert not memory.should_trim()
    memory.owe(-80 * MIB)
    assert memory.should_trim()
    assert not memory.should_trim()
