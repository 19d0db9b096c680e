"""The leader-epoch cache: Kafka's answers, and a file that is never behind the log."""

from __future__ import annotations

import pytest

from ottla_broker.log.checkpoint import BadCheckpoint, decode_epochs, decode_offsets, encode_offsets
from ottla_broker.log.epochs import EpochCache
from ottla_core.ids import TopicPartition
from sim.disk import SimDisk

PATH = "/p/leader-epoch-checkpoint"


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_dirs("/p")
    return made


def cache(disk: SimDisk, *starts: tuple[int, int]) -> EpochCache:
    made = EpochCache(disk, "/p")
    for epoch, start in starts:
        made.assign(epoch, start)
    return made


def test_ends_of_epochs(disk: SimDisk) -> None:
    epochs = cache(disk, (2, 10), (5, 20), (6, 35))
    assert epochs.end_for(6, 50) == (6, 50)
    assert epochs.end_for(5, 50) == (5, 35)
    assert epochs.end_for(4, 50) == (2, 20), "an epoch that wrote nothing here ends where the one before does"
    assert epochs.end_for(2, 50) == (2, 20)
    assert epochs.end_for(1, 50) == (1, 10)
    assert epochs.end_for(7, 50) == (-1, -1)
    assert epochs.end_for(-1, 50) == (-1, -1)
    assert cache(disk).end_for(0, 0) == (-1, -1)


def test_epoch_of_an_offset(disk: SimDisk) -> None:
    epochs = cache(disk, (2, 10), (5, 20))
    assert [epochs.epoch_at(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 5, 5]


def test_an_epoch_that_wrote_nothing_leaves_no_trace(disk: SimDisk) -> None:
    epochs = cache(disk, (1, 0), (2, 10), (3, 10))
    assert epochs.entries == [(1, 0), (3, 10)]


def test_old_epochs_change_nothing(disk: SimDisk) -> None:
    epochs = cache(disk, (3, 10))
    epochs.assign(2, 20)
    epochs.assign(3, 20)
    assert epochs.entries == [(3, 10)]


def test_cuts(disk: SimDisk) -> None:
    epochs = cache(disk, (2, 10), (5, 20), (6, 35))
    epochs.truncate_end(35)
    assert epochs.entries == [(2, 10), (5, 20)]
    epochs.truncate_start(15)
    assert epochs.entries == [(2, 15), (5, 20)]
    epochs.truncate_start(20)
    assert epochs.entries == [(5, 20)]
    epochs.truncate_start(40)
    assert epochs.entries == [(5, 40)]


def test_epochs_of_records_that_are_there_again_come_from_the_batches(disk: SimDisk) -> None:
    batches = [(1, 0), (1, 5), (3, 10), (3, 20), (4, 40), (4, 50)]

    def of(epochs: EpochCache, start: int) -> list[tuple[int, int]]:
        epochs.begin_at(start, iter(batches))
        return [tuple(entry) for entry in epochs.entries]

    epochs = EpochCache(disk, "/p")
    epochs.rebuild(batches)
    epochs.truncate_start(30)
    assert of(epochs, 30) == [(3, 30), (4, 40)], "nothing is missing"
    assert of(epochs, 10) == [(1, 0), (3, 10), (4, 40)] and not epochs.is_saved
    epochs.truncate_start(40)
    assert of(epochs, 0) == [(1, 0), (3, 10), (4, 40)]
    assert of(EpochCache(SimDisk(), "/p", exists=False), 0) == []


def test_the_file_is_kafkas(disk: SimDisk) -> None:
    epochs = cache(disk, (2, 10), (5, 20))
    assert not disk.exists(PATH), "an epoch without a batch needs no file"
    epochs.save()
    assert disk.read_file(PATH) == b"0\n2\n2 10\n5 20\n"
    assert EpochCache(disk, "/p").entries == [(2, 10), (5, 20)]


def test_every_prefix_of_a_checkpoint_is_recognised_as_torn() -> None:
    whole = encode_offsets({TopicPartition("a", 0): 12345, TopicPartition("b-c.d", 17): 67})
    assert decode_offsets(whole) == {TopicPartition("a", 0): 12345, TopicPartition("b-c.d", 17): 67}
    for size in range(len(whole)):
        with pytest.raises(BadCheckpoint):
            decode_offsets(whole[:size])


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n1\n5 -1\n", b"0\n2\n3 10\n2 20\n", b"0\n1\n1\n", b"\xff\xfe", b"0\n-1\n"]
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        decode_epochs(data)
