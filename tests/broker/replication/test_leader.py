"""The leader machine: events in, effects out; one test for each rule of the protocol that it keeps."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ottla_broker.metadata.image import PartitionImage
from ottla_broker.replication.effects import (
    AdvanceHighWatermark,
    Drop,
    LeaderEffect,
    ProposeIsr,
    SendFrom,
    TellDivergence,
    TellStart,
)
from ottla_broker.replication.leader import Leader, OwnLog, Position
from ottla_broker.replication.watermark import UNKNOWN
from ottla_core.ids import NO_EPOCH

EPOCH = 5
LAG_S = 30.0
ADMITTED = {b: UUID(int=100 + b) for b in (1, 2, 3)}
IMAGE = PartitionImage((1, 2, 3), leader=1, leader_epoch=EPOCH, isr=(1, 2, 3), revision=10)


def leader(
    image: PartitionImage = IMAGE,
    *,
    end: int = 10,
    high_watermark: int = 10,
    min_insync: int = 2,
    admitted: dict[int, UUID] | None = None,
) -> Leader:
    """Broker 1, elected at offset 10 with everything before it committed."""
    return Leader(
        1,
        image,
        now=0.0,
        epoch_start=10,
        position=end,
        high_watermark=high_watermark,
        min_insync=min_insync,
        lag_max_s=LAG_S,
        admitted=ADMITTED if admitted is None else admitted,
    )


def said(broker_id: int, end: int, *, position: int | None = None, **changes: object) -> Position:
    made = Position(
        broker_id,
        ADMITTED[broker_id],
        EPOCH,
        EPOCH if end > 10 else 4,
        end,
        end if position is None else position,
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def own(end: int, start: int = 0) -> OwnLog:
    return OwnLog(start, end, [(4, 0), (EPOCH, 10)])


def tell(machine: Leader, end: int, *reports: Position, now: float = 1.0) -> list[LeaderEffect]:
    effects: list[LeaderEffect] = []
    for report in reports:
        effects += machine.on_position(report, own(end), now)
    return effects


def settle(machine: Leader, image: PartitionImage | None, now: float) -> list[LeaderEffect]:
    """The store answers the proposal that is under way."""
    assert machine.proposed is not None
    return machine.on_outcome(machine.proposed, image, now)


# ---------------------------------------------------------------------- the high watermark


def test_the_high_watermark_is_the_least_position_in_sync() -> None:
    machine = leader()
    assert machine.appended(15) == []
    assert tell(machine, 15, said(2, 15)) == []
    assert tell(machine, 15, said(3, 13)) == [AdvanceHighWatermark(13)]
    assert tell(machine, 15, said(3, 15)) == [AdvanceHighWatermark(15)]


def test_alone_in_sync_an_append_commits() -> None:
    machine = leader(replace(IMAGE, isr=(1,)), min_insync=1)
    assert machine.begun() == []
    assert machine.appended(12) == [AdvanceHighWatermark(12)]


def test_rule_6_until_the_outcome_is_known_both_sets_count() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    machine.appended(20)
    assert tell(machine, 20, said(2, 14)) == [AdvanceHighWatermark(14)]
    assert tell(machine, 20, said(3, 14)) == [ProposeIsr((1, 2, 3), ())]
    # 3 is not in the ISR yet, and still it holds the mark back.
    assert tell(machine, 20, said(2, 18)) == []
    assert machine.in_sync == 2
    taken = replace(IMAGE, isr=(1, 2, 3), revision=11)
    assert settle(machine, taken, 2.0) == []
    assert tell(machine, 20, said(3, 17)) == [AdvanceHighWatermark(17)]
    assert machine.in_sync == 3


def test_rule_6_a_replica_proposed_to_leave_counts_for_neither() -> None:
    machine = leader(min_insync=3)
    machine.appended(20)
    tell(machine, 20, said(2, 20), said(3, 12))
    assert machine.high_watermark == 12
    assert tell(machine, 20, said(2, 20), now=50.0) == []
    assert machine.tick(20, 50.0) == [ProposeIsr((1, 2), (3,))]
    assert machine.in_sync == 2, "the intersection, which is below min.insync.replicas"
    assert tell(machine, 20, said(3, 20), now=51.0) == []
    assert machine.high_watermark == 12, "stands still until the outcome is known"


def test_rule_6_one_proposal_at_a_time() -> None:
    machine = leader(replace(IMAGE, isr=(1,)), min_insync=1)
    assert tell(machine, 10, said(2, 10)) == [ProposeIsr((1, 2), ())]
    assert tell(machine, 10, said(3, 10)) == []
    # The outcome of the first brings the second.
    assert settle(machine, replace(IMAGE, isr=(1, 2), revision=11), 2.0) == [ProposeIsr((1, 2, 3), ())]


def test_rule_6_a_lost_race_waits_for_the_image() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    tell(machine, 10, said(2, 10), said(3, 10))
    assert machine.proposed == ProposeIsr((1, 2, 3), ())
    assert settle(machine, None, 2.0) == []
    assert machine.proposed is not None
    # Another writer was faster; the proposal can no longer succeed, and is made again from the current state.
    assert machine.on_image(replace(IMAGE, isr=(1, 2), revision=12), 2.0) == [ProposeIsr((1, 2, 3), ())]


def test_a_refused_proposal_is_not_repeated_before_something_changes() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    tell(machine, 10, said(2, 10), said(3, 10))
    assert settle(machine, replace(IMAGE, isr=(1, 2)), 2.0) == []
    assert machine.proposed is None
    assert tell(machine, 10, said(3, 10)) == []
    assert machine.tick(10, 3.0) == [ProposeIsr((1, 2, 3), ())]


def test_rule_6_the_answer_to_an_earlier_proposal_says_nothing_of_the_next() -> None:
    machine = leader(replace(IMAGE, isr=(1,)), min_insync=1)
    first = tell(machine, 10, said(2, 10))[0]
    assert isinstance(first, ProposeIsr)
    taken = replace(IMAGE, isr=(1, 2), revision=11)
    tell(machine, 10, said(3, 10))
    # The watch is faster than the answer; the next proposal is under way when that comes.
    assert machine.on_image(taken, 2.0) == [ProposeIsr((1, 2, 3), ())]
    assert machine.on_outcome(first, taken, 2.0) == []
    assert machine.proposed == ProposeIsr((1, 2, 3), ())
    machine.appended(20)
    assert tell(machine, 20, said(2, 20)) == [], "3 may be in the ISR by now"


def test_an_image_older_than_the_outcome_changes_nothing() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    tell(machine, 10, said(2, 10), said(3, 10))
    settle(machine, replace(IMAGE, isr=(1, 2, 3), revision=11), 2.0)
    assert machine.on_image(replace(IMAGE, isr=(1, 2)), 2.0) == []
    assert machine.image.isr == (1, 2, 3)


def test_rule_7_below_min_insync_the_high_watermark_stands_still() -> None:
    machine = leader(replace(IMAGE, isr=(1,)))
    assert machine.appended(20) == []
    assert machine.high_watermark == 10
    assert machine.on_image(replace(IMAGE, isr=(1, 2), revision=11), 1.0) == []
    assert tell(machine, 20, said(2, 20)) == [AdvanceHighWatermark(20)]


def test_rule_7_a_replica_leaving_a_too_small_isr_goes_to_the_elr() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    machine.appended(20)
    assert machine.tick(20, 31.0) == [ProposeIsr((1,), (2,))]


def test_rule_7_a_big_enough_isr_needs_no_elr() -> None:
    machine = leader(replace(IMAGE, isr=(1,), elr=(2,)))
    machine.appended(20)
    assert tell(machine, 20, said(3, 20)) == [ProposeIsr((1, 3), ())]
    # While 2 may be elected, nothing that it lacks is committed.
    assert machine.high_watermark == 10
    assert settle(machine, replace(IMAGE, isr=(1, 3), revision=11), 2.0) == [AdvanceHighWatermark(20)]


def test_rule_7_a_lowered_min_insync_clears_the_elr_before_anything_is_committed() -> None:
    machine = leader(replace(IMAGE, isr=(1,), elr=(2,)))
    machine.appended(20)
    assert machine.on_min_insync(1) == [ProposeIsr((1,), ())]
    assert settle(machine, replace(IMAGE, isr=(1,), revision=11), 2.0) == [AdvanceHighWatermark(20)]


def test_a_record_of_the_dropped_goes_with_the_next_word_of_the_leader() -> None:
    image = replace(IMAGE, isr=(1,), dropped=(2,))
    machine = leader(image, min_insync=1)
    # Nothing waits for it: neither what is committed nor the first moments after an election.
    assert machine.begun() == [] and machine.appended(20) == [AdvanceHighWatermark(20)]
    assert machine.tick(20, 2.0) == [ProposeIsr((1,), ())]
    assert machine.appended(21) == [AdvanceHighWatermark(21)]
    assert settle(machine, replace(image, dropped=(), revision=11), 2.0) == []
    assert machine.tick(21, 4.0) == []


# ---------------------------------------------------------------------- coming and going


def test_rule_8_a_follower_enters_at_the_high_watermark_and_the_epochs_start() -> None:
    # Elected at 10 without knowing that more than 6 was committed.
    machine = leader(replace(IMAGE, isr=(1, 2)), high_watermark=6)
    assert tell(machine, 10, said(3, 8)) == [], "at the high watermark, but before this epoch's start"
    assert tell(machine, 10, said(3, 10)) == [ProposeIsr((1, 2, 3), ())]


def test_rule_8_one_that_is_behind_the_high_watermark_does_not_enter() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    machine.appended(20)
    tell(machine, 20, said(2, 20))
    assert machine.high_watermark == 20
    assert tell(machine, 20, said(3, 19)) == []
    assert tell(machine, 20, said(3, 20)) == [ProposeIsr((1, 2, 3), ())]


def test_rule_8_one_that_reports_less_than_the_high_watermark_is_out_at_once() -> None:
    machine = leader(min_insync=3)
    assert tell(machine, 10, said(2, 10), said(3, 7)) == [ProposeIsr((1, 2), ())], "nor may it be elected"


def test_rule_8_only_admitted_replicas_enter_the_isr() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)), admitted={1: ADMITTED[1], 2: ADMITTED[2]})
    assert tell(machine, 10, said(3, 10)) == []
    assert machine.on_members(ADMITTED, 2.0) == [ProposeIsr((1, 2, 3), ())]


def test_slow_followers_leave_after_the_lag_time() -> None:
    machine = leader()
    machine.appended(20)
    tell(machine, 20, said(2, 20), said(3, 15), now=1.0)
    assert machine.tick(20, 30.0) == []
    assert machine.tick(20, 30.5) == [ProposeIsr((1, 2), ())]


def test_a_follower_that_keeps_pace_at_a_distance_is_not_slow() -> None:
    machine = leader()
    now, end = 0.0, 10
    for _ in range(100):
        now, end = now + 1, end + 10
        machine.appended(end)
        # It has what there was at its last report, though never all of it.
        tell(machine, end, said(2, end), said(3, end - 10), now=now)
        assert machine.tick(end, now) == []


def test_an_idle_partition_makes_no_follower_late() -> None:
    machine = leader()
    tell(machine, 10, said(2, 10), said(3, 10))
    assert machine.tick(10, 1000.0) == []
    machine.appended(11)
    assert machine.tick(11, 1001.0) == []


def test_without_a_stream_a_follower_becomes_late() -> None:
    machine = leader()
    tell(machine, 10, said(2, 10), said(3, 10))
    machine.tick(10, 100.0)
    machine.on_stream_lost(3, 10, 110.0)
    assert machine.tick(10, 130.0) == []
    assert machine.tick(10, 140.5) == [ProposeIsr((1, 2), ())]


# ---------------------------------------------------------------------- what counts


def test_rule_9_another_epochs_position_is_dropped() -> None:
    machine = leader()
    machine.appended(20)
    assert tell(machine, 20, said(2, 20, leader_epoch=4)) == [Drop(2, "epoch 4, not 5")]
    assert 2 not in machine.positions


def test_rule_9_another_incarnations_position_does_not_count() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    machine.appended(20)
    assert tell(machine, 20, said(2, 20, incarnation=UUID(int=7))) == []
    assert machine.high_watermark == 10
    # Once the cluster has admitted it, what it said counts.
    assert machine.on_members({**ADMITTED, 2: UUID(int=7)}, 2.0) == [AdvanceHighWatermark(20)]


def test_rule_9_positions_die_with_the_stream() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    tell(machine, 10, said(2, 10))
    machine.on_stream_lost(2, 10, 1.0)
    assert machine.appended(20) == []
    assert tell(machine, 20, said(2, 20)) == [AdvanceHighWatermark(20)]


def test_rule_9_positions_die_with_the_epoch() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    assert machine.appended(20) == []
    assert machine.high_watermark == 10, "nobody has said anything in this epoch"


def test_rule_9_a_position_that_parts_from_our_log_does_not_count() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    machine.appended(20)
    # Its epoch 4 goes on beyond where ours ended.
    assert tell(machine, 20, said(2, 15, last_epoch=4)) == [TellDivergence(2, 4, 10)]
    # An epoch that we never had: cut to the one before it.
    assert tell(machine, 20, said(2, 12, last_epoch=3)) == [TellDivergence(2, 3, 0)]
    assert machine.high_watermark == 10


def test_a_follower_before_our_log_start_restarts() -> None:
    machine = leader()
    assert machine.on_position(said(2, 3, wants=True), own(10, start=5), 1.0) == [TellStart(2, 5)]


def test_a_wish_is_answered_with_batches_from_its_end() -> None:
    machine = leader()
    assert tell(machine, 10, said(2, 10, wants=True)) == [SendFrom(2, 10)]
    assert tell(machine, 10, said(3, 0, last_epoch=NO_EPOCH, wants=True)) == [
        ProposeIsr((1, 2), ()),
        SendFrom(3, 0),
    ]


def test_what_the_partition_executes_comes_before_what_a_stream_executes() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    machine.appended(20)
    assert tell(machine, 20, said(2, 20, wants=True)) == [AdvanceHighWatermark(20), SendFrom(2, 20)]
    assert tell(machine, 20, said(3, 20, wants=True)) == [ProposeIsr((1, 2, 3), ()), SendFrom(3, 20)]


def test_rule_10_a_position_is_what_is_flushed() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    machine.appended(20)
    assert tell(machine, 20, said(2, 20, position=12)) == [AdvanceHighWatermark(12)]
    # Our own too: the log has 20, of which 15 are flushed.
    flushed = leader(replace(IMAGE, isr=(1, 2)))
    tell(flushed, 20, said(2, 20))
    assert flushed.appended(15) == [AdvanceHighWatermark(15)]


def test_a_position_of_an_unknown_broker_is_dropped() -> None:
    machine = leader()
    report = said(2, 10)._replace(broker_id=9)
    assert tell(machine, 10, report) == [Drop(9, "not a replica")]


# ---------------------------------------------------------------------- low watermark


def test_the_low_watermark_is_the_least_log_start_of_the_in_sync_replicas() -> None:
    machine = leader()
    assert machine.low_watermark(7) == UNKNOWN
    tell(machine, 10, said(2, 10), said(3, 10))
    assert machine.low_watermark(7) == UNKNOWN
    machine.on_log_start(said(2, 10, position=7))
    machine.on_log_start(said(3, 10, position=4))
    assert machine.low_watermark(7) == 4
    machine.on_log_start(said(3, 10, position=9))  # Its own retention may be further.
    assert machine.low_watermark(7) == 7
    machine.on_log_start(said(3, 10, position=2, leader_epoch=EPOCH - 1))
    assert machine.low_watermark(7) == 7


def test_a_log_start_is_forgotten_with_its_stream_and_its_incarnation() -> None:
    machine = leader()
    tell(machine, 10, said(2, 10), said(3, 10))
    for follower in (2, 3):
        machine.on_log_start(said(follower, 10, position=7))
    machine.on_stream_lost(3, 10, 2.0)
    tell(machine, 10, said(3, 10))
    assert machine.low_watermark(7) == UNKNOWN
    machine.on_log_start(said(3, 10, position=7))
    machine.on_members({**ADMITTED, 2: UUID(int=9)}, 2.0)
    assert machine.low_watermark(7) == UNKNOWN


def test_replicas_outside_the_isr_do_not_hold_the_low_watermark_back_but_joining_ones_do() -> None:
    machine = leader(replace(IMAGE, isr=(1, 2)))
    tell(machine, 10, said(2, 10))
    machine.on_log_start(said(2, 10, position=7))
    assert machine.low_watermark(7) == 7
    tell(machine, 10, said(3, 10))
    assert machine.proposed is not None and 3 in machine.proposed.isr
    assert machine.low_watermark(7) == UNKNOWN
    alone = leader(replace(IMAGE, replicas=(1,), isr=(1,)), min_insync=1)
    assert alone.low_watermark(7) == 7
