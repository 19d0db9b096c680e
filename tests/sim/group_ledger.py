"""What members of consumer groups were given, read and committed, and what must hold of it: I20 to I23.

A *hold* is a partition in the hands of one member, from the turn that added it to the one that took it away. Holds of
a group's partition have numbers in the order in which they began. Every commit has a name of its own, in its metadata:
so an answer names the commit that the coordinator has, and not only an offset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from ottla_core.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    RequestError,
    StaleMemberEpoch,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition
from sim.spots import Spot

#: These say that the sender is no member with that epoch; the coordinator has changed nothing.
FENCING = (UnknownMemberId, IllegalGeneration, StaleMemberEpoch, FencedMemberEpoch, FencedInstanceId)
#: An output of a worker, and the input that it was made of.
_OUTPUT = re.compile(rb"w[^:]*:([^@]+)-(\d+)@(\d+)$")

Key: TypeAlias = tuple[str, TopicPartition]


@dataclass(eq=False, slots=True)
class Hold:
    member: str
    #: Lives with the same group instance id follow each other without a new generation.
    instance: str
    #: The member's own, now.
    generation: Callable[[], int]
    number: int
    #: How far its polls have come; None before the first.
    position: int | None = None
    is_over: bool = False


@dataclass(eq=False, slots=True)
class Commit:
    name: str
    offset: int
    hold: Hold
    number: int
    began: float
    #: When its success was known; None: unknown.
    ended: float | None = None
    is_refused: bool = False


@dataclass(slots=True)
class _Partition:
    holds: list[Hold] = field(default_factory=list)
    commits: dict[str, Commit] = field(default_factory=dict)
    #: What the members of the group have polled: values by offset, and the ranges of their polls.
    seen: dict[int, bytes] = field(default_factory=dict)
    polled: list[tuple[int, int]] = field(default_factory=list)
    offset_of: dict[bytes, int] = field(default_factory=dict)


class GroupLedger:
    def __init__(self, now: Callable[[], float], fail: Callable[[str], None]) -> None:
        self._now, self._fail = now, fail
        self._of: dict[Key, _Partition] = {}
        #: Groups whose members read what is committed only.
        self.reads_committed: set[str] = set()
        #: Of each group: the offsets that are committed in the end.
        self.final: dict[Key, int] = {}
        #: The groups of workers.
        self.workers: set[str] = set()
        #: By transaction: the transactions whose records it has read.
        self._has_read: dict[str, set[str]] = {}

    @property
    def polled_records(self) -> int:
        return sum(len(each.seen) for each in self._of.values())

    @property
    def confirmed_commits(self) -> int:
        return sum(c.ended is not None for each in self._of.values() for c in each.commits.values())

    def _at(self, group: str, tp: TopicPartition) -> _Partition:
        return self._of.setdefault((group, tp), _Partition())

    # ------------------------------------------------------------------ who has a partition

    def on_held(
        self, group: str, tp: TopicPartition, member: str, instance: str, generation: Callable[[], int]
    ) -> Hold:
        """I20: nobody else has it in the same generation."""
        there = self._at(group, tp)
        hold = Hold(member, instance, generation, len(there.holds) + 1)
        for other in there.holds:
            same = other.generation() == generation() and not (instance and other.instance == instance)
            if not other.is_over and same and other.member != member:
                self._fail(
                    f"I20 {group} {tp}: {other.member} and {member} own it in generation {generation()}"
                )
        there.holds.append(hold)
        return hold

    # ------------------------------------------------------------------ commits

    def on_committing(self, group: str, tp: TopicPartition, hold: Hold, offset: int) -> Commit:
        commits = self._at(group, tp).commits
        number = len(commits) + 1
        made = Commit(f"{hold.member}/{number}", offset, hold, number, self._now())
        commits[made.name] = made
        return made

    def on_committed(self, group: str, tp: TopicPartition, commit: Commit) -> None:
        """I21: who has lost the partition to somebody who has committed since, does not commit any more."""
        commit.ended = self._now()
        for other in self._at(group, tp).commits.values():
            if (
                other.ended is not None
                and other.ended < commit.began
                and other.hold.number > commit.hold.number
            ):
                self._fail(
                    f"I21 {group} {tp}: {commit.name} at {commit.offset} was accepted after {other.name} at "
                    f"{other.offset}, of a later owner"
                )

    def on_refused(self, commit: Commit, error: RequestError) -> None:
        commit.is_refused = isinstance(error, FENCING)

    def on_read_back(self, group: str, tp: TopicPartition, offset: int, name: str, began: float) -> None:
        """I21: what is committed is the newest that was acknowledged, or a later one that nobody knows of."""
        commits = self._at(group, tp).commits
        found = commits.get(name)
        if offset >= 0 and (found is None or found.offset != offset):
            self._fail(f"I21 {group} {tp}: {offset} is committed as {name!r}, which nobody has asked for")
            return
        if found is not None and found.is_refused:
            self._fail(f"I21 {group} {tp}: {name} at {offset} is committed, and was refused")
        after = (0, 0) if found is None else (found.hold.number, found.number)
        for other in commits.values():
            if other.ended is None or other.ended >= began:
                continue
            if (other.hold.number, other.number) > after or other.offset > offset:
                self._fail(
                    f"I21 {group} {tp}: {other.name} at {other.offset} was acknowledged, and {offset} is "
                    f"committed as {name!r}"
                )

    # ------------------------------------------------------------------ polls

    def on_polled(
        self, group: str, tp: TopicPartition, hold: Hold, start: int, found: dict[int, bytes], end: int
    ) -> None:
        """I22: polls go on where the last one ended, in the order of the offsets, and no value comes at two offsets."""
        there, before = self._at(group, tp), start - 1
        if hold.position is not None and start != hold.position:
            self._fail(f"I22 {group} {tp}: {hold.member} polls at {start}, after {hold.position}")
        for offset, value in found.items():
            if not before < offset < end:
                self._fail(f"I22 {group} {tp}: {hold.member} got {offset} after {before}, up to {end}")
            before = offset
            if there.offset_of.setdefault(value, offset) != offset:
                self._fail(
                    f"I22 {group} {tp}: {value!r} is at {offset} and at {there.offset_of[value]} (duplicate)"
                )
            if there.seen.setdefault(offset, value) != value:
                self._fail(f"I22 {group} {tp}: {value!r} is at {offset}, where {there.seen[offset]!r} was")
        hold.position = end
        there.polled.append((start, end))

    def on_moved(self, hold: Hold, position: int) -> None:
        """Records were deleted, or the member begins again at what is committed."""
        hold.position = position

    def on_transaction_read(self, reader: str, writer: str) -> None:
        if reader != writer:
            self._has_read.setdefault(reader, set()).add(writer)

    # ------------------------------------------------------------------ the end

    def check_end(
        self,
        everything: dict[Spot, dict[int, bytes]],
        committed: dict[Spot, dict[int, bytes]],
        trimmed: dict[Spot, int],
    ) -> None:
        spots = {spot.tp: spot for spot in everything}
        for (group, tp), there in self._of.items():
            spot, logs = spots[tp], committed if group in self.reads_committed else everything
            first = trimmed.get(spot, 0)
            log = {at: value for at, value in logs[spot].items() if at >= first}
            self._check_polled(group, tp, there, log)
            self._check_nothing_lost(group, tp, there, log)
        for group in self.workers:
            self._check_outputs(group, committed, trimmed)
        self._check_cycles()

    def _check_polled(self, group: str, tp: TopicPartition, there: _Partition, log: dict[int, bytes]) -> None:
        """I22: a poll passes by no record (poll skip)."""
        passed = {at for start, end in there.polled for at in range(start, end)}
        for at, value in log.items():
            if at in passed and there.seen.get(at) != value:
                self._fail(
                    f"I22 {group} {tp}: polls passed by {value!r} at {at}, and saw {there.seen.get(at)!r}"
                )

    def _check_nothing_lost(
        self, group: str, tp: TopicPartition, there: _Partition, log: dict[int, bytes]
    ) -> None:
        """I22: what is below the committed offset was polled by somebody (lost write)."""
        end = self.final.get((group, tp), 0)
        lost = [at for at in sorted(log) if at < end and at not in there.seen]
        if lost:
            self._fail(f"I22 {group} {tp}: {end} is committed, and nobody has seen {lost[:5]}")

    def _check_outputs(
        self, group: str, committed: dict[Spot, dict[int, bytes]], trimmed: dict[Spot, int]
    ) -> None:
        """I19 over rebalances: one output of each input below the committed offset, none of those above."""
        made: dict[tuple[TopicPartition, int], bytes] = {}
        for log in committed.values():
            for value in log.values():
                if (named := _OUTPUT.match(value)) is None:
                    continue
                tp, at = TopicPartition(named[1].decode(), int(named[2])), int(named[3])
                if (tp, at) in made:
                    self._fail(f"I19 {group}: {tp} {at} has outputs {made[tp, at]!r} and {value!r}")
                if at >= self.final.get((group, tp), 0):
                    self._fail(
                        f"I19 {group}: {tp} {at} has output {value!r}, committed is {self.final.get((group, tp))}"
                    )
                made[tp, at] = value
        if any(trimmed.values()):
            return  # Outputs may be deleted.
        for spot, log in committed.items():
            end = self.final.get((group, spot.tp), 0)
            lost = [
                at
                for at, value in sorted(log.items())
                if at < end and not is_output(value) and (spot.tp, at) not in made
            ]
            if lost:
                self._fail(f"I19 {group} {spot.tp}: {end} is committed, and {lost[:5]} have no output")

    def _check_cycles(self) -> None:
        """I23: no two transactions have read, over any number of others, what the other one wrote (G1c)."""
        done: set[str] = set()
        for first in self._has_read:
            path: dict[str, Iterable[str]] = {}
            name: str | None = first
            while name is not None:
                if name not in path:
                    path[name] = iter(sorted(self._has_read.get(name, ())))
                following = next((each for each in path[name] if each not in done), None)
                if following is None:
                    done.add(name)
                    del path[name]
                    name = next(reversed(path), None)
                elif following in path:
                    self._fail(f"I23 transactions have read from each other: {', '.join(path)}")
                    return
                else:
                    name = following


def is_output(value: bytes) -> bool:
    return _OUTPUT.match(value) is not None
