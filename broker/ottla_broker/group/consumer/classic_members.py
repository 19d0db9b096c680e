"""Members of the classic protocol in a broker-side group: the coordinator assigns, they rejoin to learn of it. [P]

Theory of operation. JoinGroup is the heartbeat of such a member: it subscribes, reports what it owns (an eager member:
nothing), and moves to its next assignment by the same rule as the others (`reconcile`). It is answered at once,
without a leader, with the member epoch as generation; SyncGroup then returns the assignment. A member learns that
it has to rejoin from REBALANCE_IN_PROGRESS on a heartbeat, and is removed if it does not within its rebalance timeout:

* its epoch is below the group's, or it has to revoke partitions: at once;
* partitions that it waits for: when all of them are free, so that it rejoins once and not for each.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla_broker.coordination.fields import Undecodable
from ottla_broker.coordination.shard import Decision, Now, Ticket
from ottla_broker.coordination.timers import Timers
from ottla_broker.group.consumer.group import ConsumerGroup, ConsumerMember
from ottla_broker.group.consumer.machine import JOIN, SYNC, ConsumerMachine
from ottla_broker.group.consumer.partitions import Partitions, each, minus, size
from ottla_broker.group.consumer.records import ClassicMetadata, MemberMetadata, MemberState
from ottla_broker.group.member_memory import MEMBER_BYTES, protocol_bytes
from ottla_broker.group.messages import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    Leaving,
    Left,
    SyncGroup,
    SyncReply,
)
from ottla_broker.group.subscription import CONSUMER, Subscription, read_subscription, write_assignment
from ottla_broker.metadata.image import ClusterImage
from ottla_core.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    RequestError,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition


class _Joining(NamedTuple):
    """A JoinGroup request that may be granted."""

    member_id: str
    subscription: Subscription
    #: The member whose instance id it takes over.
    replaced: ConsumerMember | None


class ClassicMembers:
    def __init__(self, machine: ConsumerMachine, timers: Timers) -> None:
        self._machine = machine
        self._timers = timers

    # ------------------------------------------------------------------ join

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroup,
        image: ClusterImage,
        ticket: Ticket,
        now: Now,
        out: Decision,
    ) -> None:
        joining = self._checked(group, request)
        if not request.member_id and request.instance_id is None and request.requires_known_id:
            out.reply(ticket, JoinReply(request.new_member_id, error=MemberIdRequired()))
            return
        machine = self._machine
        known = group.members.get(joining.member_id)
        if joining.replaced is not None:
            known = machine.replace_static(group, joining.replaced, joining.member_id, out)
        before = known.metadata if known is not None else None
        metadata = _metadata(request, joining.subscription)
        if metadata != before:
            machine.put(group, joining.member_id, metadata, out)
        changed = before is None or (before.topics, before.regex, before.rack_id, before.assignor) != (
            metadata.topics,
            None,
            metadata.rack_id,
            None,
        )
        machine.refresh(group, image, now, out, changed=changed)
        member = group.members[joining.member_id]
        machine.reconcile(group, member, _by_id(image, joining.subscription.owned), now, out)
        self._timers.cancel((JOIN, group.id, member.id))
        machine.start_session(group, member, now)
        timeout_ms = machine.rebalance_timeout_ms(group, member)
        self._timers.set((SYNC, group.id, member.id), now.monotonic_ms + timeout_ms)
        out.reply(ticket, JoinReply(member.id, member.current.epoch, CONSUMER, request.protocols[0].name))

    def _checked(self, group: ConsumerGroup, request: JoinGroup) -> _Joining:
        """RequestError if the request cannot be granted; nothing has changed then."""
        if request.protocol_type != CONSUMER or not request.protocols:
            raise InconsistentGroupProtocol(
                "The group has members of the consumer protocol; only consumers can join it."
            )
        others = [
            {p.name for p in member.metadata.classic.protocols}
            for member in group.members.values()
            if member.metadata.classic is not None and member.id != request.member_id
        ]
        if not {p.name for p in request.protocols}.intersection(*others):
            raise InconsistentGroupProtocol()
        try:
            subscription = read_subscription(request.protocols[0].metadata)
        except Undecodable as error:
            raise InconsistentGroupProtocol(f"The subscription cannot be decoded: {error}.") from None
        holder = group.static.get(request.instance_id or "")
        if request.member_id:
            if request.instance_id is not None and holder is None:
                raise UnknownMemberId(f"No member has the group instance id {request.instance_id!r}.")
            if request.instance_id is not None and holder != request.member_id:
                raise FencedInstanceId()
        replaced = group.members[holder] if holder is not None and holder != request.member_id else None
        member_id = request.member_id or request.new_member_id
        known, size = replaced or group.members.get(member_id), protocol_bytes(request.protocols)
        if known is None:
            self._machine.check_room(group, MEMBER_BYTES + size)
        elif known.metadata.classic is not None:
            self._machine.memory.check(size - protocol_bytes(known.metadata.classic.protocols))
        return _Joining(member_id, subscription, replaced)

    # ------------------------------------------------------------------ sync, heartbeat and leave

    def sync(
        self,
        group: ConsumerGroup,
        request: SyncGroup,
        image: ClusterImage,
        ticket: Ticket,
        now: Now,
        out: Decision,
    ) -> None:
        member, classic = self._find(group, request.member_id, request.instance_id, request.generation)
        name = classic.protocols[0].name
        if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, name):
            raise InconsistentGroupProtocol(f"The member's protocol is {name!r} of type {CONSUMER!r}.")
        if member.current.epoch < group.epoch and member.current.state is not MemberState.UNREVOKED:
            self._expect_join(group, member, now)
            raise RebalanceInProgress()
        self._timers.cancel((SYNC, group.id, member.id))
        self._machine.start_session(group, member, now)
        version = read_subscription(classic.protocols[0].metadata).version
        assignment = write_assignment(version, named(image, member.current.assigned))
        out.reply(ticket, SyncReply(CONSUMER, name, assignment))

    def heartbeat(
        self, group: ConsumerGroup, request: Heartbeat, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        member, _ = self._find(group, request.member_id, request.instance_id, request.generation)
        self._machine.start_session(group, member, now)
        if self._has_to_join(group, member):
            self._expect_join(group, member, now)
            raise RebalanceInProgress()
        out.reply(ticket, HeartbeatReply())

    def _has_to_join(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        current = member.current
        if current.epoch < group.epoch or current.state is MemberState.UNREVOKED:
            return True
        if current.state is not MemberState.UNRELEASED:
            return False
        missing = minus(member.target, current.assigned)
        return size(self._machine.free(group, missing)) == size(missing)

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        timer = (JOIN, group.id, member.id)
        if timer not in self._timers:
            timeout_ms = self._machine.rebalance_timeout_ms(group, member)
            self._timers.set(timer, now.monotonic_ms + timeout_ms)

    def _find(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMetadata]:
        if instance_id is not None and not member_id:
            raise UnknownMemberId("The member has no id; join again.")  # See `group.Group.find`.
        member = self._machine.known(group, member_id, instance_id)
        if member.metadata.classic is None:
            raise UnknownMemberId("The member speaks the consumer protocol.")
        if generation != member.current.epoch:
            raise IllegalGeneration()
        return member, member.metadata.classic

    def leave(
        self, group: ConsumerGroup, request: LeaveGroup, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        """Also by an administrator, and then members of both protocols."""
        before = len(group.members)
        left = tuple(self._left(group, leaving, out) for leaving in request.members)
        if len(group.members) < before:
            self._machine.raise_epoch(group, out)
        out.reply(ticket, LeaveReply(left))

    def _left(self, group: ConsumerGroup, leaving: Leaving, out: Decision) -> Left:
        try:
            owner = group.static.get(leaving.instance_id or "", "")
            member = self._machine.known(group, leaving.member_id or owner, leaving.instance_id)
        except RequestError as error:
            return Left(*leaving, error)
        self._machine.remove(group, member, out)
        return Left(*leaving, None)

    # ------------------------------------------------------------------ time

    def time_is_up(self, group: ConsumerGroup, member_id: str, out: Decision) -> None:
        """The member has not joined again, or not synced, within its rebalance timeout."""
        member = group.members.get(member_id)
        if member is not None and member.is_classic:
            self._machine.remove(group, member, out)
            self._machine.raise_epoch(group, out)


def named(image: ClusterImage, partitions: Partitions) -> list[TopicPartition]:
    """Without partitions of topics that have been deleted: they have no name."""
    names = image.names_by_id
    return [TopicPartition(names[topic], index) for topic, index in each(partitions) if topic in names]


def _by_id(image: ClusterImage, partitions: tuple[TopicPartition, ...]) -> Partitions:
    found: dict[str, set[int]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, set()).add(tp.partition)
    return {
        image.topics[name].id: frozenset(indexes) for name, indexes in found.items() if name in image.topics
    }


def _metadata(request: JoinGroup, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        request.instance_id,
        subscription.rack_id,
        request.client_id,
        request.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        request.rebalance_timeout_ms,
        None,
        ClassicMetadata(request.session_timeout_ms, request.protocols),
    )
