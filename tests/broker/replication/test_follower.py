"""The follower machine: a frame in, effects out."""

from __future__ import annotations

from ottla_broker.replication.effects import (
    Append,
    FollowWatermark,
    Ignore,
    Report,
    RestartAt,
    TruncateTo,
)
from ottla_broker.replication.follower import Follower
from ottla_broker.replication.lineage import EpochEnd

LINEAGE = [(2, 0), (4, 10), (5, 20)]


def test_batches_that_continue_the_log_are_written_and_reported() -> None:
    machine = Follower(1, 7)
    assert machine.on_batches(7, 30, 100, 25, 0, 30) == [
        Append(),
        FollowWatermark(25, 0),
        Report(wants=False),
    ]


def test_rule_9_frames_of_another_epoch_are_ignored() -> None:
    machine = Follower(1, 7)
    assert machine.on_batches(6, 30, 100, 25, 0, 30) == [Ignore("epoch 6, not 7")]
    assert machine.on_divergence(8, EpochEnd(2, 5), 0, LINEAGE, 30) == [Ignore("epoch 8, not 7")]
    assert machine.on_start(6, 50, 30) == [Ignore("epoch 6, not 7")]
    assert not machine.is_heard


def test_batches_from_elsewhere_are_asked_for_again() -> None:
    machine = Follower(1, 7)
    assert machine.on_batches(7, 40, 100, 25, 0, 30) == [
        Ignore("batches from 40, but the log ends at 30"),
        Report(wants=True),
    ]


def test_rule_12_a_high_watermark_comes_without_batches() -> None:
    assert Follower(1, 7).on_batches(7, 99, 0, 25, 3, 30) == [FollowWatermark(25, 3)]


def test_it_cuts_by_epoch_and_asks_again() -> None:
    machine = Follower(1, 7)
    # The leader's epoch 5 ended earlier than ours.
    assert machine.on_divergence(7, EpochEnd(5, 24), 0, LINEAGE, 30) == [TruncateTo(24), Report(wants=True)]
    # The leader never had epoch 5; its epoch 4 is longer than ours: ours ends where our 5 began (KIP-279).
    assert machine.on_divergence(7, EpochEnd(4, 27), 0, LINEAGE, 30) == [TruncateTo(20), Report(wants=True)]


def test_behind_the_leaders_log_it_restarts() -> None:
    machine = Follower(1, 7)
    assert machine.on_start(7, 50, 30) == [RestartAt(50), Report(wants=True)]
    assert machine.on_start(7, 20, 30) == [Ignore("the log already ends at 30"), Report(wants=True)]


def test_it_restarts_if_truncation_leaves_only_deleted_records() -> None:
    machine = Follower(1, 7)
    restart = [RestartAt(24), Report(wants=True)]
    assert machine.on_divergence(7, EpochEnd(5, 24), 24, LINEAGE, 30) == restart
    assert machine.on_divergence(7, EpochEnd(4, 27), 24, LINEAGE, 30) == restart
    assert machine.on_divergence(7, EpochEnd(5, 24), 23, LINEAGE, 30) == [TruncateTo(24), Report(wants=True)]


def test_an_unanswered_wish_is_repeated() -> None:
    machine = Follower(1, 7)
    assert machine.on_stream() == [Report(wants=True)]
    assert machine.on_silence() == [Report(wants=True)]
    machine.on_batches(7, 30, 0, 25, 0, 30)
    assert machine.on_silence() == []
    assert machine.on_stream() == [Report(wants=True)], "a new stream knows nothing of the old one"
