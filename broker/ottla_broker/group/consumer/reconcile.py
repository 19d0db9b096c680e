"""The next current assignment of one member on its way to the target. [P]

A member first revokes what it loses, then gets what it gains, and of that only partitions that are free: so a
partition never has two owners, and members whose target equals their assignment are not touched. Transitions:

* It owns partitions that are not in its target: UNREVOKED. Its epoch stays until it reports that it has revoked them.
* Otherwise it advances to the epoch of the target, with the free partitions of its target: STABLE if these are all,
  UNRELEASED if others still own some; each heartbeat tries again.

What it keeps, it keeps since the epoch at which it got it (KIP-1251); what it gains, it has since the new epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla_broker.group.consumer.partitions import NONE, Partitions, common, minus, size, union
from ottla_broker.group.consumer.records import CurrentAssignment, MemberState


def next_assignment(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    free: Callable[[Partitions], Partitions],
) -> CurrentAssignment:
    """`owned` is what the member reported, None if nothing new; `free` returns those that no member owns."""
    if current.state is MemberState.UNREVOKED and (owned is None or common(current.revoking, owned)):
        return current  # Still revoking.
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    assigned = common(current.assigned, target)
    revoking = minus(current.assigned, target)
    if revoking and (owned is None or common(revoking, owned)):
        held = current.since_of(current.assigned, current.epoch)
        return CurrentAssignment(
            current.epoch, current.previous_epoch, MemberState.UNREVOKED, assigned, revoking, held
        )
    missing = minus(target, assigned)
    gained = free(missing)
    state = MemberState.STABLE if size(gained) == size(missing) else MemberState.UNRELEASED
    previous = current.previous_epoch if current.epoch == target_epoch else current.epoch
    kept = current.since_of(assigned, target_epoch)
    return CurrentAssignment(target_epoch, previous, state, union(assigned, gained), NONE, kept)
