"""Where records go: Java's hash to the bit, and the habits of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_client.partitioner import murmur2, partition_for_key, partitioner_for
from ottla_core.real.chance import RealChance


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # From Kafka's own UtilsTest.testMurmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_java_s(key: bytes, expected: int) -> None:
    assert _signed(murmur2(key)) == expected


def _murmur2_plainly(data: bytes) -> int:
    """Java's code, line by line."""
    mask, m, r, length = 0xFFFFFFFF, 0x5BD1E995, 24, len(data)
    h = (0x9747B28C ^ length) & mask
    for i in range(length // 4):
        i4 = i * 4
        k = data[i4] | data[i4 + 1] << 8 | data[i4 + 2] << 16 | data[i4 + 3] << 24
        k = (k * m) & mask
        k ^= k >> r
        k = (k * m) & mask
        h = (h * m) & mask
        h ^= k
    at = length & ~3
    if length % 4 >= 3:
        h ^= data[at + 2] << 16
    if length % 4 >= 2:
        h ^= data[at + 1] << 8
    if length % 4 >= 1:
        h ^= data[at]
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    return h ^ (h >> 15)


@given(st.binary(max_size=400))
def test_murmur2_agrees_with_the_plain_reading_of_java(key: bytes) -> None:
    assert murmur2(key) == _murmur2_plainly(key)


@given(st.binary(), st.integers(1, 1000))
def test_a_key_has_one_partition_whichever_are_available(key: bytes, count: int) -> None:
    default = partitioner_for("default", RealChance(1))
    partitions = range(count)
    chosen = default.choose("t", key, partitions, [0])
    assert chosen == partition_for_key(key, count)
    assert chosen in partitions


def test_without_a_key_the_default_sticks_until_the_batch_is_closed() -> None:
    default = partitioner_for("default", RealChance(7))
    partitions = range(6)
    first = default.choose("t", None, partitions, partitions)
    assert {default.choose("t", None, partitions, partitions) for _ in range(50)} == {first}
    default.batch_closed("t", (first + 1) % 6)
    assert default.choose("t", None, partitions, partitions) == first, (
        "another partition's batch says nothing"
    )
    default.batch_closed("t", first)
    assert default.choose("t", None, partitions, partitions) != first


def test_sticky_prefers_partitions_with_a_leader_and_takes_any_if_there_is_none() -> None:
    sticky = partitioner_for("sticky", RealChance(3))
    for _ in range(20):
        chosen = sticky.choose("t", b"key", range(9), (4, 5))
        assert chosen in (4, 5)
        sticky.batch_closed("t", chosen)
    assert partitioner_for("sticky", RealChance(3)).choose("t", None, range(2), ()) in (0, 1)


def test_round_robin_visits_all_in_turn_and_topics_apart() -> None:
    round_robin = partitioner_for("round_robin", RealChance(5))
    turns = [round_robin.choose("a", b"same key", range(4), range(4)) for _ in range(8)]
    assert sorted(turns[:4]) == [0, 1, 2, 3]
    assert turns[:4] == turns[4:]
    other = [round_robin.choose("b", None, range(2), range(2)) for _ in range(4)]
    assert sorted(other) == [0, 0, 1, 1]


def test_a_callable_gets_what_kafka_python_gives() -> None:
    seen: list[tuple[object, ...]] = []

    def mine(key: bytes | None, every: object, available: object) -> int:
        seen.append((key, every, available))
        return 2

    assert partitioner_for(mine, RealChance(1)).choose("t", b"k", range(3), (0,)) == 2
    assert seen == [(b"k", range(3), (0,))]


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="round_robin"):
        partitioner_for("random", RealChance(1))
