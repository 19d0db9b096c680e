"""Offsets of topics that are gone: as a walk over all offsets finds them, without that walk if none is."""

from __future__ import annotations

import time
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.group.offsets import Offsets
from ottla_broker.group.records import OffsetValue
from ottla_core.ids import NO_TOPIC_ID, TopicPartition

IDS = (NO_TOPIC_ID, UUID(int=1), UUID(int=2))
_KEYS = st.tuples(st.sampled_from("gh"), st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 1)))


def value(topic_id: UUID) -> OffsetValue:
    return OffsetValue(5, -1, "", 0, None, topic_id)


@given(
    st.lists(st.tuples(_KEYS, st.sampled_from((None, *IDS))), max_size=20),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from(IDS[1:])),
)
def test_as_a_walk_over_all_offsets(
    steps: list[tuple[tuple[str, TopicPartition], UUID | None]], existing: dict[str, UUID]
) -> None:
    offsets, twin = Offsets(), dict[tuple[str, TopicPartition], UUID]()
    for (group, tp), topic_id in steps:
        if topic_id is None:
            offsets.remove(group, tp)
            twin.pop((group, tp), None)
        else:
            offsets.put(group, tp, value(topic_id))
            twin[group, tp] = topic_id
        expected = {
            key
            for key, topic_id in twin.items()
            if key[1].topic not in existing or topic_id not in (NO_TOPIC_ID, existing[key[1].topic])
        }
        assert sorted(offsets.of_missing_topics(existing)) == sorted(expected)
        assert len(offsets) == len(twin)


def test_a_coordinator_that_takes_over_does_not_walk_over_all_offsets() -> None:
    offsets, existing = Offsets(), {f"t{n}": UUID(int=n + 1) for n in range(100)}
    for group in range(1000):
        for name, topic_id in existing.items():
            offsets.put(f"g{group}", TopicPartition(name, 0), value(topic_id))
    took_s = []
    for _ in range(5):
        start = time.process_time()
        assert offsets.of_missing_topics(existing) == []
        took_s.append(time.process_time() - start)
    # 20 µs; the walk takes some 50 ms. The shortest, because a garbage collection may fall into one of them.
    assert min(took_s) < 0.01
    del existing["t7"]
    assert len(offsets.of_missing_topics(existing)) == 1000
