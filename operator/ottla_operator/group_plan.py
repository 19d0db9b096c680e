"""Consumer groups: what the resource shows, and the one-time offset reset. [P]

The offset reset is done at most once, even if the operator dies in the middle of it. It is a small state machine
whose memory is `status.offsetReset`, because nothing else survives:

    (none) -> Waiting / Refused             members are active
    (none), Waiting -> Applying             targets and old offsets are written down, *then* the commit is sent
    Applying -> Done                        the offsets are the targets
    Applying -> Applying (commit again)     the old offsets, committed when they were: ours never arrived
    Applying -> Interrupted                 neither: somebody else has moved them since. Never moved a second time.

R1: offsets are committed only if the status in the API server says Applying with these targets.
R2: after Done, Interrupted, Refused or Failed the same id does nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla_operator.schemas import MOVED_MAX, ROWS_MAX
from ottla_operator.specs import GroupSpec, OffsetReset
from ottla_operator.status import Condition, not_ready, ready

Partition = tuple[str, int]

_FINAL = ("Done", "Refused", "Interrupted", "Failed")
#: What coordinators answer for a group that they do not know, and what the resource shows instead.
_DEAD, NOT_USED = "Dead", "NotUsed"


@dataclass(frozen=True, slots=True)
class SeenMember:
    member_id: str
    instance_id: str
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    partitions: tuple[Partition, ...]
    #: Assignors that it knows; empty while its coordinator has not heard.
    protocols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group as its coordinator describes it; a group nobody heard of is Dead and empty."""

    group: str
    state: str = "Dead"
    protocol: str = ""
    generation: int = -1
    coordinator: int = -1
    members: tuple[SeenMember, ...] = ()
    committed: Mapping[Partition, int] = field(default_factory=dict)
    #: When each was committed, as the coordinator says.
    committed_ms: Mapping[Partition, int] = field(default_factory=dict)
    #: Of every partition that is committed, assigned, or of a topic in the spec.
    ends: Mapping[Partition, int] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    #: What is set for the group at the brokers.
    settings: Mapping[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------ status


def facts_of(seen: SeenGroup) -> dict[str, Any]:
    readers = {tp: member.member_id for member in seen.members for tp in member.partitions}
    rows = [lag_row(seen, tp, readers.get(tp)) for tp in sorted({*seen.committed, *seen.ends, *readers})]
    rows.sort(key=lambda row: -row["lag"])
    return {
        "groupId": seen.group,
        "state": NOT_USED if seen.state == _DEAD else seen.state,
        "generation": seen.generation,
        "assignor": seen.protocol or None,
        "coordinator": seen.coordinator,
        "memberCount": len(seen.members),
        "members": [_member_row(member) for member in seen.members[:ROWS_MAX]],
        "totalLag": sum(row["lag"] for row in rows),
        "lag": rows[:ROWS_MAX],
    }


def lag_row(seen: SeenGroup, tp: Partition, reader: str | None) -> dict[str, Any]:
    """Without a commit, everything the partition holds is still to be read."""
    committed, end = seen.committed.get(tp, -1), seen.ends.get(tp, -1)
    position = committed if committed >= 0 else seen.starts.get(tp, 0)
    row: dict[str, Any] = {
        "topic": tp[0],
        "partition": tp[1],
        "committed": committed,
        "end": end,
        "lag": max(0, end - position) if end >= 0 else 0,
    }
    if reader is not None:
        row["memberId"] = reader
    return row


def _member_row(member: SeenMember) -> dict[str, Any]:
    row: dict[str, Any] = {
        "memberId": member.member_id,
        "clientId": member.client_id,
        "host": member.host,
        "partitions": [f"{topic}-{partition}" for topic, partition in sorted(member.partitions)[:ROWS_MAX]],
    }
    if member.instance_id:
        row["instanceId"] = member.instance_id
    return row


def condition_of(seen: SeenGroup, reset: Condition | None = None) -> Condition:
    """Ready. An offset reset that failed makes the whole not ready: only a change of the spec cures it."""
    if reset is not None and reset.holds is False:
        return not_ready(f"{reset.type}{reset.reason}", reset.message)
    if seen.state == _DEAD:
        message = "No consumer has used this group yet: it has no members and no committed offsets."
        return not_ready(NOT_USED, f"{message} If one should have, compare its group id.")
    if seen.state in ("PreparingRebalance", "CompletingRebalance"):
        return not_ready("Rebalancing", "The group is rebalancing.")
    if not seen.members:
        return ready("The group has no members.", "NoMembers")
    return ready(f"{len(seen.members)} members read in generation {seen.generation}.", "Stable")


# ------------------------------------------------------------------ the offset reset


@dataclass(frozen=True, slots=True)
class Move:
    topic: str
    partition: int
    old: int
    #: When the old offset was committed: a consumer that read on to the very same offset is told by it.
    old_ms: int
    new: int

    @property
    def tp(self) -> Partition:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Record:
    """Write this into the status first; then go on with `commit`, if there is any."""

    state: str
    message: str
    moves: tuple[Move, ...] = ()
    #: Send this commit after the record is stored.
    commit: bool = False
    #: Nothing changed: the record that is there stays.
    same: bool = False


def reset_topics(spec: GroupSpec, reset: OffsetReset, seen: SeenGroup) -> set[str]:
    """Topics that a reset is about, unless it names partitions itself."""
    if reset.topics is not None:
        return set(reset.topics)
    return {*spec.topics, *(topic for topic, _ in seen.committed)}


def begin_reset(
    reset: OffsetReset, seen: SeenGroup, targets: Mapping[Partition, int], previous: Mapping[str, Any] | None
) -> Record:
    """For a reset that is asked for and not yet Applying. `targets` as looked up now."""
    if seen.members or seen.state not in ("Empty", _DEAD):
        return _active(reset, seen, previous)
    if not targets:
        return Record(
            "Failed", "The group has committed nothing and names no topics: there is nothing to move."
        )
    if len(targets) > MOVED_MAX:
        return Record("Failed", f"{len(targets)} partitions are more than the {MOVED_MAX} of one reset.")
    out_of_range = [
        f"{tp[0]}-{tp[1]}" for tp, offset in sorted(targets.items())
        if tp not in seen.ends or not seen.starts.get(tp, 0) <= offset <= seen.ends[tp]
    ]  # fmt: skip
    if out_of_range:
        return Record("Failed", f"Not in range, or no such partition: {', '.join(out_of_range[:20])}.")
    moves = tuple(
        Move(*tp, seen.committed.get(tp, -1), seen.committed_ms.get(tp, -1), offset)
        for tp, offset in sorted(targets.items())
    )
    return Record("Applying", f"Moving {len(moves)} partitions to {reset.to}.", moves, commit=True)


def _active(reset: OffsetReset, seen: SeenGroup, previous: Mapping[str, Any] | None) -> Record:
    if reset.wait:
        waits = (previous or {}).get("state") == "Waiting"
        return Record("Waiting", f"Waiting for {len(seen.members)} members to leave.", same=waits)
    return Record(
        "Refused",
        f"The group has {len(seen.members)} active members. Stop them and use a new id, or ask with whenActive: Wait.",
    )


def resume_reset(previous: Mapping[str, Any], seen: SeenGroup) -> Record:
    """For a reset that the status says is Applying: find out what became of it."""
    moves = tuple(
        Move(row["topic"], row["partition"], row["from"], row.get("fromMs", -1), row["to"])
        for row in previous.get("moved") or ()
    )
    arrived = [seen.committed.get(move.tp, -1) == move.new for move in moves]
    untouched = [
        (seen.committed.get(move.tp, -1), seen.committed_ms.get(move.tp, -1)) == (move.old, move.old_ms)
        for move in moves
    ]
    if all(arrived):
        return Record("Done", f"Moved {len(moves)} partitions.", moves)
    if seen.members and all(untouched):
        return Record("Failed", "Members became active before the offsets were moved; use a new id.", moves)
    if not seen.members and all(a or u for a, u in zip(arrived, untouched, strict=True)):
        return Record("Applying", str(previous.get("message", "")), moves, commit=True, same=True)
    return Record(
        "Interrupted",
        "The operator was interrupted, and offsets have been committed since; they are left alone. Use a new id.",
        moves,
    )


def must_act(reset: OffsetReset | None, previous: Mapping[str, Any] | None) -> str:
    """What to do about the reset: "nothing", "begin", "resume", or "changed" (another request under a used id)."""
    if reset is None:
        return "nothing"
    if previous is None or previous.get("id") != reset.id:
        return "begin"
    if previous.get("digest") != reset.digest and previous.get("state") != "Waiting":
        return "changed"
    state = previous.get("state")
    if state in _FINAL:
        return "nothing"
    return "resume" if state == "Applying" else "begin"


def row_of(reset: OffsetReset, record: Record, now: str) -> dict[str, Any]:
    """`status.offsetReset`."""
    row: dict[str, Any] = {
        "id": reset.id,
        "digest": reset.digest,
        "state": record.state,
        "message": record.message,
        "at": now,
    }
    if record.moves:
        row["moved"] = [
            {"topic": m.topic, "partition": m.partition, "from": m.old, "fromMs": m.old_ms, "to": m.new}
            for m in record.moves
        ]
    return row


def reset_condition(reset: OffsetReset | None, row: Mapping[str, Any] | None, todo: str) -> Condition | None:
    if reset is None or row is None:
        return None
    if todo == "changed":
        return Condition(
            "OffsetsReset",
            False,
            "IdUsed",
            f"The reset {reset.id!r} was done with other content; give the new one a new id.",
        )
    holds = {"Done": True, "Applying": None, "Waiting": None}.get(row["state"], False)
    return Condition("OffsetsReset", holds, row["state"], f"{reset.id}: {row.get('message', '')}")


def targets_from(
    reset: OffsetReset, partitions: Sequence[Partition], found: Mapping[Partition, int], seen: SeenGroup
) -> dict[Partition, int]:
    """Offsets to commit. `found` is what the brokers answered for the time; -1 is "nothing that young": the end."""
    if reset.to == "offsets":
        return dict(reset.offsets)
    if reset.to == "earliest":
        return {tp: seen.starts[tp] for tp in partitions if tp in seen.starts}
    if reset.to == "latest":
        return {tp: seen.ends[tp] for tp in partitions if tp in seen.ends}
    return {tp: at if (at := found.get(tp, -1)) >= 0 else seen.ends.get(tp, 0) for tp in partitions}
