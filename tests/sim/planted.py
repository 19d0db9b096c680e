"""Bugs to plant: each breaks one rule of the design in the shipped code, in as few words as it takes.

A simulation that finds nothing may be blind. `test_planted.py` shows for each of these that some seed, and not a rare
one, breaks an invariant; with them taken out again the same seeds pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from ottla_broker.broker import Broker
from ottla_broker.controller import backend, election, isr_writer, leaders, planner
from ottla_broker.controller.service import Controller
from ottla_broker.coordination import runtime
from ottla_broker.coordination.runtime import Runtime
from ottla_broker.log.dir_files import LogDir
from ottla_broker.log.dirs import LogDirs
from ottla_broker.log.log import Log
from ottla_broker.membership import failure_detector, suspicion
from ottla_broker.metadata.image import ClusterImage, PartitionImage
from ottla_broker.metadata.sections.controller import CONTROLLER, Elected
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.partition.following import Following
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.leading import Leading
from ottla_broker.partition.partition import Partition
from ottla_broker.replication import follow_stream, leader
from ottla_broker.replication.leader import Leader
from ottla_broker.service.delayed_fetch import DelayedFetch
from ottla_core.ids import NO_BROKER
from ottla_core.ports.peers import Presence
from ottla_core.ports.store import Branch, Put, StoreError
from sim.shape import PLAIN, Shape

Plant = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    plant: Plant
    #: A seed that finds it.
    seed: int
    #: What alone is drawn in the worlds that look for it; None: all that can go wrong.
    nemesis: str | None
    shape: Shape


PLANTED: dict[str, Planted] = {}


def planted(*, seed: int, nemesis: str | None = None, shape: Shape = PLAIN) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        PLANTED[plant.__name__] = Planted(plant, seed, nemesis, shape)
        return plant

    return note


# ---------------------------------------------------------------------- rules 1 to 3: restarts


@planted(seed=3)
def rule_1_a_broker_leads_before_it_is_admitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Broker, "_is_admitted", lambda self, image: True)


@planted(seed=7)
def rule_2_a_torn_log_is_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "_is_whole", lambda broker, member: member is not None)


@planted(seed=2)
def rule_3_a_leadership_is_resumed_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    shipped = planner.after_return

    def resumed(partition: PartitionImage, arriving: Any, torn: Any, here: Any, policy: Any) -> Any:
        if partition.leader in arriving and partition.leader not in torn:
            return None
        return shipped(partition, arriving, torn, here, policy)

    patch.setattr(planner, "after_return", resumed)


# ---------------------------------------------------------------------- rules 5 to 8: in-sync sets


@planted(seed=1)
def rule_5_an_isr_is_written_without_a_compare(patch: pytest.MonkeyPatch) -> None:
    shipped = isr_writer._Proposal
    patch.setattr(
        isr_writer, "_Proposal", lambda key, wanted, guard, outcome: shipped(key, wanted, (), outcome)
    )


@planted(seed=1, nemesis="late plan")
def rule_5_a_controller_writes_without_compares(patch: pytest.MonkeyPatch) -> None:
    async def unfenced(store: Any, epoch: int, stage: Any) -> list[Any]:
        return [await store.transact((), [Branch((), branch.writes) for branch in stage.branches])]

    patch.setattr(backend, "_write_stage", unfenced)


@planted(seed=11)
def rule_6_a_proposed_isr_counts_before_the_store_agrees(patch: pytest.MonkeyPatch) -> None:
    shipped = leader.committed
    patch.setattr(
        leader,
        "committed",
        lambda now, positions, isr, proposed, least: shipped(now, positions, proposed or isr, None, least),
    )


@planted(seed=1)
def rule_6_acknowledged_before_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        leader,
        "committed",
        lambda now, positions, isr, proposed, least: max(now, *positions.values()),
    )


@planted(seed=1, nemesis="deaf leader")
def rule_6_a_lost_reply_is_taken_for_a_refusal(patch: pytest.MonkeyPatch) -> None:
    async def settle(self: Any, batch: Any) -> None:
        try:
            await self._attempt(batch)
        except StoreError:
            for proposal in batch:
                before = self._metadata.image.topic_by_id(PARTITIONS.id_of(proposal.key)[0])
                index = PARTITIONS.id_of(proposal.key)[1]
                if not proposal.outcome.done() and before is not None:
                    proposal.outcome.set_result(before.partitions[index])

    patch.setattr(isr_writer.IsrWriter, "_settle", settle)


def rule_7_whom_an_election_drops_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    for module in (election, leaders):
        patch.setattr(
            module, "with_sets", lambda partition, isr, elr: replace(partition, isr=isr, elr=elr, dropped=())
        )


@planted(seed=11)
def rule_7_the_watermark_moves_below_min_insync(patch: pytest.MonkeyPatch) -> None:
    shipped = leader.committed
    patch.setattr(
        leader,
        "committed",
        lambda now, positions, isr, proposed, least: shipped(now, positions, isr, proposed, 0),
    )
    advance = Leader._advance

    def heedless(self: Any) -> Any:
        image = self.image
        self.image = _without_elr(image)
        try:
            return advance(self)
        finally:
            self.image = image

    patch.setattr(Leader, "_advance", heedless)


def _without_elr(image: PartitionImage) -> PartitionImage:
    return PartitionImage(image.replicas, image.leader, image.leader_epoch, image.isr)


@planted(seed=7)
def rule_7_a_leader_from_outside_the_isr(patch: pytest.MonkeyPatch) -> None:
    shipped = leaders.policy_of
    patch.setattr(
        planner, "policy_of", lambda topic, defaults: shipped(topic, defaults)._replace(unclean=True)
    )


@planted(seed=1)
def rule_8_a_follower_enters_below_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_is_ready", lambda self, broker_id: broker_id in self._positions)


# ---------------------------------------------------------------------- rules 9 to 11: positions, epochs, waiters


@planted(seed=52)
def rule_9_a_position_outlives_its_stream(patch: pytest.MonkeyPatch) -> None:
    def count(self: Any, broker_id: int, follower: Any) -> None:
        self._positions[broker_id] = follower.position

    patch.setattr(Leader, "_forget", lambda self, broker_id, follower: None)
    patch.setattr(Leader, "_count", count)


@planted(seed=1)
def rule_9_a_position_counts_whatever_the_lineage(patch: pytest.MonkeyPatch) -> None:
    shipped = leader.agrees
    patch.setattr(
        leader,
        "agrees",
        lambda entries, end, epoch, offset: None if offset <= end else shipped(entries, end, epoch, offset),
    )


@planted(seed=3)
def rule_9_a_log_is_not_cut_where_it_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_truncate", lambda self, offset: None)


@planted(seed=3)
def rule_9_a_log_is_cut_to_its_own_high_watermark(patch: pytest.MonkeyPatch) -> None:
    shipped = Partition.resign

    def cut(self: Any, image: PartitionImage) -> None:
        before = self.following
        shipped(self, image)
        if self.following is not None and self.following is not before and image.leader != NO_BROKER:
            self.log.truncate_to(max(self.log.start_offset, self.high_watermark), now_ms=self.wall_ms())

    patch.setattr(Partition, "resign", cut)


@planted(seed=3, nemesis="deposed leader")
def rule_11_a_waiter_outlives_its_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_release", lambda self, error: self._wake_readers())


@planted(seed=1)
def rule_11_a_duplicate_is_acknowledged_at_once(patch: pytest.MonkeyPatch) -> None:
    shipped_append, shipped_wait = Log.append, Partition.acknowledged

    def append(self: Any, *arguments: Any, **options: Any) -> Any:
        info = shipped_append(self, *arguments, **options)
        duplicates[self] = info.last_offset if info.duplicate else -1
        return info

    def acknowledged(self: Any, appended: Any, acks: int, timeout_s: float) -> Any:
        again = duplicates.get(self.log) == appended.last_offset
        return None if again else shipped_wait(self, appended, acks, timeout_s)

    duplicates: dict[Log, int] = {}
    patch.setattr(Log, "append", append)
    patch.setattr(Partition, "acknowledged", acknowledged)


# ---------------------------------------------------------------------- rules 4, 10, 12 and 13: topics, marks, readers


@planted(seed=2, nemesis="renewed topic")
def rule_4_a_folder_is_joined_by_its_name(patch: pytest.MonkeyPatch) -> None:
    shipped = LogDirs.get_or_create

    def by_name(self: Any, tp: Any, topic_id: Any, config: Any, **options: Any) -> Any:
        log_dir = self._dir_of.get(tp)
        if log_dir is not None and log_dir.folders[tp].topic_id is not None:
            topic_id = log_dir.folders[tp].topic_id
        return shipped(self, tp, topic_id, config, **options)

    patch.setattr(LogDirs, "get_or_create", by_name)


@planted(seed=18, nemesis="renewed topic")
def rule_4_a_deleted_topic_outlives_the_admission(patch: pytest.MonkeyPatch) -> None:
    def admit(self: Any, image: ClusterImage) -> None:
        self._admitted = True
        self.on_image(ClusterImage(cluster_id=""), image)

    patch.setattr(PartitionHost, "admit", admit)


@planted(seed=1, nemesis="renewed topic")
def rule_4_checkpoints_go_by_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogDir, "_is_of", lambda self, tp: True)


@planted(seed=1)
def rule_10_a_position_is_not_what_is_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "position", property(lambda self: self.log.end_offset))


@planted(seed=1)
def rule_12_a_high_watermark_waits_for_the_next_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(follow_stream.Sending, "mark_watermark", lambda self: None)


@planted(seed=16)
def rule_13_the_end_is_told_before_it_is_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "check_latest", lambda self: None)


@planted(seed=4, shape=Shape(is_compacted=True))
def rule_13_compaction_goes_beyond_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "stable_offset", lambda self: self.log.end_offset)


# ---------------------------------------------------------------------- rules 14 to 20: leases, removals, the store


@planted(seed=1)
def rule_23_a_follower_serves_up_to_its_log_end(patch: pytest.MonkeyPatch) -> None:
    def limit(self: Any, partition: Partition) -> int:
        return partition.high_watermark if partition.is_leader else partition.log.end_offset

    patch.setattr(DelayedFetch, "_limit_of", limit)


@planted(seed=5, nemesis="lone coordinator")
def rule_14_a_coordinator_answers_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "check_work", lambda self: None)


@planted(seed=1, nemesis="frozen")
def rule_15_silence_is_taken_for_death(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        failure_detector,
        "is_refused",
        lambda probe, incarnation: probe.presence is not Presence.HERE or probe.incarnation != incarnation,
    )
    patch.setattr(suspicion, "is_refused", failure_detector.is_refused)


@planted(seed=14)
def rule_16_a_controller_is_overwritten(patch: pytest.MonkeyPatch) -> None:
    async def seize(self: Any) -> None:
        broker = self._registration.broker
        if self._registration.lease:
            value = CONTROLLER.encode(Elected(broker.id, broker.incarnation))
            put = Put(CONTROLLER.key, value, self._registration.lease)
            await self._store.transact((), [Branch((), (put,))])

    patch.setattr(Controller, "_campaign", seize)


@planted(seed=10)
def rule_18_a_broken_watch_goes_on_from_now(patch: pytest.MonkeyPatch) -> None:
    shipped = Metadata.run

    async def run(self: Any) -> None:
        began = False
        refresh = self.refresh

        async def skipped() -> Any:
            nonlocal began
            if not began:
                began = True
                return await refresh()
            self._image = replace(self._image, revision=(await self._store.scan("")).revision)
            return self._image

        self.refresh = skipped
        await shipped(self)

    patch.setattr(Metadata, "run", run)


@planted(seed=5)
def rule_20_a_coordinator_loads_what_is_committed_only(patch: pytest.MonkeyPatch) -> None:
    shipped = runtime.replay_log

    async def replay(partition: Any, epoch: int, end: int, *more: Any) -> int:
        return await shipped(partition, epoch, min(end, partition.high_watermark), *more)

    patch.setattr(runtime, "replay_log", replay)


@planted(seed=3, nemesis="there and back")
def rule_20_a_coordinator_outlives_its_leadership(patch: pytest.MonkeyPatch) -> None:
    shipped = Runtime._follow

    def follow(self: Any, index: int) -> Any:
        hosted = self._hosted.get(index)
        if hosted is None or not hosted.ready or hosted.partition.log.broken is not None:
            return shipped(self, index)
        hosted.epoch = hosted.partition.image.leader_epoch
        return hosted

    patch.setattr(Runtime, "_follow", follow)


# ---------------------------------------------------------------------- rule M9: DeleteRecords


@planted(seed=1, shape=Shape(is_trimmed=True))
def rule_m9_records_count_as_deleted_when_the_leader_has_deleted_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "low_watermark", lambda self, own_start: own_start)


# ---------------------------------------------------------------------- rule 22: moves


@planted(seed=1)
def rule_22_a_leader_comes_from_the_added_replicas_before_it_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    def hasty(partition: PartitionImage, live: Any) -> PartitionImage | None:
        added = [r for r in partition.adding if r in live.alive and r in partition.target]
        if not added or partition.leader in partition.target:
            return None
        return replace(partition, leader=added[0], leader_epoch=partition.leader_epoch + 1)

    patch.setattr(planner, "next_step", hasty)


@planted(seed=1)
def rule_22_a_removed_replica_still_counts(patch: pytest.MonkeyPatch) -> None:
    shipped = planner.next_step

    def hasty(partition: PartitionImage, live: Any) -> PartitionImage | None:
        if partition.is_moving and partition.has_caught_up and partition.leader in partition.target:
            isr = tuple(r for r in partition.isr if r in partition.target)
            return replace(partition, replicas=partition.target, adding=(), removing=(), isr=isr)
        return shipped(partition, live)

    patch.setattr(planner, "next_step", hasty)


@planted(seed=1)
def rule_22_replicas_are_removed_before_the_added_ones_are_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionImage, "has_caught_up", True)


@planted(seed=2, shape=Shape(brokers=5, replicas=2))
def rule_22_moves_begin_whatever_their_brokers_copy_already(patch: pytest.MonkeyPatch) -> None:
    shipped = planner.begun
    patch.setattr(planner, "begun", lambda moves, limit_of: shipped(moves, lambda broker: 1000))


@planted(seed=6)
def rule_22_a_cancelled_move_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "cancelled", lambda partition: None)
