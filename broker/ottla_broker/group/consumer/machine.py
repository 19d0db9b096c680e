"""Kafka's broker-side group protocol (KIP-848): one request, ConsumerGroupHeartbeat, and two timeouts. [P]

Theory of operation. Three things follow each other, each with an epoch:

    subscriptions, topics, settings ──> group epoch ──> target assignment ──> current assignment of each member
       change                            +1              by the assignor        at its next heartbeats (`reconcile`)

1. Any change that an assignment depends on raises the group epoch: a member joins, leaves, expires or subscribes
   otherwise, a subscribed topic appears, grows or is deleted, the assignor or its parameters change. Metadata is
   compared by a hash, at the next heartbeat of any member.
2. A heartbeat that finds the group epoch above the target's computes a new target.
3. Each member moves to the target on its own, at its own heartbeats: it is told what it may keep, reports when it has
   given up the rest, and then gets what is free. Members whose partitions do not change notice nothing.

Fencing: a heartbeat with another epoch than the member's is refused (FENCED_MEMBER_EPOCH), except with the previous one
and no more partitions than the member has, which a lost reply explains. A member without heartbeats for the
session timeout, or that does not revoke within its rebalance timeout, is removed. A static member that leaves with
epoch -2 keeps its partitions until its instance id joins again, or its session expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from ottla_broker.coordination.shard import Decision, Now, Ticket
from ottla_broker.coordination.timers import Timers
from ottla_broker.group.consumer.group import ConsumerGroup, ConsumerMember
from ottla_broker.group.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribedConsumerGroup,
    DescribedConsumerMember,
)
from ottla_broker.group.consumer.pace import heartbeat_interval_ms
from ottla_broker.group.consumer.partitions import Partitions, minus
from ottla_broker.group.consumer.reconcile import next_assignment
from ottla_broker.group.consumer.records import (
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
    TargetAssignment,
    TargetEpoch,
    Value,
)
from ottla_broker.group.consumer.target import compute_target, metadata_hash, selected_assignor
from ottla_broker.group.member_memory import MemberMemory
from ottla_broker.group.messages import CommitOffsets, FetchOffsets
from ottla_broker.group_config import GroupSettings
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.linear_regex import LinearRegex
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import GroupsProbe
from ottla_core.assignors.model import Assignor
from ottla_core.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidRegularExpression,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)

SESSION = "consumer-session"
REBALANCE = "consumer-rebalance"
#: Of members of the classic protocol (`classic_members`): until they join again, and sync.
JOIN = "consumer-join"
SYNC = "consumer-sync"
TIMERS = (SESSION, REBALANCE, JOIN, SYNC)

#: Compiled regular expressions that are kept, over all groups of a broker.
_REGEXES_MAX = 256


class ConsumerMachine:
    def __init__(
        self,
        config: GroupsConfig,
        settings_of: Callable[[str], GroupSettings],
        timers: Timers,
        probe: GroupsProbe,
        assignors: Mapping[str, Assignor],
        memory: MemberMemory,
    ) -> None:
        self._config = config
        self._settings_of = settings_of
        self._timers = timers
        self._probe = probe
        self._assignors = assignors
        self.memory = memory

    # ------------------------------------------------------------------ heartbeat

    def heartbeat(
        self,
        group: ConsumerGroup,
        request: ConsumerHeartbeat,
        image: ClusterImage,
        ticket: Ticket,
        now: Now,
        out: Decision,
    ) -> None:
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            self._leave(group, request, ticket, now, out)
            return
        if request.assignor and request.assignor not in self._assignors:
            known = ", ".join(self._assignors)
            raise UnsupportedAssignor(f"The broker has no assignor {request.assignor!r}; it has {known}.")
        if request.regex:
            _compiled(request.regex)
        members = len(group.members)
        joins = request.member_epoch == JOIN_EPOCH
        member = self._join(group, request, out) if joins else self._find(group, request)
        received, before = request.member_epoch, member.current
        changed = self._update(group, member, request, out)
        member.may_describe = request.may_describe
        changed = group.hide(member, request.rights) or changed
        self.refresh(group, image, now, out, changed=changed or len(group.members) > members)
        self.reconcile(group, member, request.owned, now, out)
        self.start_session(group, member, now)
        after = member.current
        tells = (
            joins
            or request.is_full
            or after.assigned != before.assigned
            or received == before.previous_epoch != before.epoch  # The last reply was lost.
        )
        out.reply(
            ticket,
            ConsumerHeartbeatReply(
                member.id, after.epoch, self._interval_ms(group, after), after.assigned if tells else None
            ),
        )

    def _join(self, group: ConsumerGroup, request: ConsumerHeartbeat, out: Decision) -> ConsumerMember:
        """A member that joins owns nothing, also if the group knows it: it was fenced, or its reply was lost."""
        if request.owned:
            raise InvalidRequest("A member that joins owns no partitions.")
        if request.rebalance_timeout_ms < 0 or (request.topics is None and not request.regex):
            raise InvalidRequest("A member that joins has to send a rebalance timeout and a subscription.")
        member = group.members.get(request.member_id)
        holder = group.static.get(request.instance_id or "")
        if holder is not None and holder != request.member_id:
            old = group.members[holder]
            # A static member of the classic protocol does not leave when it stops.
            if old.current.epoch != LEAVE_STATIC_EPOCH and not old.is_classic:
                raise UnreleasedInstanceId()
            return self.replace_static(group, old, request.member_id, out)
        if member is None:
            metadata = _metadata(None, request)
            self.check_room(group, metadata.held_bytes)
            self.put(group, request.member_id, metadata, out)
            self._probe.joins += 1
        elif member.current.epoch != JOIN_EPOCH:
            self.put(group, member.id, CurrentAssignment(JOIN_EPOCH), out)
        return group.members[request.member_id]

    def check_room(self, group: ConsumerGroup, more_bytes: int) -> None:
        if len(group.members) >= self._config.consumer_size_max:
            raise GroupMaxSizeReached(f"group.consumer.max.size is {self._config.consumer_size_max}.")
        self.memory.check(more_bytes)

    def replace_static(
        self, group: ConsumerGroup, old: ConsumerMember, member_id: str, out: Decision
    ) -> ConsumerMember:
        """The instance has come back as another process: it takes over target and partitions."""
        metadata, target, assigned = old.metadata, old.target, old.current.assigned
        self.remove(group, old, out)
        self.put(group, member_id, metadata, out)
        self.put(group, member_id, TargetAssignment(target), out)
        self.put(group, member_id, CurrentAssignment(JOIN_EPOCH, assigned=assigned), out)
        return group.members[member_id]

    def _find(self, group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember:
        member = self.known(group, request.member_id, request.instance_id)
        if member.is_classic:
            raise UnknownMemberId("The member speaks the classic protocol.")
        current, received = member.current, request.member_epoch
        if received == current.epoch:
            return member
        lost_reply = received == current.previous_epoch and received < current.epoch
        if lost_reply and request.owned is not None and not minus(request.owned, current.assigned):
            return member
        raise FencedMemberEpoch(
            f"The member's epoch is {current.epoch}, not {received}; give up all partitions and join again."
        )

    def known(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id:
            holder = group.static.get(instance_id)
            if holder is None:
                raise UnknownMemberId(f"No member has the group instance id {instance_id!r}.")
            if holder != member_id:
                raise FencedInstanceId()
        member = group.members.get(member_id)
        if member is None:
            raise UnknownMemberId()
        return member

    def _update(
        self, group: ConsumerGroup, member: ConsumerMember, request: ConsumerHeartbeat, out: Decision
    ) -> bool:
        """Take over what the request says of the member. True if an assignment depends on it."""
        before, metadata = member.metadata, _metadata(member.metadata, request)
        if metadata == before:
            return False
        self.memory.check(metadata.held_bytes - before.held_bytes)
        self.put(group, member.id, metadata, out)
        return (before.topics, before.regex, before.rack_id, before.assignor) != (
            metadata.topics,
            metadata.regex,
            metadata.rack_id,
            metadata.assignor,
        )

    # ------------------------------------------------------------------ group epoch and target

    def refresh(
        self, group: ConsumerGroup, image: ClusterImage, now: Now, out: Decision, *, changed: bool
    ) -> None:
        """Raise the group epoch if metadata has changed, and compute the target that is due."""
        settings = self._settings_of(group.id)
        seen = (image.topics, image.brokers, settings, group.epoch)
        same = not changed and len(seen) == len(group.seen) and all(map(_is, seen, group.seen))
        if not same:
            self._resolve_regexes(group, image, now, out)
            assignor = selected_assignor(group, settings, self._assignors)
            found = metadata_hash(group, image, settings, assignor)
            if found != group.metadata_hash or changed:
                self.put(group, "", GroupEpoch(group.epoch + 1, found), out)
            group.seen = (image.topics, image.brokers, settings, group.epoch)
        if group.epoch > group.target_epoch:
            self._assign(group, image, settings, now, out)

    def _resolve_regexes(self, group: ConsumerGroup, image: ClusterImage, now: Now, out: Decision) -> None:
        wanted = {m.metadata.regex for m in group.members.values() if m.metadata.regex}
        for regex in [each for each in group.regexes if each not in wanted]:
            self.put_record(group, ConsumerRecord(group.id, ResolvedRegex.kind, regex, None), out)
        for regex in sorted(wanted):
            compiled = _compiled(regex)
            topics = tuple(
                sorted(
                    name
                    for name, topic in image.topics.items()
                    if not topic.is_internal and compiled.matches(name)
                )
            )
            known = group.regexes.get(regex)
            if known is None or known.topics != topics:
                self.put(group, regex, ResolvedRegex(topics, image.revision, now.wall_ms), out)
        for member in group.members.values():
            if member.metadata.regex and member.may_describe is not None:
                group.hide(member, member.checked[1])

    def _assign(
        self, group: ConsumerGroup, image: ClusterImage, settings: GroupSettings, now: Now, out: Decision
    ) -> None:
        assignor = selected_assignor(group, settings, self._assignors)
        target = compute_target(group, image, settings, assignor)
        group.assigned_by, group.assignor_failure = target.made_by, target.failure
        self._probe.assignments += 1
        self._probe.assignor_failures += bool(target.failure)
        for member_id, partitions in target.partitions.items():
            if partitions != group.members[member_id].target:
                self.put(group, member_id, TargetAssignment(partitions), out)
        self.put(group, "", TargetEpoch(group.epoch, now.wall_ms), out)

    def reconcile(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None, now: Now, out: Decision
    ) -> None:
        before = member.current
        after = next_assignment(
            before, member.target, group.target_epoch, owned, lambda missing: self.free(group, missing)
        )
        if after == before:
            return
        self.put(group, member.id, after, out)
        timer = (REBALANCE, group.id, member.id)
        if after.state is MemberState.UNREVOKED:
            self._timers.set(timer, now.monotonic_ms + self.rebalance_timeout_ms(group, member))
        else:
            self._timers.cancel(timer)

    def free(self, group: ConsumerGroup, partitions: Partitions) -> Partitions:
        """Those that the group's assignor allows to be given to one more member now."""
        assignor = group.assigned_by or selected_assignor(group, self._settings_of(group.id), self._assignors)
        return partitions if assignor.shares_partitions else group.free(partitions)

    def _find_assignor(self, group: ConsumerGroup, image: ClusterImage | None) -> Assignor:
        """The assignor in force. A coordinator that has loaded the target does not know it and assigns once more."""
        settings = self._settings_of(group.id)
        selected = selected_assignor(group, settings, self._assignors)
        if group.assigned_by is not None and group.members:
            return group.assigned_by
        if not group.members or image is None:
            return selected
        _, group.assigned_by, group.assignor_failure = compute_target(group, image, settings, selected)
        return group.assigned_by

    # ------------------------------------------------------------------ leaving and time

    def _leave(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        member = self.known(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            if member.metadata.instance_id is None:
                raise InvalidRequest("Only a static member leaves with epoch -2.")
            current = member.current
            left = CurrentAssignment(LEAVE_STATIC_EPOCH, current.epoch, assigned=current.assigned)
            self.put(group, member.id, left, out)
            self._timers.cancel((REBALANCE, group.id, member.id))
            self.start_session(group, member, now)
        else:
            self.remove(group, member, out)
            self.raise_epoch(group, out)
        out.reply(ticket, ConsumerHeartbeatReply(request.member_id, request.member_epoch, 0))

    def session_over(self, group: ConsumerGroup, member_id: str, out: Decision) -> None:
        member = group.members.get(member_id)
        if member is not None:
            self._probe.sessions_expired += 1
            self.remove(group, member, out)
            self.raise_epoch(group, out)

    def rebalance_over(self, group: ConsumerGroup, member_id: str, out: Decision) -> None:
        """The member has not revoked its partitions in time."""
        member = group.members.get(member_id)
        if member is not None and member.current.state is MemberState.UNREVOKED:
            self.remove(group, member, out)
            self.raise_epoch(group, out)

    def resume(self, group: ConsumerGroup, now: Now) -> None:
        """The group was loaded: its members have a whole session to find the new coordinator."""
        for member in group.members.values():
            self.start_session(group, member, now)
            if member.current.state is MemberState.UNREVOKED:
                timeout_ms = self.rebalance_timeout_ms(group, member)
                self._timers.set((REBALANCE, group.id, member.id), now.monotonic_ms + timeout_ms)

    def forget_timers(self, group: ConsumerGroup) -> None:
        for member_id in group.members:
            self._cancel_timers(group, member_id)

    def _cancel_timers(self, group: ConsumerGroup, member_id: str) -> None:
        for kind in TIMERS:
            self._timers.cancel((kind, group.id, member_id))

    def remove(self, group: ConsumerGroup, member: ConsumerMember, out: Decision) -> None:
        self._cancel_timers(group, member.id)
        for record in list(group.member_tombstones(member.id)):
            self.put_record(group, record, out)

    def raise_epoch(self, group: ConsumerGroup, out: Decision) -> None:
        self.put(group, "", GroupEpoch(group.epoch + 1, group.metadata_hash), out)

    def start_session(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        timeout_ms = self.session_timeout_ms(group, member)
        self._timers.set((SESSION, group.id, member.id), now.monotonic_ms + timeout_ms)

    def session_timeout_ms(self, group: ConsumerGroup, member: ConsumerMember) -> int:
        setting, classic = self._settings_of(group.id).session_timeout_ms, member.metadata.classic
        asked_ms = self._config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        return setting or asked_ms

    def rebalance_timeout_ms(self, group: ConsumerGroup, member: ConsumerMember) -> int:
        """How long the member may take to revoke partitions."""
        setting = self._settings_of(group.id).rebalance_timeout_ms
        return setting or max(member.metadata.rebalance_timeout_ms, 0)

    def _interval_ms(self, group: ConsumerGroup, current: CurrentAssignment) -> int:
        """A group's own setting is used as it is."""
        return self._settings_of(group.id).heartbeat_interval_ms or heartbeat_interval_ms(
            self.memory.members_at_most,
            self._config.consumer_heartbeat_interval_min_ms,
            self._config.consumer_heartbeat_interval_ms,
            waits=current.state is MemberState.UNRELEASED,
        )

    # ------------------------------------------------------------------ offsets and looking

    def check_offsets(self, group: ConsumerGroup, request: CommitOffsets | FetchOffsets) -> None:
        """Check that a member may commit or fetch offsets: it has the current epoch.

        It may also commit with an earlier one, which its newest heartbeat has just replaced, offsets of partitions
        that it has had since that epoch without a break: nobody else had them in between (KIP-1251).
        """
        # Producers before KIP-447 do not name the member whose offsets are part of their transaction.
        commits = isinstance(request, CommitOffsets) and request.producer is None
        epoch = request.generation if isinstance(request, CommitOffsets) else request.member_epoch
        if epoch < 0 and not request.member_id:
            if commits and group.members:
                raise UnknownMemberId("The group has members; only they commit its offsets.")
            return
        if epoch < 0 and not group.members:
            return  # A consumer that assigns partitions to itself.
        instance_id = request.instance_id if isinstance(request, CommitOffsets) else None
        member = self.known(group, request.member_id, instance_id)
        own = member.current.epoch
        if epoch == own:
            return
        if isinstance(request, CommitOffsets) and 0 <= epoch < own:
            since = (member.current.has_since(each.topic_id, each.tp.partition) for each in request.offsets)
            if all(got is not None and got <= epoch for got in since):
                return
        if member.is_classic:
            raise IllegalGeneration()
        raise StaleMemberEpoch(f"The member's epoch is {own}, not {epoch}.")

    def described(self, group: ConsumerGroup, image: ClusterImage | None) -> DescribedConsumerGroup:
        assignor = self._find_assignor(group, image)
        members = (
            DescribedConsumerMember(
                m.id,
                m.metadata.instance_id,
                m.metadata.rack_id,
                m.metadata.client_id,
                m.metadata.client_host,
                m.current.epoch,
                m.metadata.topics,
                m.metadata.regex,
                m.current.assigned,
                m.target,
                self.session_timeout_ms(group, m),
                self.rebalance_timeout_ms(group, m),
                m.is_classic,
            )
            for m in group.members.values()
        )
        return DescribedConsumerGroup(
            group.id,
            group.state,
            group.epoch,
            group.target_epoch,
            assignor.name,
            tuple(members),
            group.assignor_failure,
        )

    # ------------------------------------------------------------------ records

    def put(self, group: ConsumerGroup, name: str, value: Value, out: Decision) -> None:
        self.put_record(group, ConsumerRecord(group.id, value.kind, name, value), out)

    def put_record(self, group: ConsumerGroup, record: ConsumerRecord, out: Decision) -> None:
        """Apply a record at once, because the rest of the decision rests on it; replaying it again changes nothing."""
        group.apply(record)
        out.records.append(record.encoded())


def _metadata(known: MemberMetadata | None, request: ConsumerHeartbeat) -> MemberMetadata:
    """The member's metadata with what the request changes."""
    joins = request.member_epoch == JOIN_EPOCH
    topics, regex = request.topics, request.regex
    if known is None or joins:
        known = MemberMetadata(request.instance_id, None, "", "", (), None, -1, None)
    return MemberMetadata(
        known.instance_id,
        request.rack_id if request.rack_id is not None else known.rack_id,
        request.client_id or known.client_id,
        request.client_host or known.client_host,
        tuple(sorted(set(topics))) if topics is not None else known.topics,
        known.regex if regex is None else regex or None,
        request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else known.rebalance_timeout_ms,
        request.assignor if request.assignor is not None else known.assignor,
    )


def _is(one: object, other: object) -> bool:
    return one is other or (isinstance(one, int) and one == other)


@lru_cache(maxsize=_REGEXES_MAX)
def _compiled(regex: str) -> LinearRegex:
    try:
        return LinearRegex(regex)
    except ValueError as error:
        raise InvalidRegularExpression(f"Invalid regular expression: {error}.") from None
