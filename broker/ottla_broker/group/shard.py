"""The groups of one partition of `__consumer_offsets`: dispatches requests, records and timers to groups. [P]

Run by `coordination.runtime`; see `coordination.shard` for the contract. Membership is handled by `Machine` for classic
groups and by `consumer.shard.ConsumerGroups` for broker-side ones, offsets of both are kept in `Offsets`. A group id
belongs to one of the two kinds; `consumer.migration` has the rules by which it changes that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ottla_broker.coordination.fields import Undecodable
from ottla_broker.coordination.metadata_change import MetadataChange
from ottla_broker.coordination.shard import Decision, Now, StateRecord, Ticket, TransactionMarker
from ottla_broker.coordination.timers import Timers
from ottla_broker.group import machine
from ottla_broker.group.consumer.machine import TIMERS as CONSUMER_TIMERS
from ottla_broker.group.consumer.messages import JOIN_EPOCH, ConsumerHeartbeat, DescribeConsumerGroup
from ottla_broker.group.consumer.migration import MigrationPolicy, downgraded, upgraded
from ottla_broker.group.consumer.records import read_record
from ottla_broker.group.consumer.shard import ConsumerGroups
from ottla_broker.group.group import Group
from ottla_broker.group.machine import Machine
from ottla_broker.group.member_memory import MemberMemory
from ottla_broker.group.messages import (
    BeginVerification,
    CommitOffsets,
    CommitReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    DeleteReply,
    DescribedGroup,
    DescribeGroup,
    EndTransaction,
    FetchOffsets,
    GroupType,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveReply,
    Left,
    ListedGroup,
    ListGroupIds,
    ListGroupIdsReply,
    ListGroups,
    ListReply,
    State,
    SyncGroup,
    VerificationBegun,
)
from ottla_broker.group.offsets import Offsets
from ottla_broker.group.pending_offsets import PendingOffsets
from ottla_broker.group.records import (
    GroupKey,
    OffsetKey,
    OffsetValue,
    group_tombstone,
    offset_record,
    offset_tombstone,
    read_group,
    read_key,
    read_offset,
)
from ottla_broker.group.subscription import CONSUMER
from ottla_broker.group.verifications import Verifications
from ottla_broker.group_config import NO_SETTINGS, GroupSettings
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metrics import GroupsProbe
from ottla_core.assignors.model import Assignor
from ottla_core.assignors.registry import BUILT_IN
from ottla_core.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RequestError,
    UnknownMemberId,
)

_EXPIRE_OFFSETS = ("expire-offsets",)


class GroupShard:
    def __init__(
        self,
        settings: GroupsConfig,
        probe: GroupsProbe,
        *,
        record_bytes_max: int,
        settings_of: Callable[[str], GroupSettings] = lambda group: NO_SETTINGS,
        assignors: Mapping[str, Assignor] = BUILT_IN,
        held_everywhere: Callable[[], int] | None = None,
    ) -> None:
        """`settings_of` returns the settings of one group, by its id; `held_everywhere` the memory of all members."""
        self._settings = settings
        self._record_bytes_max = record_bytes_max
        self._migration = MigrationPolicy(settings.migration)
        self._settings_of = settings_of
        self._probe = probe
        self.timers = Timers()
        self.memory = MemberMemory(settings.members_max_bytes, held_everywhere)
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.pending_offsets = PendingOffsets()
        self.verifications = Verifications()
        self._machine = Machine(
            settings, settings_of, self.timers, probe, record_bytes_max=record_bytes_max, memory=self.memory
        )
        self.consumers = ConsumerGroups(settings, settings_of, self.timers, probe, assignors, self.memory)
        self._handlers: dict[type, Callable[[Any, Ticket, Now, Decision], None]] = {
            JoinGroup: self._join,
            SyncGroup: self._sync,
            Heartbeat: self._heartbeat,
            LeaveGroup: self._leave,
            CommitOffsets: self._commit,
            BeginVerification: self._begin_verification,
            EndTransaction: self._end_transaction,
            FetchOffsets: self._fetch,
            DeleteOffsets: self._delete_offsets,
            ListGroupIds: self._list_ids,
            ListGroups: self._list,
            DescribeGroup: self._describe,
            DeleteGroup: self._delete_group,
            ConsumerHeartbeat: self._consumer_heartbeat,
            DescribeConsumerGroup: self._describe_consumers,
        }

    # ------------------------------------------------------------------ the contract

    def handle(self, request: Any, ticket: Ticket, now: Now) -> Decision:
        out = Decision()
        self._handlers[type(request)](request, ticket, now, out)
        return out

    def expire(self, now: Now) -> Decision:
        out = Decision()
        for key in self.timers.due(now.monotonic_ms):
            if key == _EXPIRE_OFFSETS:
                self._expire_offsets(now, out)
            elif isinstance(key, tuple):
                self._time_is_up(key, now, out)
        return out

    def replay(self, record: StateRecord) -> None:
        try:
            key = read_key(record.key)
            if isinstance(key, OffsetKey):
                value = None if record.value is None else read_offset(record.value)
                if record.producer is None:
                    self.pending_offsets.overtake(key)
                    self._replay_offset(key, value)
                else:
                    self.pending_offsets.put(record.producer.producer_id, key, value)
            elif isinstance(key, GroupKey):
                self._replay_group(key, record.value)
            elif (found := read_record(record)) is not None:
                self.consumers.replay(found)
                if found.group in self.consumers:
                    if (classic := self.groups.pop(found.group, None)) is not None:
                        classic.dropped()
                elif self.offsets.of(found.group):
                    self._group(found.group)
        except Undecodable:
            # Ottla never writes such a record; one unreadable record must not block all the others.
            self._probe.records_skipped += 1

    def replay_marker(self, marker: TransactionMarker) -> None:
        self.verifications.ended(marker.producer.producer_id)
        counting = self.pending_offsets.take(marker.producer.producer_id, commits=marker.commits)
        for key, value in counting.items():
            self._replay_offset(key, value)

    def on_metadata(self, change: MetadataChange, now: Now) -> Decision:
        out = Decision()
        self.consumers.image = change.image
        if change.removed_topics:
            # Delete offsets of deleted topics; also of topics deleted while this partition had no leader.
            gone = self.offsets.of_missing_topics(change.topic_ids)
            out.records += [offset_tombstone(group, tp) for group, tp in gone]
        for group_id in change.changed_groups:
            group = self.groups.get(group_id)
            if group is not None:
                self._machine.review(group, now, out)
        return out

    def loaded(self, now: Now) -> Decision:
        out = Decision()
        for group in self.groups.values():
            self._machine.resume(group, now, out)
        self.consumers.resume(now)
        self.timers.set(_EXPIRE_OFFSETS, now.monotonic_ms + self._settings.offsets_check_interval_ms)
        return out

    def states(self) -> Counter[State]:
        """Number of groups by state."""
        return Counter(group.state for group in (*self.groups.values(), *self.consumers))

    # ------------------------------------------------------------------ replay

    def _replay_offset(self, key: OffsetKey, value: OffsetValue | None) -> None:
        if value is None:
            self.offsets.remove(key.group, key.tp)
            self.pending_offsets.remove(key)
            return
        if key.group not in self.groups and key.group not in self.consumers:
            self._group(key.group)
        self.offsets.put(key.group, key.tp, value)

    def _replay_group(self, key: GroupKey, value: bytes | None) -> None:
        if value is not None:
            self._group(key.group).adopt(read_group(value))
            return
        # Its offsets have tombstones of their own: the group may have become one of the other kind.
        group = self.groups.pop(key.group, None)
        if group is not None:
            group.dropped()
            group.state = State.DEAD
        if self.offsets.of(key.group) and key.group not in self.consumers:
            self._group(key.group)

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self.memory)
        return group

    # ------------------------------------------------------------------ membership

    def _join(self, request: JoinGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        if self.consumers.has_members(request.group):
            self.consumers.join(request, ticket, now, out)
            self._maybe_downgrade(request.group, now, out)
            return
        group = self.groups.get(request.group)
        if group is None:
            if request.member_id:
                raise UnknownMemberId()
            group = Group(request.group, self.memory)
        self._machine.join(group, request, ticket, now, out)
        self.consumers.convert_to_classic(request.group, out)
        self.groups[request.group] = group  # Only now: a refused join leaves no group behind.
        self._probe.joins += 1

    def _sync(self, request: SyncGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        if self.consumers.has_members(request.group):
            self.consumers.sync(request, ticket, now, out)
        else:
            self._machine.sync(self._known(request.group), request, ticket, now, out)

    def _heartbeat(self, request: Heartbeat, ticket: Ticket, now: Now, out: Decision) -> None:
        if self.consumers.has_members(request.group):
            self.consumers.classic_heartbeat(request, ticket, now, out)
        else:
            self._machine.heartbeat(self._known(request.group), request, ticket, now, out)

    def _leave(self, request: LeaveGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        if self.consumers.has_members(request.group):
            self.consumers.leave(request, ticket, now, out)
            self._maybe_downgrade(request.group, now, out)
            return
        group = self.groups.get(request.group)
        if group is None:
            out.reply(ticket, LeaveReply(tuple(Left(*each, UnknownMemberId()) for each in request.members)))
            return
        self._machine.leave(group, request, ticket, now, out)
        self._drop_if_unused(group)

    def _consumer_heartbeat(
        self, request: ConsumerHeartbeat, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        classic = self.groups.get(request.group)
        if classic is None:
            self.consumers.heartbeat(request, ticket, now, out)
            self._maybe_downgrade(request.group, now, out)
            return
        if request.member_epoch != JOIN_EPOCH:
            raise GroupIdNotFound("The group has become a classic one; join again.")
        group = None
        if classic.members:
            size_max = self._settings.consumer_size_max
            group, carried = upgraded(classic, self.consumers.known_image, self._migration, size_max)
            out.records += carried
        self.consumers.heartbeat(request, ticket, now, out, group)
        if classic.generation:
            out.records.insert(0, group_tombstone(classic.id))
        self._machine.release(classic, out)
        classic.dropped()
        self.groups.pop(request.group, None)

    def _maybe_downgrade(self, group_id: str, now: Now, out: Decision) -> None:
        """Make it a classic group if no member speaks the consumer protocol (any more)."""
        group = self.consumers.get(group_id)
        if group is None or not all(member.is_classic for member in group.members.values()):
            return
        made = downgraded(
            group,
            self.consumers.known_image,
            self._migration,
            self._settings_of(group_id),
            now,
            size_max=self._settings.size_max,
            record_bytes_max=self._record_bytes_max,
        )
        if made is not None:
            classic, record = made
            self.consumers.convert_to_classic(group_id, out)
            out.records.append(record)
            self.groups[group_id] = classic
            classic.count_in(self.memory)
            self._machine.take_over(classic, now)

    def _known(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownMemberId()
        return group

    def _drop_if_unused(self, group: Group) -> None:
        """Remove a group without a generation and offsets: it has no record."""
        unused = group.state is State.EMPTY and not group.generation and not group.pending
        if unused and not self.offsets.of(group.id):
            self.groups.pop(group.id, None)

    # ------------------------------------------------------------------ offsets

    def _begin_verification(
        self, request: BeginVerification, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        self.verifications.begin(request.verification)
        out.reply(ticket, VerificationBegun())

    def _commit(self, request: CommitOffsets, ticket: Ticket, now: Now, out: Decision) -> None:
        if request.verification is not None and not self.verifications.holds(request.verification):
            raise CoordinatorNotAvailable("The transaction ended while it was verified; try again.")
        group = self.groups.get(request.group)
        if request.group in self.consumers:
            self.consumers.check_offsets(request)
        elif group is not None:
            self._machine.check_commit(group, request, now)
        elif request.generation >= 0:
            raise IllegalGeneration()
        expire_ms = None if request.retention_ms is None else now.wall_ms + request.retention_ms
        errors: list[RequestError | None] = []
        for each in request.offsets:
            if len(each.metadata.encode()) > self._settings.metadata_bytes_max:
                errors.append(OffsetMetadataTooLarge())
                continue
            value = OffsetValue(
                each.offset, each.leader_epoch, each.metadata, now.wall_ms, expire_ms, each.topic_id
            )
            record = offset_record(request.group, each.tp, value)
            out.records.append(record._replace(producer=request.producer))
            errors.append(None)
        self._probe.offsets_committed += len(out.records)
        out.reply(ticket, CommitReply(tuple(errors)))

    def _fetch(self, request: FetchOffsets, ticket: Ticket, now: Now, out: Decision) -> None:
        if request.group in self.consumers:
            self.consumers.check_offsets(request)
        unstable = self.pending_offsets.of(request.group) if request.require_stable else frozenset()
        out.reply(ticket, self.offsets.fetch(request.group, request.partitions, unstable))

    def _end_transaction(self, request: EndTransaction, ticket: Ticket, now: Now, out: Decision) -> None:
        out.records.append(request.marker)
        out.reply(ticket, request.marker)

    def _delete_offsets(self, request: DeleteOffsets, ticket: Ticket, now: Now, out: Decision) -> None:
        reading = self._protected_topics(request.group)
        found = self.offsets.of(request.group)
        errors: list[RequestError | None] = []
        for tp in request.partitions:
            if reading is None or tp.topic in reading:
                errors.append(GroupSubscribedToTopic())
                continue
            if tp in found:
                out.records.append(offset_tombstone(request.group, tp))
            errors.append(None)
        out.reply(ticket, DeleteOffsetsReply(tuple(errors)))

    def _protected_topics(self, group_id: str) -> frozenset[str] | None:
        """Topics whose offsets must not be deleted, because members read them; None: all."""
        group = self.consumers.get(group_id) or self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound()
        if not group.members:
            return frozenset()
        if group.protocol_type != CONSUMER:
            raise NonEmptyGroup()
        return group.subscribed_topics()

    def _expire_offsets(self, now: Now, out: Decision) -> None:
        self.timers.set(_EXPIRE_OFFSETS, now.monotonic_ms + self._settings.offsets_check_interval_ms)
        retention_ms = self._settings.offsets_retention_minutes * 60_000
        for group in list(self.groups.values()):
            expired = self.offsets.expired(group, now.wall_ms, retention_ms)
            out.records += [offset_tombstone(group.id, tp) for tp in expired]
            self._probe.offsets_expired += len(expired)
            has_none = len(expired) == len(self.offsets.of(group.id)) and not self.pending_offsets.of(
                group.id
            )
            if has_none and group.state is State.EMPTY and not group.pending:
                # An empty group is deleted with its last offset.
                out.records.append(group_tombstone(group.id))
        for consumers in self.consumers:
            expired = self.offsets.expired(consumers, now.wall_ms, retention_ms)
            out.records += [offset_tombstone(consumers.id, tp) for tp in expired]
            self._probe.offsets_expired += len(expired)
            has_none = len(expired) == len(self.offsets.of(consumers.id))
            if consumers.state is State.EMPTY and has_none and not self.pending_offsets.of(consumers.id):
                out.records += self.consumers.tombstones(consumers.id)
                out.records.append(group_tombstone(consumers.id))

    # ------------------------------------------------------------------ looking and deleting

    def _list(self, request: ListGroups, ticket: Ticket, now: Now, out: Decision) -> None:
        listed = []
        for group_id in request.groups:
            if (group := self.groups.get(group_id)) is not None:
                listed.append(ListedGroup(group_id, group.protocol_type, group.state))
            elif (found := self.consumers.get(group_id)) is not None:
                listed.append(ListedGroup(group_id, found.protocol_type, found.state, GroupType.CONSUMER))
        out.reply(ticket, ListReply(tuple(listed)))

    def _list_ids(self, request: ListGroupIds, ticket: Ticket, now: Now, out: Decision) -> None:
        out.reply(ticket, ListGroupIdsReply((*self.groups, *self.consumers.ids())))

    def _describe_consumers(
        self, request: DescribeConsumerGroup, ticket: Ticket, now: Now, out: Decision
    ) -> None:
        out.reply(ticket, self.consumers.described(request.group))

    def _describe(self, request: DescribeGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        group = self.groups.get(request.group)
        if group is None:
            out.reply(ticket, DescribedGroup(request.group))
        else:
            out.reply(ticket, group.described(self._settings_of(group.id)))

    def _delete_group(self, request: DeleteGroup, ticket: Ticket, now: Now, out: Decision) -> None:
        group = self.consumers.get(request.group) or self.groups.get(request.group)
        if group is None:
            raise GroupIdNotFound()
        if group.state is not State.EMPTY:
            raise NonEmptyGroup()
        out.records += self.consumers.tombstones(group.id)
        partitions = {**self.offsets.of(group.id), **dict.fromkeys(self.pending_offsets.of(group.id))}
        out.records += [offset_tombstone(group.id, tp) for tp in partitions]
        out.records.append(group_tombstone(group.id))
        out.reply(ticket, DeleteReply())

    # ------------------------------------------------------------------ time

    def _time_is_up(self, key: tuple[Any, ...], now: Now, out: Decision) -> None:
        kind, group_id, *rest = key
        if kind in CONSUMER_TIMERS:
            self.consumers.time_is_up(kind, group_id, rest[0], out)
            self._maybe_downgrade(group_id, now, out)
            return
        group = self.groups.get(group_id)
        if group is None:
            return
        if kind == machine.SESSION:
            self._machine.session_over(group, rest[0], now, out)
        elif kind == machine.PENDING:
            self._machine.pending_over(group, rest[0], now, out)
            self._drop_if_unused(group)
        elif kind == machine.JOIN:
            self._machine.join_over(group, now, out)
        elif kind == machine.SYNC:
            self._machine.sync_over(group, now, out)
        elif kind == machine.ASSIGN:
            self._machine.assign_over(group, now, out)
