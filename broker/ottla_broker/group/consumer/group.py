"""The state of one broker-side group, made by its records only. [P]

Invariants, checked by `validate` in tests:

* B1: no partition has two owners, whether assigned or still to be revoked, unless the assignor shares partitions.
* B2: the epoch of the group is at least that of its target assignment, and that at least those of its members.
* B3: every instance id belongs to exactly one member.
* B4: the number of holders of each partition is what its members' assignments add up to.
* B5: a member has none of its partitions since a later epoch than its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ottla_broker.group.consumer.partitions import NONE, Partitions, each
from ottla_broker.group.consumer.records import (
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
    TargetAssignment,
    TargetEpoch,
)
from ottla_broker.group.member_memory import MemberMemory
from ottla_broker.group.messages import State
from ottla_broker.group.subscription import CONSUMER
from ottla_core.assignors.model import Assignor
from ottla_core.errors import invariant

_NEW = CurrentAssignment(0)
#: Until the member's own record has been replayed.
_UNKNOWN = MemberMetadata(None, None, "", "", (), None, -1, None)


@dataclass(slots=True)
class ConsumerMember:
    id: str
    metadata: MemberMetadata
    target: Partitions = field(default_factory=dict)
    current: CurrentAssignment = _NEW
    #: Soft, from the last heartbeat: what the member may describe, and the topics of its regular expression that it
    #: may not, as of these topics and rights. A member that was loaded has none until its first heartbeat.
    may_describe: Callable[[str], bool] | None = None
    hidden: frozenset[str] = frozenset()
    checked: tuple[tuple[str, ...], object] = ((), None)

    @property
    def is_classic(self) -> bool:
        return self.metadata.classic is not None


class ConsumerGroup:
    __slots__ = (
        "_holders",
        "_memory",
        "assigned_by",
        "assignor_failure",
        "epoch",
        "exists",
        "id",
        "members",
        "metadata_hash",
        "regexes",
        "seen",
        "static",
        "target_epoch",
    )

    protocol_type = CONSUMER
    #: Kafka has no such time for these groups: their offsets expire relative to the commit.
    state_since_ms = -1

    def __init__(self, group_id: str, memory: MemberMemory | None = None) -> None:
        self.id = group_id
        #: Counts members while the group exists.
        self._memory = memory
        #: Whether there is a record of the group.
        self.exists = False
        self.epoch = 0
        self.target_epoch = 0
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        #: Member id by group instance id.
        self.static: dict[str, str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        #: Number of members that own a partition, or have not revoked it yet.
        self._holders: dict[UUID, Counter[int]] = {}
        #: Soft: the metadata that `metadata_hash` was last compared with.
        self.seen: tuple[Any, ...] = ()
        #: Soft: the assignor of the target, None after loading, and why it is not the selected one.
        self.assigned_by: Assignor | None = None
        self.assignor_failure = ""

    # ------------------------------------------------------------------ looking

    @property
    def state(self) -> State:
        if not self.members:
            return State.EMPTY
        if self.epoch > self.target_epoch:
            return State.ASSIGNING
        settled = all(
            m.current.state is MemberState.STABLE and m.current.epoch == self.target_epoch
            for m in self.members.values()
        )
        return State.STABLE if settled else State.RECONCILING

    def subscription(self, member: ConsumerMember) -> frozenset[str]:
        resolved = self.regexes.get(member.metadata.regex or "")
        if resolved is None:
            return frozenset(member.metadata.topics)
        return frozenset(resolved.topics) - member.hidden | frozenset(member.metadata.topics)

    def hide(self, member: ConsumerMember, rights: object) -> bool:
        """Bring up to date which topics of its regular expression the member may not describe. True if they changed."""
        resolved, may = self.regexes.get(member.metadata.regex or ""), member.may_describe
        topics = () if resolved is None or may is None else resolved.topics
        known, of_rights = member.checked
        if topics is known and rights is of_rights:
            return False
        # Topics that were checked with the same rights are not checked again: a group may have many members.
        same = frozenset(known) if rights is of_rights else frozenset()
        before = member.hidden
        member.hidden = frozenset(
            name for name in topics if (name in before if name in same else may is not None and not may(name))
        )
        member.checked = (topics, rights)
        return member.hidden != before

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*map(self.subscription, self.members.values()))

    def free(self, partitions: Partitions) -> Partitions:
        """Those that no member owns or still has to revoke."""
        found: dict[UUID, frozenset[int]] = {}
        for topic, indexes in partitions.items():
            held = self._holders.get(topic)
            left = frozenset(index for index in indexes if not held[index]) if held else indexes
            if left:
                found[topic] = left
        return found

    # ------------------------------------------------------------------ records

    def apply(self, record: ConsumerRecord) -> None:
        """The records of a member may come in any order: compaction keeps the last one of each kind."""
        value, name = record.value, record.name
        member = self.members.get(name)
        if member is None and isinstance(value, (TargetAssignment, CurrentAssignment)):
            member = self.members[name] = ConsumerMember(name, _UNKNOWN)
            self._hold(_UNKNOWN.held_bytes)
        if isinstance(value, GroupEpoch):
            self.exists, self.epoch, self.metadata_hash = True, value.epoch, value.metadata_hash
        elif isinstance(value, TargetEpoch):
            self.target_epoch = value.epoch
        elif isinstance(value, ResolvedRegex):
            self.regexes[name] = value
        elif isinstance(value, MemberMetadata):
            self._set_metadata(name, value)
        elif isinstance(value, TargetAssignment) and member is not None:
            member.target = value.partitions
        elif isinstance(value, CurrentAssignment) and member is not None:
            self._set_current(member, value)
        elif record.kind == MemberMetadata.kind:
            self._remove(name)
        elif record.kind == TargetAssignment.kind and member is not None:
            member.target = NONE
        elif record.kind == CurrentAssignment.kind and member is not None:
            self._set_current(member, _NEW)
        elif record.kind == ResolvedRegex.kind:
            self.regexes.pop(name, None)

    def _set_metadata(self, member_id: str, metadata: MemberMetadata) -> None:
        member = self.members.get(member_id)
        if member is None:
            self.members[member_id] = ConsumerMember(member_id, metadata)
            self._hold(metadata.held_bytes)
        else:
            self._hold(metadata.held_bytes - member.metadata.held_bytes)
            before = member.metadata.instance_id
            if before != metadata.instance_id and self.static.get(before or "") == member_id:
                del self.static[before or ""]
            member.metadata = metadata
        if metadata.instance_id is not None:
            self.static[metadata.instance_id] = member_id

    def _set_current(self, member: ConsumerMember, current: CurrentAssignment) -> None:
        for held in (member.current.assigned, member.current.revoking):
            for topic, index in each(held):
                self._holders[topic][index] -= 1
        member.current = current
        for held in (current.assigned, current.revoking):
            for topic, indexes in held.items():
                self._holders.setdefault(topic, Counter()).update(indexes)

    def _remove(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is None:
            return
        self._set_current(member, _NEW)
        del self.members[member_id]
        self._hold(-member.metadata.held_bytes)
        instance_id = member.metadata.instance_id
        if instance_id is not None and self.static.get(instance_id) == member_id:
            del self.static[instance_id]

    def _hold(self, more: int) -> None:
        if self._memory is not None:
            self._memory.bytes += more

    def count_in(self, memory: MemberMemory) -> None:
        """Count what it holds, if that is not counted yet."""
        if self._memory is None:
            self._memory = memory
            self._hold(sum(member.metadata.held_bytes for member in self.members.values()))

    def dropped(self) -> None:
        """The group is deleted: it holds nothing any more."""
        self._hold(-sum(member.metadata.held_bytes for member in self.members.values()))
        self._memory = None

    def member_tombstones(self, member_id: str) -> Iterator[ConsumerRecord]:
        for kind in (CurrentAssignment.kind, TargetAssignment.kind, MemberMetadata.kind):
            yield ConsumerRecord(self.id, kind, member_id, None)

    def tombstones(self) -> Iterator[ConsumerRecord]:
        for member_id in list(self.members):
            yield from self.member_tombstones(member_id)
        for regex in list(self.regexes):
            yield ConsumerRecord(self.id, ResolvedRegex.kind, regex, None)
        yield ConsumerRecord(self.id, TargetEpoch.kind, "", None)
        yield ConsumerRecord(self.id, GroupEpoch.kind, "", None)

    def validate(self, *, shares_partitions: bool = False) -> None:
        """B1 to B5, for tests: it walks over all members."""
        held = Counter(
            place
            for member in self.members.values()
            for partitions in (member.current.assigned, member.current.revoking)
            for place in each(partitions)
        )
        twice = [place for place, owners in held.items() if owners > 1]
        invariant(shares_partitions or not twice, "B1: a partition has two owners")
        newest = max((m.current.epoch for m in self.members.values()), default=0)
        invariant(self.epoch >= self.target_epoch >= newest, "B2: epochs are out of order")
        claimed = {m.metadata.instance_id: m.id for m in self.members.values() if m.metadata.instance_id}
        invariant(claimed == self.static, "B3: instance ids and members do not match")
        counted = {(t, i): n for t, found in self._holders.items() for i, n in found.items() if n}
        invariant(counted == dict(held), "B4: the holders of partitions are miscounted")
        for member in self.members.values():
            current = member.current
            own = max(current.epoch, 0)
            got = [
                current.has_since(topic, index) for topic, known in current.since.items() for index in known
            ]
            invariant(all(e is not None and 0 <= e < own for e in got), "B5: wrong epochs of partitions")
