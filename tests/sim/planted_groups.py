"""Bugs in groups to plant, as in `planted.py`: each against what members of a group rely on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from ottla_broker.group import machine as classic
from ottla_broker.group.consumer import machine as consumer
from ottla_broker.group.messages import CommitOffsets, FetchOffsets
from ottla_broker.group.offsets import Offsets
from ottla_broker.group.shard import GroupShard
from ottla_broker.log.producers import Duplicate, ProducerStates
from ottla_broker.requests import Fetched
from ottla_client import assignors
from ottla_core.records.batch import complete_batches
from sim.shape import Shape
from sim.workers import _Transforming

Plant = Callable[[pytest.MonkeyPatch], None]
WITH_GROUPS = Shape(has_groups=True)
WITH_WORKERS = Shape(has_groups=True, is_transactional=True)


class Planted(NamedTuple):
    plant: Plant
    #: A seed that finds it.
    seed: int
    shape: Shape
    #: The invariants that may be broken first.
    breaks: tuple[str, ...]


PLANTED: dict[str, Planted] = {}


def planted(seed: int, *breaks: str, shape: Shape = WITH_GROUPS) -> Callable[[Plant], Plant]:
    def note(plant: Plant) -> Plant:
        PLANTED[plant.__name__] = Planted(plant, seed, shape, breaks)
        return plant

    return note


@planted(4, "I20")
def partitions_that_move_are_given_before_they_are_free(patch: pytest.MonkeyPatch) -> None:
    """By the leader of a classic group with the cooperative assignor."""
    patch.setattr(assignors, "withhold_moving", lambda claims, made: made)


@planted(6, "I21", "I22")
def partitions_are_given_while_others_revoke_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumer.ConsumerMachine, "free", lambda self, group, partitions: partitions)


@planted(19, "I21", "I22")
def a_member_with_an_old_epoch_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumer.ConsumerMachine, "check_offsets", lambda self, group, request: None)


@planted(14, "I21", "I22")
def a_member_of_an_old_generation_commits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic.Machine, "check_commit", lambda self, group, request, now: None)


@planted(14, "I20", "I21")
def a_static_member_is_not_fenced_by_its_successor(patch: pytest.MonkeyPatch) -> None:
    shipped = classic.Machine.check_commit

    def check(self: Any, group: Any, request: CommitOffsets, now: Any) -> None:
        if request.instance_id in group.static:
            request = replace(request, member_id=group.static[request.instance_id])
        shipped(self, group, request, now)

    patch.setattr(classic.Machine, "check_commit", check)


@planted(2, "I21")
def a_refused_commit_is_carried_out(patch: pytest.MonkeyPatch) -> None:
    """The check comes after the write."""
    shipped = GroupShard._commit

    def commit(self: Any, request: CommitOffsets, ticket: Any, now: Any, out: Any) -> None:
        try:
            shipped(self, request, ticket, now, out)
        except Exception:
            for each in request.offsets:
                known = self.offsets.of(request.group).get(each.tp)
                if known is not None:
                    value = known._replace(offset=each.offset, metadata=each.metadata)
                    self.offsets.put(request.group, each.tp, value)
            raise

    patch.setattr(GroupShard, "_commit", commit)


@planted(1, "I11", "I21")
def a_committed_offset_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Now and then a coordinator keeps the older of two."""
    shipped, chance = Offsets.put, random.Random(1)

    def put(self: Any, group: str, tp: Any, value: Any) -> None:
        if chance.random() > 0.05 or tp not in self.of(group):
            shipped(self, group, tp, value)

    patch.setattr(Offsets, "put", put)


@planted(3, "I9")
def a_member_that_is_gone_keeps_its_partitions(patch: pytest.MonkeyPatch) -> None:
    for machine in (classic.Machine, consumer.ConsumerMachine):
        patch.setattr(machine, "session_over", lambda self, *arguments: None)


@planted(1, "I16", "I22")
def a_fetch_leaves_out_a_batch(patch: pytest.MonkeyPatch) -> None:
    """Some that lie between others, so that no reader sees anything odd in what it gets."""
    from sim import members

    def without_one(got: Fetched) -> Fetched:
        found = [got.records[at : at + header.size] for at, header in complete_batches(got.records)]
        if len(found) < 3:
            return got
        return got._replace(records=b"".join(bytes(each) for each in (found[0], *found[2:])))

    for name in ("all_in", "committed_in"):
        shipped = getattr(members, name)
        patch.setattr(members, name, lambda got, at, shipped=shipped: shipped(without_one(got), at))


@planted(1, "I22")
def a_poll_gets_records_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """Those of the response's last batch come first (non-monotonic poll)."""
    from sim import members

    def reordered(found: dict[int, bytes], after: int) -> tuple[dict[int, bytes], int]:
        return dict(sorted(found.items(), key=lambda each: each[0] < after - 1)), after

    for name in ("all_in", "committed_in"):
        shipped = getattr(members, name)
        patch.setattr(members, name, lambda got, at, shipped=shipped: reordered(*shipped(got, at)))


@planted(1, "I5", "I22")
def a_batch_that_comes_again_is_written_again(patch: pytest.MonkeyPatch) -> None:
    """A duplicate: one value at two offsets."""
    shipped = ProducerStates.check

    def check(self: Any, header: Any, *more: Any, **options: Any) -> Any:
        found = shipped(self, header, *more, **options)
        return None if isinstance(found, Duplicate) else found

    patch.setattr(ProducerStates, "check", check)


@planted(15, "I23", shape=WITH_WORKERS)
def transactions_read_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Each what the other one has written (G1c)."""
    patch.setattr(_Transforming, "isolation_is_committed", False)


@planted(38, "I19", "I21", "I22", shape=WITH_WORKERS)
def offsets_of_open_transactions_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    shipped = GroupShard._fetch
    patch.setattr(
        GroupShard,
        "_fetch",
        lambda self, request, *more: shipped(self, _impatient(request), *more),
    )


def _impatient(request: FetchOffsets) -> FetchOffsets:
    return replace(request, require_stable=False)


@planted(31, "I19", "I21", shape=WITH_WORKERS)
def offsets_in_transactions_are_taken_from_anybody(patch: pytest.MonkeyPatch) -> None:
    """A worker whose partitions went to another commits its transaction's share of them."""
    for machine, name in ((classic.Machine, "check_commit"), (consumer.ConsumerMachine, "check_offsets")):
        shipped = getattr(machine, name)

        def check(self: Any, group: Any, request: Any, *more: Any, shipped: Any = shipped) -> None:
            if getattr(request, "producer", None) is None:
                shipped(self, group, request, *more)

        patch.setattr(machine, name, check)
