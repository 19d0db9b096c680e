"""The group part of a consumer: membership, commits, auto commit. [S]

Created by a `Consumer` with a `group_id`. Positions are the machine's, minus records that an iteration has taken and
not yielded yet.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from ottla_client.cluster import Cluster
from ottla_client.committer import Committer, Offsets, OnCommit
from ottla_client.consumer_group_session import ConsumerGroupSession
from ottla_client.consumer_machine import ConsumerMachine
from ottla_client.coordinator import Coordinator
from ottla_client.errors import ClientError
from ottla_client.fetcher import Fetcher
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
    ) -> None:
        self._clock = clock
        self._machine = machine
        self._fetcher = fetcher
        self._ahead = ahead
        self._interval_s = auto_commit_interval_s
        self._settings = settings
        self._commit_due_at = 0.0
        coordinator = Coordinator(cluster, clock, settings.group_id)
        kind = ConsumerGroupSession if settings.member_id else GroupSession
        self.session: GroupShell = kind(cluster, clock, coordinator, settings, self)
        self._committer = Committer(
            cluster,
            clock,
            coordinator,
            instance_id=settings.group_instance_id,
            timeout_s=settings.request_timeout_s,
            identity=lambda: self.session.identity,
            held=machine.assignment,
            on_refused=self.session.commit_refused,
        )
        fetcher.find_committed = self._committer.committed

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
        self.session.subscribe(topics, listener)

    async def poll_began(self) -> None:
        """Records of earlier polls are processed: auto commit covers them, and the assignment may change."""
        if self.session.is_subscribed:
            await self.session.poll_began()
        if self._interval_s is not None:
            now = self._clock.monotonic()
            if now >= self._commit_due_at:
                if self._commit_due_at and (moved := self._moved()):
                    self._committer.commit_nowait(moved, None)
                self._commit_due_at = now + self._interval_s

    def poll_ended(self) -> None:
        if self.session.is_subscribed:
            self.session.poll_ended()

    def positions(self) -> Offsets:
        positions = {**self._machine.positions(), **self._ahead.first_offsets()}
        return {tp: OffsetAndMetadata(offset) for tp, offset in positions.items()}

    def metadata(self) -> GroupMetadata:
        identity = self.session.identity
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
