"""The state of one group: members, generation, protocol. [P]

State only: the machine decides which changes are allowed. Invariants, checked by `validate` in tests:

* G1: EMPTY and DEAD have no members; STABLE and COMPLETING have some, a leader among them, and a protocol that all
  of them know.
* G2: the generation only grows.
* G3: every instance id belongs to exactly one member, and to the last that claimed it.
* G4: no member waits in a join outside of PREPARING, or in a sync outside of COMPLETING.
* G5: an id that was assigned and not used yet (`pending`) is not a member.

Members are kept in the order in which they joined; the first that is present leads, so a group's choices do not
depend on how a dict happens to be hashed.
"""

from __future__ import annotations

from collections import Counter

from ottla_broker.coordination.shard import Ticket
from ottla_broker.group.member import Member
from ottla_broker.group.member_memory import MEMBER_BYTES, MemberMemory
from ottla_broker.group.messages import DescribedGroup, DescribedMember, JoinedMember, JoinGroup, State
from ottla_broker.group.records import GroupValue
from ottla_broker.group.subscription import CONSUMER, subscribed_topics
from ottla_broker.group_config import NO_SETTINGS, GroupSettings
from ottla_core.errors import FencedInstanceId, UnknownMemberId, invariant


class Group:
    __slots__ = (
        "_memory",
        "delay_left_ms",
        "generation",
        "id",
        "is_unassigned",
        "leader_id",
        "members",
        "newcomers",
        "not_synced",
        "pending",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "static",
    )

    def __init__(self, group_id: str, memory: MemberMemory | None = None) -> None:
        self.id = group_id
        #: Counts members and pending ids while the group exists.
        self._memory = memory
        self.state = State.EMPTY
        #: Wall time of the last change of state.
        self.state_since_ms = -1
        self.generation = 0
        #: Protocol type: "consumer", "connect", …; empty if there never were members (only offsets).
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        #: Member id by group instance id.
        self.static: dict[str, str] = {}
        #: Ids that were assigned with MEMBER_ID_REQUIRED and have not joined yet.
        self.pending: dict[str, None] = {}
        #: Members of this generation that have not asked for their assignment yet.
        self.not_synced: dict[str, None] = {}
        #: While the first rebalance of a group waits for more members: how much longer it may, and whether
        #: a member joined during the current delay. None: it does not wait for more members.
        self.delay_left_ms: int | None = None
        #: Adopted from a record without a leader: it was a broker-side group, and needs a rebalance.
        self.is_unassigned = False
        self.newcomers = False

    def become(self, state: State, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    # ------------------------------------------------------------------ members

    @property
    def is_consumers(self) -> bool:
        return self.protocol_type == CONSUMER

    def rebalance_timeout_ms(self, settings: GroupSettings) -> int:
        """The group's setting, else the longest rebalance timeout of its members."""
        if settings.rebalance_timeout_ms is not None:
            return settings.rebalance_timeout_ms
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        return not self.pending and all(m.joining is not None for m in self.members.values())

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """The member of the request. FencedInstanceId if another one has taken its instance id."""
        if instance_id is not None:
            owner = self.static.get(instance_id)
            if owner is None:
                raise UnknownMemberId(f"No member has the group instance id {instance_id!r}.")
            if not member_id:
                # The same member: it has given up its id, as librdkafka does after a session without a coordinator, and
                # is about to join again. If it were fenced, it would give up for good.
                raise UnknownMemberId("The member has no id; join again.")
            if owner != member_id:
                raise FencedInstanceId()
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId()
        return member

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.id
        self.members[member.id] = member
        self._hold(member.held_bytes)
        self.forget_pending(member.id)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.id

    def expect(self, member_id: str) -> None:
        """A new member was given this id, and is to join with it."""
        self.pending[member_id] = None
        self._hold(MEMBER_BYTES + len(member_id))

    def forget_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            del self.pending[member_id]
            self._hold(-MEMBER_BYTES - len(member_id))

    def take_over(self, member: Member, request: JoinGroup) -> None:
        """A member has joined again, perhaps with other metadata."""
        before = member.held_bytes
        member.protocols = request.protocols
        member.is_recalled = False
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        self._hold(member.held_bytes - before)

    def _hold(self, more: int) -> None:
        if self._memory is not None:
            self._memory.bytes += more

    def _member_bytes(self) -> int:
        return sum(member.held_bytes for member in self.members.values())

    def count_in(self, memory: MemberMemory) -> None:
        """Count what it holds, if that is not counted yet."""
        if self._memory is None:
            self._memory = memory
            self._hold(self._held_bytes())

    def _held_bytes(self) -> int:
        return self._member_bytes() + sum(MEMBER_BYTES + len(each) for each in self.pending)

    def dropped(self) -> None:
        """The group is deleted: it holds nothing any more."""
        self._hold(-self._held_bytes())
        self._memory = None

    def remove(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        self._hold(-member.held_bytes)
        self.not_synced.pop(member_id, None)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """A static member came back under a new id; it keeps its place, its role and its assignment."""
        member = self.members[old_id]
        self._hold(len(new_id) - len(old_id))
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        if old_id in self.not_synced:
            self.not_synced = {new_id if key == old_id else key: None for key in self.not_synced}
        member.id = new_id
        if member.instance_id is not None:
            self.static[member.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that has joined the rebalance; False if there is none."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.joining is not None:
            return True
        joined = next((m for m in self.members.values() if m.joining is not None), None)
        if joined is not None:
            self.leader_id = joined.id
        return joined is not None

    # ------------------------------------------------------------------ protocols

    def supports(self, protocol_type: str, names: list[str]) -> bool:
        """Whether such a member can join the group: there is a protocol that all members support."""
        if not self.members:
            return bool(protocol_type) and bool(names)
        common = self._common_protocols()
        return protocol_type == self.protocol_type and any(name in common for name in names)

    def vote(self, assignor: str | None = None) -> str:
        """The protocol of the next generation, of those that all support: the assignor that is set for the group, else
        the one with most votes; first named wins ties."""
        common = self._common_protocols()
        if assignor in common:
            return assignor
        votes = Counter(member.vote(common) for member in self.members.values())
        return max(votes, key=lambda name: votes[name])

    def _common_protocols(self) -> list[str]:
        known: Counter[str] = Counter()
        for member in self.members.values():
            known.update({p.name: 1 for p in member.protocols})
        return [name for name, count in known.items() if count == len(self.members)]

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics that consumers of the group subscribe to; None if unknown."""
        if not self.is_consumers or (self.members and self.protocol is None):
            return None
        return subscribed_topics(m.metadata_for(self.protocol) for m in self.members.values())

    # ------------------------------------------------------------------ records

    def to_value(self, assignments: dict[str, bytes]) -> GroupValue:
        return GroupValue(
            self.protocol_type,
            self.generation,
            self.protocol,
            self.leader_id,
            self.state_since_ms,
            tuple(m.to_value(self.protocol, assignments.get(m.id, b"")) for m in self.members.values()),
        )

    def adopt(self, value: GroupValue) -> None:
        """Apply a record. Known members keep the state that no record holds."""
        self.protocol_type = value.protocol_type
        self.generation = value.generation
        self.protocol = value.protocol
        self.leader_id = value.leader_id
        before = self._member_bytes()  # First: the members that stay are changed below.
        members: dict[str, Member] = {}
        for each in value.members:
            known = self.members.get(each.member_id)
            if known is None or known.to_value(value.protocol, each.assignment) != each:
                known = Member.of_value(each, value.protocol)
            known.assignment = each.assignment
            members[each.member_id] = known
        self._hold(sum(each.held_bytes for each in members.values()) - before)
        self.members = members
        self.static = {m.instance_id: m.id for m in members.values() if m.instance_id is not None}
        self.is_unassigned = bool(members) and self.leader_id is None
        if self.is_unassigned:
            self.leader_id = next(iter(members))
        self.state = State.STABLE if members else State.EMPTY
        self.state_since_ms = value.state_timestamp_ms

    # ------------------------------------------------------------------ showing

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(m.id, m.instance_id, m.metadata_for(self.protocol)) for m in self.members.values()
        )

    def described(self, settings: GroupSettings = NO_SETTINGS) -> DescribedGroup:
        stable = self.state is State.STABLE
        return DescribedGroup(
            self.id,
            self.state,
            self.protocol_type,
            (self.protocol or "") if stable else "",
            self.leader_id or "",
            self.generation,
            tuple(
                DescribedMember(
                    m.id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.metadata_for(self.protocol) if stable else b"",
                    m.assignment if stable else b"",
                    settings.session_timeout_ms or m.session_timeout_ms,
                    settings.rebalance_timeout_ms or m.rebalance_timeout_ms,
                    () if m.is_recalled else tuple(p.name for p in m.protocols),
                )
                for m in self.members.values()
            ),
        )

    def waiting(self) -> list[Ticket]:
        """Tickets of all unanswered requests."""
        found = [(m.joining, m.syncing) for m in self.members.values()]
        return [ticket for pair in found for ticket in pair if ticket is not None]

    def validate(self) -> None:
        """G1 to G5, for tests: it walks over all members."""
        members = list(self.members.values())
        invariant(
            self.state not in (State.EMPTY, State.DEAD) or not members, "G1: an empty group has members"
        )
        if self.state in (State.STABLE, State.COMPLETING):
            invariant(self.leader_id in self.members, "G1: the leader is not a member")
            known = all(any(p.name == self.protocol for p in m.protocols) for m in members)
            invariant(known, "G1: a member does not know the protocol")
        claimed = {m.instance_id: m.id for m in members if m.instance_id is not None}
        invariant(claimed == self.static, "G3: instance ids and members do not match")
        preparing, completing = self.state is State.PREPARING, self.state is State.COMPLETING
        invariant(preparing or all(m.joining is None for m in members), "G4: a join waits outside PREPARING")
        invariant(
            completing or all(m.syncing is None for m in members), "G4: a sync waits outside COMPLETING"
        )
        invariant(not set(self.pending) & set(self.members), "G5: a pending id is a member")
