"""Replication between brokers of one process: what the machines promise holds for logs and streams as well."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.replication.cluster import IDS, NOW_MS, cluster
from ottla_broker.log.log import AppendInfo, Log
from ottla_broker.partition.partition import ACKS_ALL
from ottla_broker.replication.effects import AdvanceHighWatermark, LeaderEffect, SendFrom
from ottla_broker.replication.follow_client import BEAT_S
from ottla_broker.requests import Appended
from ottla_core.errors import (
    CorruptMessage,
    InvariantViolation,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
)
from ottla_core.ids import NO_BROKER
from ottla_core.ports.disk import Buffer
from sim.batches import Rec, make_batch


async def test_a_write_is_acknowledged_by_all_in_sync_and_is_on_all_of_them() -> None:
    async with cluster() as world:
        leader = world.nodes[1]
        for number in range(20):
            await leader.write(f"v{number}")
        assert leader.partition.high_watermark == 20
        assert await world.agree() == [f"v{number}" for number in range(20)]
        assert world.state.isr == IDS


async def test_rule_12_followers_learn_the_high_watermark_without_further_batches() -> None:
    async with cluster() as world:
        await world.nodes[1].write("only")
        await world.until(lambda: all(n.partition.high_watermark == 1 for n in world.nodes.values()))


async def test_without_a_follower_in_sync_nothing_is_committed() -> None:
    async with cluster(min_insync_replicas="2") as world:
        leader = world.nodes[1]
        await leader.write("before")
        await world.nodes[3].kill()
        with pytest.raises(RequestTimedOut):
            await leader.write("waits for 3", timeout_s=0.1)
        # After replica.lag.time.max.ms it leaves, and what waited is committed.
        await world.in_sync(1, 2)
        await world.until(lambda: leader.partition.high_watermark == 2)
        await leader.write("after")
        assert await world.agree() == ["before", "waits for 3", "after"]


@pytest.mark.parametrize("ids", [(1,), (1, 2)])
async def test_min_insync_above_the_number_of_replicas_asks_for_all_of_them(ids: tuple[int, ...]) -> None:
    """As a broker's default of 2 does for every topic with one replica: it is writable, and needs that one."""
    async with cluster(*ids, isr=ids, replicas=ids, min_insync_replicas="3") as world:
        leader = world.nodes[1]
        await leader.write("a")
        assert leader.partition.high_watermark == 1
        await leader.write("b", acks=1)
        await world.until(lambda: leader.partition.high_watermark == 2)
        if 2 in ids:
            await world.nodes[2].kill()
            leader.append("c")
            await world.in_sync(1)
            await world.until(lambda: leader.partition.image.isr == (1,))
            with pytest.raises(NotEnoughReplicas, match="asks for 2"):
                leader.append("d")


async def test_below_min_insync_writes_are_refused_and_the_last_to_leave_goes_to_the_elr() -> None:
    async with cluster(min_insync_replicas="2") as world:
        leader = world.nodes[1]
        await leader.write("a")
        await world.nodes[3].kill()
        leader.append("b")
        await world.in_sync(1, 2)
        await world.nodes[2].kill()
        written = leader.append("c")
        await world.in_sync(1)
        assert world.state.elr == (2,)
        await world.until(lambda: leader.partition.leading.machine.image.isr == (1,))  # type: ignore[union-attr]
        with pytest.raises(NotEnoughReplicas):
            leader.append("d")
        late = leader.partition.acknowledged(written, ACKS_ALL, 1.0)
        assert late is not None
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await late
        await leader.write("without promise", acks=1)
        assert leader.partition.high_watermark == 2, "it stands still, whatever is appended"
        # One comes back, copies everything, and is counted again.
        await world.start(2)
        await world.in_sync(1, 2)
        assert world.state.elr == ()
        assert await world.agree() == ["a", "b", "c", "without promise"]


async def test_a_retry_below_min_insync_is_never_reported_as_not_written() -> None:
    """The log holds the batch of the first attempt, and may commit it later."""
    async with cluster(min_insync_replicas="2") as world:
        leader = world.nodes[1]

        def attempt(sequence: int) -> Appended:
            batch = make_batch(
                [Rec(b"k", b"%d" % sequence, NOW_MS)], producer_id=7, epoch=0, sequence=sequence
            )
            return leader.partition.append(batch, ACKS_ALL, NOW_MS)

        await leader.write("a")
        await world.nodes[3].kill()
        await world.nodes[2].kill()
        first = attempt(0)
        await world.in_sync(1)
        await world.until(lambda: leader.partition.image.isr == (1,))
        retried = attempt(0)
        assert (retried.base_offset, retried.last_offset) == (first.base_offset, first.last_offset)
        late = leader.partition.acknowledged(retried, ACKS_ALL, 1.0)
        assert late is not None
        with pytest.raises(NotEnoughReplicasAfterAppend):
            await late
        with pytest.raises(NotEnoughReplicas, match="nothing was written"):
            attempt(1)
        assert leader.partition.log.end_offset == first.last_offset + 1


async def test_a_new_leader_has_all_that_was_acknowledged() -> None:
    async with cluster() as world:
        acknowledged = [f"v{n}" for n in range(10)]
        for value in acknowledged:
            await world.nodes[1].write(value)
        await world.nodes[1].kill()
        world.unregister(1)
        world.elect(2, (2, 3))
        leader = await world.leads(2)
        await leader.write("by the new one")
        assert await world.agree() == [*acknowledged, "by the new one"]
        await world.start(1)
        await world.in_sync(1, 2, 3)
        assert await world.agree() == [*acknowledged, "by the new one"]


async def test_what_only_the_old_leader_had_is_cut_off_when_it_comes_back() -> None:
    async with cluster() as world:
        old = world.nodes[1]
        await old.write("committed")
        world.net.cut(1, 2)
        world.net.cut(1, 3)
        lost = asyncio.ensure_future(old.write("never acknowledged", "nor this"))
        await asyncio.sleep(0.02)
        assert not lost.done()
        world.elect(2, (2, 3))
        new = await world.leads(2)
        await new.write("instead")
        with pytest.raises(NotLeaderOrFollower):
            await lost  # Rule 11: a waiter fails with its epoch.
        assert old.partition.log.end_offset == 3
        world.net.heal()
        await world.in_sync(1, 2, 3)
        assert await world.agree() == ["committed", "instead"]


async def test_epochs_without_records_do_not_confuse_a_returning_leader() -> None:
    """KIP-279: several elections in a row, each leader with a tail of its own."""
    async with cluster() as world:
        await world.nodes[1].write("a", "b")
        for one, other in ((1, 2), (1, 3), (2, 3)):
            world.net.cut(one, other)
        for leader_id in (2, 3, 1, 3, 2):
            world.elect(leader_id)
            node = await world.leads(leader_id)
            if leader_id != 1:
                node.append(f"tail of {leader_id} in {node.partition.leader_epoch}", acks=1)
        world.net.heal()
        await world.nodes[2].write("z")
        assert await world.agree() == ["a", "b", "tail of 2 in 1", "tail of 2 in 5", "z"]


async def test_rule_13_latest_is_not_known_before_the_epochs_start_is_committed() -> None:
    async with cluster() as world:
        old = world.nodes[1]
        await old.write("a")
        await world.agree()
        world.net.cut(1, 3)
        old.append("only on 1 and 2")
        await world.until(lambda: world.nodes[2].partition.log.end_offset == 2)
        world.net.cut(2, 3)
        world.elect(2)
        new = await world.leads(2)
        with pytest.raises(OffsetNotAvailable):
            new.partition.check_latest()
        # A fetch between high watermark and end is empty, not out of range.
        assert new.partition.log.read(2, 100, limit_offset=new.partition.high_watermark) is None
        world.net.heal()
        await world.until(lambda: new.partition.high_watermark == 2)
        new.partition.check_latest()


async def test_rule_14_without_a_lease_acks_1_needs_word_from_the_others() -> None:
    async with cluster() as world:
        leader = world.nodes[1]
        await leader.write("a")
        leader.is_confirmed = False
        await leader.write("b", acks=1)
        await world.nodes[3].kill()
        await world.until(lambda: 3 not in leader.partition.leading._outlets)  # type: ignore[union-attr]
        with pytest.raises(NotLeaderOrFollower):
            leader.append("c", acks=1)
        leader.append("d")  # acks=all goes on: only epochs protect data.


async def test_rule_14_without_a_lease_no_producer_is_refused_for_its_sequence() -> None:
    """Seed 6: a leader that was replaced without knowing it told a producer that its next number is out of order."""

    def numbered(sequence: int) -> bytes:
        return make_batch([Rec(None, b"x", NOW_MS)], producer_id=7, epoch=0, sequence=sequence)

    async with cluster() as world:
        leader = world.nodes[1]
        leader.partition.append(numbered(0), ACKS_ALL, NOW_MS)
        with pytest.raises(OutOfOrderSequenceNumber):
            leader.partition.append(numbered(5), ACKS_ALL, NOW_MS)
        leader.is_confirmed = False
        await world.nodes[3].kill()
        await world.until(lambda: 3 not in leader.partition.leading._outlets)  # type: ignore[union-attr]
        with pytest.raises(NotLeaderOrFollower):
            leader.partition.append(numbered(5), ACKS_ALL, NOW_MS)


async def test_rule_10_a_topic_that_flushes_before_the_ack_commits_what_is_flushed() -> None:
    async with cluster(flush_before_ack="true") as world:
        leader = world.nodes[1]
        await leader.write("a")
        assert all(n.partition.log.recovery_point >= 1 for n in world.nodes.values())
        await world.agree()


async def test_a_follower_before_the_log_start_restarts_there() -> None:
    async with cluster(1, 2, isr=(1, 2)) as world:
        leader = world.nodes[1]
        await leader.write("a")
        await leader.write("b", "c")
        await leader.write("d")
        assert await leader.delete_records(2) == 2
        await world.start(3)
        await world.in_sync(1, 2, 3)
        assert await world.agree() == ["c", "d"]
        assert world.nodes[3].partition.log.start_offset == 2


async def test_records_count_as_deleted_when_all_in_sync_replicas_have_deleted_them() -> None:
    async with cluster() as world:
        leader = world.nodes[1]
        await leader.write("a", "b", "c")
        assert await leader.delete_records(2) == 2
        assert [node.partition.log.start_offset for node in world.nodes.values()] == [2, 2, 2]
        assert await leader.delete_records(1) == 2  # Nothing to wait for.
        await leader.write("d")
        assert await leader.delete_records(-1) == 4
        await world.nodes[3].kill()
        await leader.write("e", timeout_s=0.01, acks=1)
        # Broker 3 is still in the ISR, and its log start is unknown. When it leaves the ISR, the rest is enough.
        with pytest.raises(RequestTimedOut):
            await leader.delete_records(3, timeout_s=0.05)
        waiting = asyncio.ensure_future(leader.delete_records(4))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        world.change(isr=(1, 2))
        assert await waiting == 4
        assert not leader.partition.is_deleting


async def test_a_deletion_that_waits_ends_with_the_leadership() -> None:
    async with cluster() as world:
        leader = world.nodes[1]
        await leader.write("a", "b")
        await world.nodes[3].kill()
        waiting = asyncio.ensure_future(leader.delete_records(1))
        await asyncio.sleep(0.02)
        world.elect(2, isr=(1, 2))
        with pytest.raises(NotLeaderOrFollower):
            await waiting


async def test_a_log_diverging_below_the_leaders_start_restarts() -> None:
    """The leader begins in the midst of a batch, and where its log parted from the follower's is deleted."""
    async with cluster(leader=3) as world:
        former = world.nodes[3]
        await former.write("a")
        await world.agree()
        for other in (1, 2):
            await world.nodes[other].kill()
        for value in ("x", "y", "z"):
            former.append(value, acks=1)
        await former.kill()
        world.unregister(3)
        world.elect(1, isr=(1, 2))
        for other in (1, 2):
            await world.start(other)
        leader = await world.leads(1)
        await leader.write("b", "c", "d")
        assert await leader.delete_records(2) == 2
        again = await world.start(3)
        await world.in_sync(1, 2, 3)
        assert await world.agree() == ["c", "d"]
        assert again.partition.log.start_offset == 2 and not again.metrics.replication.bad_sections


async def test_unusable_sections_are_requested_again_and_delay_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster(1, 2, isr=(1, 2)) as world:
        leader, shipped = world.nodes[1], Log.append_as_follower
        await leader.write("a")

        def refuse(log: Log, records: Buffer, *, now_ms: int) -> AppendInfo:
            if log._disk is world.disks[3]:
                raise CorruptMessage("the CRC does not fit")
            return shipped(log, records, now_ms=now_ms)

        monkeypatch.setattr(Log, "append_as_follower", refuse)
        follower = await world.start(3)
        began = asyncio.get_running_loop().time()
        for number in range(100):
            leader.append(str(number), acks=1)
            await asyncio.sleep(0.005)
        # Half a second, on a busy machine more. Each beat may meet what was under way.
        beats = (asyncio.get_running_loop().time() - began) / BEAT_S
        assert 1 <= follower.metrics.replication.bad_sections <= 3 * (beats + 1)
        await world.until(lambda: world.nodes[2].partition.log.end_offset > 90)
        monkeypatch.undo()
        await world.agree()


async def test_a_stream_that_breaks_is_opened_again() -> None:
    async with cluster() as world:
        leader = world.nodes[1]
        for number in range(5):
            world.net.reset(2)
            await leader.write(str(number))
        assert await world.agree() == ["0", "1", "2", "3", "4"]


async def test_a_leader_that_learns_of_its_epoch_last_serves_earlier_followers() -> None:
    async with cluster() as world:
        await world.nodes[1].write("a")
        late = world.nodes[2]
        late.metadata._subscribers.clear()  # Its image moves on, its host does not hear of it.
        world.elect(2)
        await world.until(lambda: world.nodes[3].partition.leader_epoch == 1)
        await asyncio.sleep(0.05)
        assert not late.partition.is_leader
        late.metadata.subscribe(late.host.on_image)
        late.host.on_image(late.host._image, late.metadata.image)
        await late.write("b")
        assert await world.agree() == ["a", "b"]


async def test_a_replica_that_was_removed_and_added_in_one_epoch_is_served_again() -> None:
    """The leader learns of both changes late, after the follower has asked for batches for the second time."""
    async with cluster() as world:
        leader, follower = world.nodes[1], world.nodes[3]
        await leader.write("a")
        leading = leader.partition.leading
        assert leading is not None
        image = leading.machine.image
        leading.on_image(replace(image, replicas=(1, 2), isr=(1, 2), revision=image.revision + 1))
        leading.on_image(replace(image, isr=(1, 2), revision=image.revision + 2))
        leader.append("b", acks=1)
        await world.until(lambda: follower.partition.log.end_offset == 2)


async def test_batches_larger_than_a_frame_and_a_helping_arrive() -> None:
    async with cluster(1, 2, isr=(1, 2), max_message_bytes=str(4 << 20)) as world:
        leader = world.nodes[1]
        big = ["x" * 700_000 + str(n) for n in range(4)]
        for value in big:
            await leader.write(value)
        await leader.write(*big)  # One batch of 2.8 MB.
        await world.start(3)
        await world.in_sync(1, 2, 3)
        assert await world.agree() == [*big, *big]


async def test_the_high_watermark_never_goes_back_through_any_of_it() -> None:
    async with cluster() as world:
        marks: dict[int, list[int]] = {broker_id: [0] for broker_id in IDS}
        value = 0
        acknowledged: list[str] = []
        for turn in range(6):
            leader = await world.leads(1 + turn % 3)
            for _ in range(4):
                value += 1
                await leader.write(str(value))
                acknowledged.append(str(value))
                for broker_id, node in world.nodes.items():
                    marks[broker_id].append(node.partition.high_watermark)
            leader.append("perhaps", acks=1)
            world.elect(1 + (turn + 1) % 3)
        await world.leads(1)
        records = await world.agree()
        assert [r for r in records if r != "perhaps"] == acknowledged
        assert all(seen == sorted(seen) for seen in marks.values())


async def test_the_high_watermark_stays_if_a_log_begins_again_in_the_middle_of_a_batch() -> None:
    """A replica without records begins where the leader's log did, in the midst of a batch. The next leader has not
    heard of that deletion, nor of the high watermark, and sends the whole batch."""
    async with cluster(1, 2, isr=(1, 2), min_insync_replicas="3") as made:
        made.nodes[1].append("a", "b", "c", "d", acks=1)
        await made.until(lambda: made.nodes[2].partition.log.end_offset == 4)
        await made.nodes[1].kill()
        await made.nodes[2].kill()
        made.change(leader=NO_BROKER)
        follower = await made.start(3)
        await made.until(lambda: follower.partition.log.end_offset == 0)
        follower.partition.log.restart_at(3, now_ms=NOW_MS)
        follower.partition.note_cut()
        marks = [follower.partition.high_watermark]
        leader = await made.start(2)
        made.elect(2, (2,))
        await made.leads(2)
        assert leader.partition.high_watermark == 0
        await made.until(lambda: follower.partition.log.end_offset == 4)
        marks.append(follower.partition.high_watermark)
        assert marks == [3, 3]
        assert follower.values(limit=4) == leader.values(limit=4) == ["a", "b", "c", "d"]


async def test_truncated_records_delay_no_flush() -> None:
    async with cluster(flush_messages="5") as world:
        leader = world.nodes[1]
        for other in (2, 3):
            await world.nodes[other].kill()
        for number in range(5):
            leader.append(f"lost {number}", acks=1)
        await world.until(lambda: leader.partition.log.recovery_point == 5)
        world.elect(2, isr=(2, 3))
        for other in (2, 3):
            await world.start(other)
        await world.until(lambda: leader.partition.log.end_offset == 0, what="cut")
        await world.in_sync(1, 2, 3)
        world.elect(1)
        await world.leads(1)
        # Far from the fifth record since the last flush, and the old fifth is no more.
        await leader.write("new", acks=1, timeout_s=1.0)
        assert await world.agree() == ["new"]


async def test_effects_of_the_partition_run_before_those_of_the_stream() -> None:
    async with cluster() as world:
        leading = world.nodes[1].partition.leading
        assert leading is not None
        effects: list[LeaderEffect] = [AdvanceHighWatermark(0), SendFrom(2, 0)]
        assert leading._do(effects) == [SendFrom(2, 0)]
        with pytest.raises(InvariantViolation, match="in order"):
            leading._do(effects[::-1])
