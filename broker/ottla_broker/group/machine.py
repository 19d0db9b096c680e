"""Kafka's classic group protocol: join, sync, heartbeat, leave, and their timeouts. [P]

Theory of operation. A group lives in generations; in each, every partition has at most one owner.

    EMPTY ──join──> PREPARING ──all joined, or time is up──> COMPLETING ──leader's sync──> STABLE
      ^                ^  │                                      │                           │
      └──no members────┼──┘     a member joins, leaves, does not sync or times out           │
                       └─────────────────────────────────────────┴───────────────────────────┘

1. PREPARING: members are asked to join. Current members get REBALANCE_IN_PROGRESS on a heartbeat and
   join again; the joins wait. The first rebalance of a group waits a little for more members
   (`group.initial.rebalance.delay.ms`), so that starting ten consumers takes one rebalance and not ten.
2. COMPLETING: a generation has begun, the joins are answered. The leader, one of the members, gets the list of
   members and assigns partitions; the syncs of the others wait for that.
3. STABLE: the leader's assignment is in the log (the record makes the state: `Group.adopt`), the syncs are answered.

Fencing: a generation that is not the current one is refused, a member that was removed
is unknown, and a static member whose instance id was taken by another process is fenced. Everything that waits has a
timer: a join and a sync the rebalance timeout, a member its session timeout, an assigned id a session timeout.

The broker uses protocols and metadata only for the vote; it does not interpret assignments. Settings of
a group (`group_config`) override what its members ask for: timeouts from the next time they are needed, an
assignor as soon as all members support it, with a rebalance if necessary (`review`).
"""

from __future__ import annotations

from collections.abc import Callable

from ottla_broker.coordination.shard import Decision, Now, Ticket
from ottla_broker.coordination.timers import Timers
from ottla_broker.group.group import Group
from ottla_broker.group.member import Member
from ottla_broker.group.member_memory import MEMBER_BYTES, MemberMemory, protocol_bytes
from ottla_broker.group.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    Leaving,
    Left,
    State,
    SyncGroup,
    SyncReply,
)
from ottla_broker.group.records import group_record
from ottla_broker.group.subscription import has_to_revoke, subscribed_topics
from ottla_broker.group_config import GroupSettings
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metrics import GroupsProbe
from ottla_core.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    MessageTooLarge,
    RebalanceInProgress,
    RequestError,
    UnknownMemberId,
)

SESSION = "session"
PENDING = "pending"
JOIN = "join"
SYNC = "sync"
#: A group that was a broker-side one starts a rebalance.
ASSIGN = "assign"

#: A new member waits in its join without heartbeats; it is removed after this if its connection broke. Kafka's number.
NEW_MEMBER_TIMEOUT_MS = 300_000


class Machine:
    def __init__(
        self,
        settings: GroupsConfig,
        settings_of: Callable[[str], GroupSettings],
        timers: Timers,
        probe: GroupsProbe,
        *,
        record_bytes_max: int,
        memory: MemberMemory,
    ) -> None:
        """`settings_of` returns the settings of one group, by its id."""
        self._settings = settings
        self._settings_of = settings_of
        self._timers = timers
        self._probe = probe
        #: Maximum size of a group's record, by the topic's max.message.bytes.
        self._record_bytes_max = record_bytes_max
        self._memory = memory

    # ------------------------------------------------------------------ join

    def join(self, group: Group, request: JoinGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        size = protocol_bytes(request.protocols)
        if size > self._record_bytes_max:
            raise MessageTooLarge(f"A member's metadata must fit into {self._record_bytes_max} bytes.")
        if not group.supports(request.protocol_type, [p.name for p in request.protocols]):
            raise InconsistentGroupProtocol()
        self._check_memory(group, request, size)
        if request.member_id in group.members:
            self._join_again(group, request, ticket, now, out)
        elif request.member_id:
            self._join_with_new_id(group, request, ticket, now, out)
        elif request.instance_id is not None and request.instance_id in group.static:
            self._replace_static(group, request, ticket, now, out)
        else:
            self._check_room(group)
            if request.instance_id is None and request.requires_known_id:
                self._hand_out_id(group, request, ticket, now, out)
            else:
                self._add(group, request.new_member_id, request, ticket, now, out)

    def _check_memory(self, group: Group, request: JoinGroup, size: int) -> None:
        known = group.members.get(request.member_id or group.static.get(request.instance_id or "", ""))
        if known is None:
            self._memory.check(MEMBER_BYTES + size)
        elif not known.is_recalled:  # Else the rest of its metadata is not known.
            self._memory.check(size - protocol_bytes(known.protocols))

    def _check_room(self, group: Group) -> None:
        if len(group.members) + len(group.pending) >= self._settings.size_max:
            raise GroupMaxSizeReached(f"group.max.size is {self._settings.size_max}.")

    def _is_surplus(self, group: Group, member: Member) -> bool:
        """True if group.max.size was lowered and enough members have already rejoined."""
        if len(group.members) <= self._settings.size_max or member.joining is not None:
            return False
        came = sum(each.joining is not None for each in group.members.values())
        return group.state is State.PREPARING and came >= self._settings.size_max

    def _hand_out_id(self, group: Group, request: JoinGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        group.expect(request.new_member_id)
        deadline_ms = now.monotonic_ms + request.session_timeout_ms
        self._timers.set((PENDING, group.id, request.new_member_id), deadline_ms)
        out.reply(ticket, JoinReply(request.new_member_id, error=MemberIdRequired()))

    def _join_with_new_id(
        self, group: Group, request: JoinGroup, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        """The second request of a member that got its id."""
        if request.instance_id is not None:
            group.find(request.member_id, request.instance_id)
        if request.member_id not in group.pending:
            raise UnknownMemberId()
        self._timers.cancel((PENDING, group.id, request.member_id))
        self._add(group, request.member_id, request, ticket, now, out)

    def _add(
        self, group: Group, member_id: str, request: JoinGroup, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            joining=ticket,
            is_new=True,
        )
        group.add(member, request.protocol_type)
        group.newcomers = True
        self._timers.set((SESSION, group.id, member_id), now.monotonic_ms + NEW_MEMBER_TIMEOUT_MS)
        self._rebalance_or_complete(group, now, out)

    def _join_again(self, group: Group, request: JoinGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        member = group.find(request.member_id, request.instance_id)
        if self._is_surplus(group, member):
            self._forget(group, member, out)
            out.refuse(ticket, GroupMaxSizeReached(f"group.max.size is {self._settings.size_max}."))
            self._complete_if_all_joined(group, now, out)
            return
        same = member.protocols == request.protocols
        settled = (group.state is State.COMPLETING and same) or (
            # A leader that joins again in a stable group wants partitions to be assigned again.
            group.state is State.STABLE and same and member.id != group.leader_id
        )
        if settled:
            # Its reply was lost, most likely: it gets the same again.
            self._start_session(group, member, now)
            out.reply(ticket, _joined(group, member))
            return
        group.take_over(member, request)
        self._wait_in_join(group, member, ticket, out)
        self._rebalance_or_complete(group, now, out)

    def _replace_static(
        self, group: Group, request: JoinGroup, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        """A static member came back without its id: the old one is fenced, the new one takes its place."""
        instance_id = request.instance_id or ""
        old_id = group.static[instance_id]
        member = group.members[old_id]
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                out.refuse(waiting, FencedInstanceId())
        member.joining = member.syncing = None
        self._timers.cancel((SESSION, group.id, old_id))
        before = member.metadata_for(group.protocol)
        group.rename(old_id, request.new_member_id)
        group.take_over(member, request)
        if (
            group.state is State.STABLE
            and not group.is_unassigned
            and self._changes_nothing(group, member, before)
        ):
            assignments = {m.id: m.assignment for m in group.members.values()}
            out.records.append(group_record(group.id, group.to_value(assignments)))
            self._start_session(group, member, now)
            out.reply(ticket, _returned(group, member, old_id, request.can_skip_assignment))
            return
        self._wait_in_join(group, member, ticket, out)
        self._rebalance_or_complete(group, now, out)

    def _changes_nothing(self, group: Group, member: Member, before: bytes) -> bool:
        """Whether the generation can continue: same vote, same topics, nothing to revoke (Kafka checks the vote only).

        A member that had to revoke partitions, and died before it joined again, would leave them without an owner: the
        process that takes its place does not know of them.
        """
        if self._vote(group) != group.protocol:
            return False
        if not group.is_consumers:
            return True
        after = member.metadata_for(group.protocol)
        is_settled = not has_to_revoke(before, member.assignment)
        return is_settled and subscribed_topics((before,)) == subscribed_topics((after,))

    def _wait_in_join(self, group: Group, member: Member, ticket: Ticket, out: Decision) -> None:
        if member.joining is not None:
            out.refuse(member.joining, RebalanceInProgress("The member sent a newer JoinGroup request."))
        member.joining = ticket
        if not member.is_new:
            # It cannot send heartbeats while it waits for the reply.
            self._timers.cancel((SESSION, group.id, member.id))

    # ------------------------------------------------------------------ the rebalance

    def _rebalance_or_complete(self, group: Group, now: Now, out: Decision) -> None:
        """A member joined or left: start a rebalance, or complete the running one if it waited for that."""
        if group.state is not State.PREPARING:
            self._prepare(group, now, out)
        else:
            self._complete_if_all_joined(group, now, out)

    def _prepare(self, group: Group, now: Now, out: Decision) -> None:
        for member in group.members.values():
            if member.syncing is not None:
                out.refuse(member.syncing, RebalanceInProgress())
                member.syncing = None
                self._start_session(group, member, now)
        self._timers.cancel((SYNC, group.id))
        group.not_synced.clear()
        group.is_unassigned = False
        is_first = group.state is State.EMPTY
        group.become(State.PREPARING, now.wall_ms)
        self._probe.rebalances += 1
        delay_ms = self._settings.initial_rebalance_delay_ms
        if is_first and delay_ms:
            group.newcomers = False
            group.delay_left_ms = max(self._rebalance_timeout_ms(group) - delay_ms, 0)
            self._timers.set((JOIN, group.id), now.monotonic_ms + delay_ms)
            return
        group.delay_left_ms = None
        self._timers.set((JOIN, group.id), now.monotonic_ms + self._rebalance_timeout_ms(group))
        self._complete_if_all_joined(group, now, out)

    def _complete_if_all_joined(self, group: Group, now: Now, out: Decision) -> None:
        if group.state is State.PREPARING and group.delay_left_ms is None and group.all_joined:
            self._complete(group, now, out)

    def _complete(self, group: Group, now: Now, out: Decision) -> None:
        """Start a generation with the members that joined, or leave the group empty."""
        self._timers.cancel((JOIN, group.id))
        group.delay_left_ms = None
        for member in list(group.members.values()):
            if member.joining is None and not member.is_static:
                self._forget(group, member, out)
        if group.members and not group.elect_joined_leader():
            # Only static members are left, all offline; their sessions decide whether they come back.
            self._timers.set((JOIN, group.id), now.monotonic_ms + self._rebalance_timeout_ms(group))
            return
        group.generation += 1
        group.not_synced.clear()
        if not group.members:
            group.protocol = None
            group.become(State.EMPTY, now.wall_ms)
            out.records.append(group_record(group.id, group.to_value({})))
            return
        group.protocol = self._vote(group)
        group.become(State.COMPLETING, now.wall_ms)
        for member in group.members.values():
            group.not_synced[member.id] = None
            if member.joining is not None:
                out.reply(member.joining, _joined(group, member))
                member.joining = None
                member.is_new = False
                self._start_session(group, member, now)
        self._timers.set((SYNC, group.id), now.monotonic_ms + self._rebalance_timeout_ms(group))

    # ------------------------------------------------------------------ sync

    def sync(self, group: Group, request: SyncGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        member = group.find(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise IllegalGeneration()
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            raise InconsistentGroupProtocol(f"The group's protocol type is {group.protocol_type!r}.")
        if request.protocol is not None and request.protocol != group.protocol:
            raise InconsistentGroupProtocol(f"The group's protocol is {group.protocol!r}.")
        if group.state is State.PREPARING:
            raise RebalanceInProgress()
        if group.state is State.STABLE:
            self._has_synced(group, member)
            self._start_session(group, member, now)
            out.reply(ticket, SyncReply(group.protocol_type, group.protocol, member.assignment))
            return
        record = None
        if member.id == group.leader_id:
            made = {each: request.assignments.get(each, b"") for each in group.members}
            record = group_record(group.id, group.to_value(made))
            size = len(record.value or b"")
            if size > self._record_bytes_max:
                raise MessageTooLarge(f"The group's record has {size} bytes, over {self._record_bytes_max}.")
        if member.syncing is not None:
            out.refuse(member.syncing, RebalanceInProgress("The member sent a newer SyncGroup request."))
        self._has_synced(group, member)
        member.syncing = ticket
        self._timers.cancel((SESSION, group.id, member.id))
        if record is not None:
            out.records.append(record)
            self._answer_syncs(group, made, now, out)

    def _answer_syncs(self, group: Group, made: dict[str, bytes], now: Now, out: Decision) -> None:
        for member in group.members.values():
            if member.syncing is not None:
                out.reply(member.syncing, SyncReply(group.protocol_type, group.protocol, made[member.id]))
                member.syncing = None
                self._start_session(group, member, now)

    def _has_synced(self, group: Group, member: Member) -> None:
        group.not_synced.pop(member.id, None)
        if not group.not_synced:
            self._timers.cancel((SYNC, group.id))

    # ------------------------------------------------------------------ heartbeat, commit and leave

    def heartbeat(self, group: Group, request: Heartbeat, ticket: Ticket, now: Now, out: Decision) -> None:
        member = group.find(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise IllegalGeneration()
        self._start_session(group, member, now)
        if group.state is State.PREPARING:
            raise RebalanceInProgress()
        out.reply(ticket, HeartbeatReply())

    def check_commit(self, group: Group, request: CommitOffsets, now: Now) -> None:
        """Check that the member may commit; a commit counts as a heartbeat."""
        from_outside = request.generation < 0 and not request.member_id and request.instance_id is None
        if from_outside:
            # Producers before KIP-447 do not name the member whose offsets are part of their transaction.
            if group.members and request.producer is None:
                raise UnknownMemberId("The group has members; only they commit its offsets.")
            return
        if request.generation < 0 and group.state is State.EMPTY:
            return  # A consumer that assigns partitions to itself, with an id that it made.
        member = group.find(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise IllegalGeneration()
        if group.state is State.COMPLETING:
            # The member does not have its new assignment yet: the offsets may be of partitions that it has lost.
            raise RebalanceInProgress()
        self._start_session(group, member, now)

    def leave(self, group: Group, request: LeaveGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        before = len(group.members)
        left = [self._leave(group, each, out) for each in request.members]
        if len(group.members) < before:
            self._after_departure(group, now, out)
        else:
            self._complete_if_all_joined(
                group, now, out
            )  # The rebalance does not wait for an id that has not joined.
        out.reply(ticket, LeaveReply(tuple(left)))

    def _leave(self, group: Group, leaving: Leaving, out: Decision) -> Left:
        try:
            if leaving.instance_id is None and leaving.member_id in group.pending:
                group.forget_pending(leaving.member_id)
                self._timers.cancel((PENDING, group.id, leaving.member_id))
                return Left(*leaving, None)
            # An administrator names only the instance.
            owner = group.static.get(leaving.instance_id or "", "")
            member = group.find(leaving.member_id or owner, leaving.instance_id)
            self._forget(group, member, out)
        except RequestError as error:
            return Left(*leaving, error)
        return Left(*leaving, None)

    def _after_departure(self, group: Group, now: Now, out: Decision) -> None:
        if group.state in (State.STABLE, State.COMPLETING):
            self._prepare(group, now, out)
        elif group.state is State.PREPARING:
            self._complete_if_all_joined(group, now, out)

    def _forget(self, group: Group, member: Member, out: Decision) -> None:
        group.remove(member.id)
        self._timers.cancel((SESSION, group.id, member.id))
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                out.refuse(waiting, UnknownMemberId())
        member.joining = member.syncing = None

    # ------------------------------------------------------------------ time

    def session_over(self, group: Group, member_id: str, now: Now, out: Decision) -> None:
        member = group.members.get(member_id)
        if member is None or (
            not member.is_new and (member.joining is not None or member.syncing is not None)
        ):
            return
        self._probe.sessions_expired += 1
        self._forget(group, member, out)
        self._after_departure(group, now, out)

    def pending_over(self, group: Group, member_id: str, now: Now, out: Decision) -> None:
        group.forget_pending(member_id)
        self._complete_if_all_joined(group, now, out)

    def join_over(self, group: Group, now: Now, out: Decision) -> None:
        if group.state is not State.PREPARING:
            return
        if group.delay_left_ms and group.newcomers:
            # A member joined during the delay: more may follow.
            step_ms = min(self._settings.initial_rebalance_delay_ms, group.delay_left_ms)
            group.delay_left_ms -= step_ms
            group.newcomers = False
            self._timers.set((JOIN, group.id), now.monotonic_ms + step_ms)
            return
        self._complete(group, now, out)

    def sync_over(self, group: Group, now: Now, out: Decision) -> None:
        """Remove members that joined but never sent SyncGroup: they own partitions that no member reads."""
        late = [group.members[each] for each in group.not_synced if each in group.members]
        if late and group.state in (State.COMPLETING, State.STABLE):
            for member in late:
                self._forget(group, member, out)
            self._after_departure(group, now, out)

    def resume(self, group: Group, now: Now, out: Decision) -> None:
        """The group was loaded: its members have a whole session to find the new coordinator."""
        for member in group.members.values():
            self._start_session(group, member, now)
        if len(group.members) > self._settings.size_max or group.is_unassigned:
            self._prepare(group, now, out)

    # ------------------------------------------------------------------ the other protocol

    def release(self, group: Group, out: Decision) -> None:
        """The group becomes a broker-side one: whoever waits joins that."""
        for ticket in group.waiting():
            out.refuse(ticket, RebalanceInProgress())
        for kind in (JOIN, SYNC, ASSIGN):
            self._timers.cancel((kind, group.id))
        for member_id in group.members:
            self._timers.cancel((SESSION, group.id, member_id))
        for member_id in group.pending:
            self._timers.cancel((PENDING, group.id, member_id))

    def take_over(self, group: Group, now: Now) -> None:
        """The group was a broker-side one. The rebalance is a decision of its own: this one makes the group STABLE."""
        for member in group.members.values():
            self._start_session(group, member, now)
        if group.is_unassigned:
            self._timers.set((ASSIGN, group.id), now.monotonic_ms)

    def assign_over(self, group: Group, now: Now, out: Decision) -> None:
        if group.is_unassigned:
            self._prepare(group, now, out)

    def _start_session(self, group: Group, member: Member, now: Now) -> None:
        if member.joining is None and member.syncing is None:
            timeout_ms = self._settings_of(group.id).session_timeout_ms or member.session_timeout_ms
            self._timers.set((SESSION, group.id, member.id), now.monotonic_ms + timeout_ms)

    # ------------------------------------------------------------------ what is set for the group

    def review(self, group: Group, now: Now, out: Decision) -> bool:
        """The group's settings have changed. True if that takes a rebalance, because another assignor applies."""
        if group.state is not State.STABLE or self._settings_of(group.id).assignor in (None, group.protocol):
            return False
        # Of members known from a record only the protocol in use is known: a rebalance lets them name the others.
        recalled = any(member.is_recalled for member in group.members.values())
        if not recalled and self._vote(group) == group.protocol:
            return False
        self._prepare(group, now, out)
        return True

    def _vote(self, group: Group) -> str:
        return group.vote(self._settings_of(group.id).assignor)

    def _rebalance_timeout_ms(self, group: Group) -> int:
        return group.rebalance_timeout_ms(self._settings_of(group.id))


def _joined(group: Group, member: Member) -> JoinReply:
    is_leader = member.id == group.leader_id
    return JoinReply(
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader_id or "",
        group.joined_members() if is_leader else (),
    )


def _returned(group: Group, member: Member, old_id: str, can_skip_assignment: bool) -> JoinReply:
    """The reply to a static member that came back into a generation that continues."""
    leads = member.id == group.leader_id
    if leads and not can_skip_assignment:
        # It must not assign again while the others do not rejoin: the reply names its old member id as the leader.
        return JoinReply(member.id, group.generation, group.protocol_type, group.protocol, old_id)
    return JoinReply(
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader_id or "",
        group.joined_members() if leads else (),
        skip_assignment=leads,
    )
