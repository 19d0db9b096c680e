"""The group part of a consumer: membership, commits, auto commit. [S]

Created by a `Consumer` with a `group_id`. Speaks the broker-side protocol, or the classic one, or the first until the
coordinator does not offer it. Positions are the machine's, minus records that an iteration has taken and
not yielded yet.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ottla_client.cluster import Cluster
from ottla_client.committer import Committer, Offsets, OnCommit
from ottla_client.consumer_group_session import ConsumerGroupSession, broker_regex
from ottla_client.consumer_machine import ConsumerMachine
from ottla_client.coordinator import Coordinator
from ottla_client.errors import BrokerSideNotOffered, ClientError, CommitFailed
from ottla_client.fetcher import Fetcher
from ottla_client.group_effects import Identity
from ottla_client.group_session import GroupSession
from ottla_client.group_shell import GroupSettings, GroupShell
from ottla_client.listener import RebalanceListener
from ottla_client.read_ahead import ReadAhead
from ottla_client.record import GroupMetadata, OffsetAndMetadata
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

#: Timeout of the last commit before a revocation; the rebalance waits for it.
_LAST_COMMIT_TIMEOUT_S = 5.0


class GroupReader:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        machine: ConsumerMachine,
        fetcher: Fetcher,
        ahead: ReadAhead,
        settings: GroupSettings,
        auto_commit_interval_s: float | None,
        on_committed: Callable[[Offsets], None] = lambda offsets: None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._machine = machine
        self._fetcher = fetcher
        self._ahead = ahead
        self._interval_s = auto_commit_interval_s
        self._settings = settings
        self._commit_due_at = 0.0
        coordinator = self._coordinator = Coordinator(cluster, clock, settings.group_id)
        kind = ConsumerGroupSession if settings.member_id else GroupSession
        self.session: GroupShell = kind(cluster, clock, coordinator, settings, self)
        #: The last subscription, for a session of the other protocol.
        self._subscribed: tuple[Sequence[str] | re.Pattern[str], RebalanceListener | None] = ((), None)
        self._committer = Committer(
            cluster,
            clock,
            coordinator,
            instance_id=settings.group_instance_id,
            timeout_s=settings.request_timeout_s,
            identity=lambda: self.session.identity,
            is_subscribed=lambda: self.session.is_subscribed,
            held=machine.assignment,
            on_refused=self._commit_refused,
            on_committed=on_committed,
        )
        fetcher.find_committed = self._committer.committed

    @property
    def commits_automatically(self) -> bool:
        return self._interval_s is not None

    # ------------------------------------------------------------------ for the session

    def adopt(self, partitions: Sequence[TopicPartition]) -> None:
        gone = [tp for tp in self._machine.assignment() if tp not in partitions]
        self._machine.assign(partitions, committed=True)
        for tp in gone:
            # Other members will commit there.
            self._committer.known.pop(tp, None)
        self._fetcher.changed.set()
        self._fetcher.schedule()

    async def before_revocation(self) -> None:
        if self._interval_s is None:
            return
        try:
            await self._committer.commit(self._moved(), _LAST_COMMIT_TIMEOUT_S)
        except (ClientError, RequestError) as error:
            log.warning("Offsets were not committed before partitions were revoked: %s", error)

    def wake(self) -> None:
        self._fetcher.changed.set()

    # ------------------------------------------------------------------ for the consumer

    def subscribe(self, topics: Sequence[str] | re.Pattern[str], listener: RebalanceListener | None) -> None:
        self._subscribed = (topics, listener)
        if self._may_fall_back and isinstance(topics, re.Pattern) and not self.session.is_subscribed:
            try:
                broker_regex(topics)
            except ValueError:
                self._become_classic()
        self.session.subscribe(topics, listener)

    async def poll_began(self) -> None:
        """Records of earlier polls are processed: auto commit covers them, and the assignment may change."""
        if self.session.is_subscribed:
            try:
                await self.session.poll_began()
            except BrokerSideNotOffered as error:
                await self._fall_back(error)
        if self._interval_s is not None:
            now = self._clock.monotonic()
            if now >= self._commit_due_at:
                if self._commit_due_at and (moved := self._moved()):
                    self._committer.commit_nowait(moved, None)
                self._commit_due_at = now + self._interval_s

    async def _fall_back(self, error: BrokerSideNotOffered) -> None:
        """From now on a classic member; what was held is given up already."""
        log.info("Group %s is joined with the classic protocol: %s", self._settings.group_id, error)
        await self.session.close()
        self._become_classic()
        self.session.subscribe(*self._subscribed)
        await self.session.poll_began()

    @property
    def _may_fall_back(self) -> bool:
        return self._settings.may_fall_back and isinstance(self.session, ConsumerGroupSession)

    def _become_classic(self) -> None:
        """Nothing is held: with a session of the classic protocol from now on."""
        self.session = GroupSession(self._cluster, self._clock, self._coordinator, self._settings, self)

    def poll_ended(self) -> None:
        if self.session.is_subscribed:
            self.session.poll_ended()

    def _commit_refused(self, identity: Identity, error: RequestError) -> None:
        self.session.commit_refused(identity, error)

    def positions(self) -> Offsets:
        positions = {**self._machine.positions(), **self._ahead.first_offsets()}
        return {
            tp: OffsetAndMetadata(offset, leader_epoch=self._machine.epoch_before(tp, offset))
            for tp, offset in positions.items()
        }

    def metadata(self) -> GroupMetadata:
        identity = self.session.identity
        if self.session.is_subscribed and not identity.member_id:
            # Without a member id nobody is checked.
            raise CommitFailed(
                "This consumer is not a member of its group now: it has not joined yet, or it was removed and its "
                "partitions are lost. Abort the transaction; the next polls join again."
            )
        instance_id = self._settings.group_instance_id if identity.member_id else ""
        return GroupMetadata(self._settings.group_id, identity.member_id, identity.generation, instance_id)

    def _moved(self) -> Offsets:
        known = self._committer.known
        return {tp: each for tp, each in self.positions().items() if known.get(tp) != each.offset}

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None) -> None:
        await self._committer.commit(self._chosen(offsets))

    def commit_nowait(
        self, callback: OnCommit | None, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None
    ) -> None:
        self._committer.commit_nowait(self._chosen(offsets), callback)

    def _chosen(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None) -> Offsets:
        if offsets is None:
            return self.positions()
        chosen: Offsets = {}
        for tp, each in offsets.items():
            made = OffsetAndMetadata(each) if isinstance(each, int) else each
            if made.offset < 0:
                raise ValueError(f"Offsets start at 0, not at {made.offset}.")
            chosen[TopicPartition(*tp)] = made
        return chosen

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._committer.committed(TopicPartition(*tp) for tp in partitions)

    async def unsubscribe(self) -> None:
        await self._committer.settled(_LAST_COMMIT_TIMEOUT_S)
        await self.session.leave("the consumer has unsubscribed")

    async def close(self) -> None:
        """Send the last commits and leave the group."""
        await self._committer.settled(_LAST_COMMIT_TIMEOUT_S)
        if self.session.is_subscribed:
            await self.session.close()
        else:
            await self.before_revocation()
            await self.session.close()
