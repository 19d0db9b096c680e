"""Consumer groups: the status of the resource, and the one-time offset reset. [P]

The offset reset is applied at most once, even if the operator dies in the middle of it. It is a small state machine
that keeps its state in `status.offsetReset`, because nothing else survives a restart:

    (none) -> Waiting / Refused             members are active
    (none), Waiting -> Applying             targets and old offsets are written to the status, *then* the commit is sent
    Applying -> Done                        the committed offsets are the targets
    Applying -> Applying (commit again)     the old offsets with the old commit times: the commit never arrived
    Applying -> Interrupted                 neither: another client has committed since. Never moved a second time.

R1: offsets are committed only if the status in the API server says Applying with these targets.
R2: after Done, Interrupted, Refused or Failed, the same id has no further effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from ottla_operator.schemas import MOVED_MAX, NAMES_MAX, ROWS_MAX
from ottla_operator.specs import GroupSpec, OffsetReset
from ottla_operator.status import Condition, not_ready, ready

Partition = tuple[str, int]

_FINAL = ("Done", "Refused", "Interrupted", "Failed")
#: The state that coordinators return for an unknown group, and the state that the resource shows instead.
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
    #: Assignors that it supports; empty until the coordinator knows them.
    protocols: tuple[str, ...] = ()
    #: Subscribed topics; empty if unknown, or subscribed by regular expression only.
    topics: tuple[str, ...] = ()
    is_by_regex: bool = False


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group as its coordinator describes it; an unknown group is Dead and empty."""

    group: str
    state: str = "Dead"
    #: The assignor in use.
    protocol: str = ""
    generation: int = -1
    coordinator: int = -1
    members: tuple[SeenMember, ...] = ()
    committed: Mapping[Partition, int] = field(default_factory=dict)
    #: Commit timestamp of each offset, from the coordinator.
    committed_ms: Mapping[Partition, int] = field(default_factory=dict)
    #: End offset of every partition that has a commit, is assigned, or belongs to a topic in the spec.
    ends: Mapping[Partition, int] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    #: Age of the oldest record that is not committed, where it is known.
    seconds: Mapping[Partition, float] = field(default_factory=dict)
    #: The group's settings on the brokers.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: classic or consumer (broker-side); empty if it does not exist.
    type: str = ""
    #: Why the configured assignor is not in use, if it failed.
    assignor_failure: str = ""

    @property
    def is_broker_side(self) -> bool:
        return self.type == "consumer"

    def lag_of(self, tp: Partition) -> int:
        """Without a commit, the lag is the whole partition."""
        committed, end = self.committed.get(tp, -1), self.ends.get(tp, -1)
        position = committed if committed >= 0 else self.starts.get(tp, 0)
        return max(0, end - position) if end >= 0 else 0

    @property
    def lag(self) -> int:
        return sum(map(self.lag_of, self.ends))

    @property
    def lag_seconds(self) -> float | None:
        """Of the partition that is furthest behind; None if none is known."""
        return max(self.seconds.values(), default=None)


# ------------------------------------------------------------------ status


def facts_of(seen: SeenGroup, topics: Sequence[str] = ()) -> dict[str, Any]:
    """`topics` are those that the spec names."""
    readers = {tp: member.member_id for member in seen.members for tp in member.partitions}
    rows = [lag_row(seen, tp, readers.get(tp)) for tp in sorted({*seen.committed, *seen.ends, *readers})]
    rows.sort(key=lambda row: -row["lag"])
    return {
        "groupId": seen.group,
        "state": NOT_USED if seen.state == _DEAD else seen.state,
        "type": seen.type or None,
        "generation": seen.generation,
        "epoch": seen.generation if seen.is_broker_side else None,
        "assignor": seen.protocol or None,
        "coordinator": seen.coordinator,
        "memberCount": len(seen.members),
        "members": _member_rows(seen.members),
        "totalLag": seen.lag,
        "lagSeconds": None if seen.lag_seconds is None else ceil(seen.lag_seconds),
        "partitionCount": len(rows),
        "lag": rows[:ROWS_MAX],
        "note": _note(seen, len(rows), topics),
    }


def lag_row(seen: SeenGroup, tp: Partition, reader: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": tp[0],
        "partition": tp[1],
        "committed": seen.committed.get(tp, -1),
        "end": seen.ends.get(tp, -1),
        "lag": seen.lag_of(tp),
    }
    if tp in seen.seconds:
        row["lagSeconds"] = ceil(seen.seconds[tp])
    if reader is not None:
        row["memberId"] = reader
    return row


def _member_rows(members: Sequence[SeenMember]) -> list[dict[str, Any]]:
    """All members share the room for names of partitions, so that the status stays far below etcd's limit."""
    shown = members[:ROWS_MAX]
    each_max = max(1, NAMES_MAX // max(1, len(shown)))
    return [_member_row(member, each_max) for member in shown]


def _member_row(member: SeenMember, names_max: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "memberId": member.member_id,
        "clientId": member.client_id,
        "host": member.host,
        "partitionCount": len(member.partitions),
        "partitions": [f"{topic}-{partition}" for topic, partition in sorted(member.partitions)[:names_max]],
    }
    if member.instance_id:
        row["instanceId"] = member.instance_id
    return row


def _note(seen: SeenGroup, partitions: int, topics: Sequence[str]) -> str | None:
    """Topics of the spec that do not exist, and what the status leaves out."""
    existing = {topic for topic, _ in seen.ends}
    missing = sorted({topic for topic in topics if topic not in existing})
    said = (
        [f"There is no topic {', '.join(map(repr, missing[:10]))}, which spec.topics names."]
        if missing
        else []
    )
    cut = []
    if partitions > ROWS_MAX:
        cut.append(f"lag has the {ROWS_MAX} partitions with the greatest lag, of {partitions}")
    if len(seen.members) > ROWS_MAX:
        cut.append(f"members has {ROWS_MAX} of {len(seen.members)} members")
    each_max = max(1, NAMES_MAX // max(1, min(len(seen.members), ROWS_MAX)))
    if any(len(member.partitions) > each_max for member in seen.members):
        cut.append(f"members have the first {each_max} of their partitions")
    if cut:
        said.append(f"To limit its size: {'; '.join(cut)}. `ottla groups describe` shows all.")
    return " ".join(said) or None


def condition_of(seen: SeenGroup, reset: Condition | None = None) -> Condition:
    """Ready. A failed offset reset makes the resource not ready: only a change of the spec fixes it."""
    if reset is not None and reset.holds is False:
        return not_ready(f"{reset.type}{reset.reason}", reset.message)
    if seen.state == _DEAD:
        message = "No consumer has used this group yet: it has no members and no committed offsets."
        return not_ready(NOT_USED, f"{message} If you expected one, check its group id.")
    if seen.state in ("PreparingRebalance", "CompletingRebalance"):
        return not_ready("Rebalancing", "The group is rebalancing.")
    if not seen.members:
        return ready("The group has no members.", "NoMembers")
    epoch = f"{'epoch' if seen.is_broker_side else 'generation'} {seen.generation}"
    if seen.state in ("Assigning", "Reconciling"):
        # Members of broker-side groups go on reading meanwhile.
        return ready(f"Partitions move between the {len(seen.members)} members in {epoch}.", seen.state)
    return ready(f"The group is stable with {len(seen.members)} members in {epoch}.", "Stable")


# ------------------------------------------------------------------ the offset reset


@dataclass(frozen=True, slots=True)
class Move:
    topic: str
    partition: int
    old: int
    #: Commit timestamp of the old offset: it reveals a consumer that committed the same offset again.
    old_ms: int
    new: int

    @property
    def tp(self) -> Partition:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Record:
    """The next state. It is written to the status first; then the offsets are committed, if `commit` is set."""

    state: str
    message: str
    moves: tuple[Move, ...] = ()
    #: Commit the offsets after the record is stored.
    commit: bool = False
    #: Nothing changed: the stored record stays.
    same: bool = False


def reset_topics(spec: GroupSpec, reset: OffsetReset, seen: SeenGroup) -> set[str]:
    """Topics that a reset applies to, unless it names partitions."""
    if reset.topics is not None:
        return set(reset.topics)
    return {*spec.topics, *(topic for topic, _ in seen.committed)}


def begin_reset(
    reset: OffsetReset, seen: SeenGroup, targets: Mapping[Partition, int], previous: Mapping[str, Any] | None
) -> Record:
    """For a requested reset that is not yet Applying. `targets` are current."""
    if seen.members or seen.state not in ("Empty", _DEAD):
        return _active(reset, seen, previous)
    if not targets:
        return Record(
            "Failed",
            "The group has no committed offsets and the spec names no topics: there is nothing to reset.",
        )
    if len(targets) > MOVED_MAX:
        return Record(
            "Failed", f"The reset has {len(targets)} partitions, more than the maximum of {MOVED_MAX}."
        )
    out_of_range = [
        f"{tp[0]}-{tp[1]}" for tp, offset in sorted(targets.items())
        if tp not in seen.ends or not seen.starts.get(tp, 0) <= offset <= seen.ends[tp]
    ]  # fmt: skip
    if out_of_range:
        return Record("Failed", f"Offset out of range, or unknown partition: {', '.join(out_of_range[:20])}.")
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
        f"The group has {len(seen.members)} active members. Stop them and use a new id, or set whenActive: Wait.",
    )


def resume_reset(previous: Mapping[str, Any], seen: SeenGroup) -> Record:
    """For a reset in state Applying: determine whether the commit arrived."""
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
        return Record("Failed", "Members joined before the offsets were moved; use a new id.", moves)
    if not seen.members and all(a or u for a, u in zip(arrived, untouched, strict=True)):
        return Record("Applying", str(previous.get("message", "")), moves, commit=True, same=True)
    return Record(
        "Interrupted",
        "The operator was interrupted, and offsets were committed since then; nothing was moved again. Use a new id.",
        moves,
    )


def must_act(reset: OffsetReset | None, previous: Mapping[str, Any] | None) -> str:
    """What to do about the reset: "nothing", "begin", "resume", or "changed" (a different request with a used id)."""
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
            f"The reset {reset.id!r} was already processed with different content; use a new id.",
        )
    holds = {"Done": True, "Applying": None, "Waiting": None}.get(row["state"], False)
    return Condition("OffsetsReset", holds, row["state"], f"{reset.id}: {row.get('message', '')}")


def targets_from(
    reset: OffsetReset, partitions: Sequence[Partition], found: Mapping[Partition, int], seen: SeenGroup
) -> dict[Partition, int]:
    """Offsets to commit. `found` are the brokers' offsets for the time; -1 means no such record: the end offset."""
    if reset.to == "offsets":
        return dict(reset.offsets)
    if reset.to == "earliest":
        return {tp: seen.starts[tp] for tp in partitions if tp in seen.starts}
    if reset.to == "latest":
        return {tp: seen.ends[tp] for tp in partitions if tp in seen.ends}
    return {tp: at if (at := found.get(tp, -1)) >= 0 else seen.ends.get(tp, 0) for tp in partitions}
