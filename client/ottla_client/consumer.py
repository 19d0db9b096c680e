"""The consumer: reads records from partitions, alone or as a member of a group. [S]

The public API. `consumer_machine` keeps positions and decides what to fetch, `fetcher` fetches, and
`group_reader` handles the group: it calls `assign` on the machine as a user would.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Generic

from ottla_client.assignors import Assignor
from ottla_client.choose_protocol import choose_protocol
from ottla_client.committer import Offsets, OnCommit
from ottla_client.connected import Connected, check_positive
from ottla_client.consumer_machine import EARLIEST, LATEST, ConsumerMachine, ConsumerPolicy
from ottla_client.errors import ClientClosed, ClientError
from ottla_client.fetch_stream import FetchLimits
from ottla_client.fetched import Decoding
from ottla_client.fetcher import Fetcher
from ottla_client.group_reader import GroupReader
from ottla_client.group_shell import GroupSettings
from ottla_client.interceptors import ConsumerInterceptor
from ottla_client.listener import RebalanceListener
from ottla_client.record import ConsumerRecord, GroupMetadata, K, OffsetAndMetadata, OffsetAndTimestamp, V
from ottla_client.security import Security
from ottla_client.serializers import deserializer_for
from ottla_core.ids import TopicPartition

log = logging.getLogger(__name__)

_ITERATION_POLL_MS = 1000
#: For the last commit, the listener and leaving the group; as Java's `close`.
_LEAVE_TIMEOUT_S = 30.0
_ISOLATION = {"read_uncommitted": False, "read_committed": True}


class Consumer(Connected, Generic[K, V]):
    """Reads records from partitions.

    >>> async with Consumer("127.0.0.1:9192", group_id="greeters") as consumer:
    ...     consumer.subscribe(["greetings"])
    ...     async for record in consumer:          # all records, as they arrive
    ...         print(record.offset, record.value)

    >>> async with Consumer("127.0.0.1:9192", auto_offset_reset="earliest") as consumer:
    ...     consumer.assign([TopicPartition("greetings", 0)])   # alone, without a group
    ...     for record in await consumer.poll(timeout_ms=1000):
    ...         print(record.offset, record.value)

    Arguments, with Kafka's names and meanings:

    * `auto_offset_reset`: where to start in a partition without a position (or with one that is out of range):
      "latest", "earliest", or "none" to raise an exception.
    * `key_deserializer`, `value_deserializer`: "bytes", "str", "int", "json", or a callable from bytes.
    * `max_poll_records`: the most records that one `poll` returns.
    * `fetch_min_bytes`, `fetch_max_wait_ms`: a broker answers when it has this many bytes, or after this time.
    * `max_partition_fetch_bytes`, `fetch_max_bytes`: the most bytes of one partition, and of all, in one response.
    * `prefetch_max_bytes`: the most bytes that are fetched ahead and not polled yet.
    * `isolation_level`: "read_uncommitted", or "read_committed" to skip open and aborted transactions.
    * `check_crcs`: verify each batch as it is read.
    * `security`: TLS and login: a `Security`, or a mapping with Kafka's names (`security.protocol`, ...).
    * `client_rack`: read from an in-sync replica whose `broker.rack` is the same, if there is one and the brokers have
      a `replica.selector.class`.
    * `client_id`: the name under which brokers count and log this client, and under which it has quotas.

    As a member of a group:

    * `group_id`: members of a group share the partitions of the subscribed topics, and commit their offsets.
    * `group_instance_id`: a static member; it may restart within `session_timeout_ms` without a rebalance.
    * `group_protocol`: "auto" speaks the broker-side protocol (KIP-848), and the classic one if one of the settings
      marked "classic" is given, or where the brokers do not offer the other: an older version, a classic group that
      cannot be upgraded, a pattern that only Python understands. "consumer" and "classic" insist on one of them.
      With the broker-side one the broker assigns, matches patterns and has the timeouts, and members keep reading while
      partitions move. Members of both can share a group, which changes its protocol while they are restarted.
    * `group_remote_assignor`: the broker's assignor ("uniform", "range", ...), by vote of the members; not classic.
    * `session_timeout_ms`, `heartbeat_interval_ms` (classic): a member without a heartbeat for so long is
      removed (45,000); the time between heartbeats (3000).
    * `max_poll_interval_ms`: a member that does not poll for so long leaves the group.
    * `partition_assignment_strategy` (classic): "cooperative-sticky" (the default), "range", "roundrobin", "sticky",
      or an assignor object; in order of preference. If all of them are cooperative, members keep reading while the
      group rebalances.
    * `enable_auto_commit`, `auto_commit_interval_ms`: commit the records of earlier polls, at this interval.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:9192",
        *,
        key_deserializer: Callable[[bytes], K] | str | None = None,
        value_deserializer: Callable[[bytes], V] | str | None = None,
        auto_offset_reset: str = "latest",
        max_poll_records: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 16 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        prefetch_max_bytes: int = 64 * 1024 * 1024,
        isolation_level: str = "read_uncommitted",
        check_crcs: bool = True,
        client_rack: str = "",
        interceptors: Sequence[ConsumerInterceptor] = (),
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        metadata_max_age_ms: int = 300_000,
        client_id: str = "ottla-consumer",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        group_protocol: str = "auto",
        group_remote_assignor: str = "",
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] | None = None,
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5000,
        security: Security | Mapping[str, str] | None = None,
    ) -> None:
        if isolation_level not in _ISOLATION:
            raise ValueError(f"isolation_level={isolation_level!r}: choose {' or '.join(_ISOLATION)}.")
        committed = self._read_committed = _ISOLATION[isolation_level]
        check_positive(
            max_poll_records=max_poll_records,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            prefetch_max_bytes=prefetch_max_bytes,
            max_poll_interval_ms=max_poll_interval_ms,
        )
        super().__init__(
            bootstrap_servers,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            security=security,
            client_id=client_id,
        )
        self._machine = ConsumerMachine(
            ConsumerPolicy(
                partition_bytes=max_partition_fetch_bytes,
                buffer_bytes=prefetch_max_bytes,
                backoff_s=self._backoff_s,
                backoff_max_s=self._backoff_max_s,
            ),
            Decoding(
                key_deserializer=deserializer_for(key_deserializer),
                value_deserializer=deserializer_for(value_deserializer),
                check_crcs=check_crcs,
                read_committed=self._read_committed,
            ),
            auto_offset_reset,
            self._chance.fraction,
        )
        limits = FetchLimits(fetch_min_bytes, fetch_max_bytes, fetch_max_wait_ms, committed, client_rack)
        self._interceptors = tuple(interceptors)
        self._max_poll_records = max_poll_records
        self._fetcher = Fetcher(self._cluster, self._clock, self._machine, limits, self._request_timeout_s)
        self._ahead = self._machine.ahead
        self._group: GroupReader | None = None
        if group_id is not None:
            given = (session_timeout_ms, heartbeat_interval_ms, partition_assignment_strategy)
            chosen = choose_protocol(group_protocol, group_remote_assignor, *given)
            settings = GroupSettings(
                group_id,
                group_instance_id or "",
                client_id,
                *chosen.timeouts_ms,
                max_poll_interval_ms,
                chosen.assignors,
                self._request_timeout_s,
                self._backoff_s,
                self._backoff_max_s,
                self._metadata_max_age_s,
                "" if chosen.is_classic else str(self._chance.uuid()),
                client_rack,
                group_remote_assignor,
                chosen.may_fall_back,
            )
            self._group = GroupReader(
                self._cluster,
                self._clock,
                self._machine,
                self._fetcher,
                self._ahead,
                settings,
                auto_commit_interval_ms / 1000 if enable_auto_commit else None,
                self._committed,
            )

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        self._fetcher.listen()
        await super().start()
        self._fetcher.start()

    async def stop(self) -> None:
        """Commit (with auto commit), leave the group, disconnect. Takes at most half a minute."""
        try:
            if self._fetcher.running and self._group is not None:
                async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                    await self._group.close()
        except TimeoutError:
            log.warning(
                "The group was not left in time; it rebalances when the session of this member expires."
            )
        finally:
            self._fetcher.stop()
            await super().stop()

    # ------------------------------------------------------------------ what to read

    def subscribe(
        self, topics: str | re.Pattern[str] | Iterable[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the other members of the group; a compiled pattern takes all matching topics.

        Partitions are assigned during one of the next polls. Replaces an earlier subscription.
        """
        self._check_running()
        group = self._in_group("subscribe")
        if self._machine.assignment() and not group.session.is_subscribed:
            raise ClientError("Partitions were assigned by hand; assign([]) first, or use another consumer.")
        if isinstance(topics, re.Pattern):
            group.subscribe(topics, listener)
            return
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise ValueError("Name at least one topic, or call unsubscribe().")
        group.subscribe(names, listener)

    def subscription(self) -> list[str]:
        """The subscribed topics; for a pattern, those that matched so far."""
        return [] if self._group is None else list(self._group.session.subscription)

    async def unsubscribe(self) -> None:
        """Give up all partitions and leave the group."""
        self._check_running()
        if self._group is not None and self._group.session.is_subscribed:
            await self._group.unsubscribe()
        else:
            self.assign([])

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions from now on. Partitions that stay assigned keep their position.

        With a `group_id`, new ones start at the committed offsets; the group itself is not joined.
        """
        if self._group is not None and self._group.session.is_subscribed:
            raise ClientError("This consumer has subscribed, so its group assigns; unsubscribe() first.")
        self._machine.assign((TopicPartition(*tp) for tp in partitions), committed=self._group is not None)
        self._fetcher.schedule()

    def assignment(self) -> list[TopicPartition]:
        """The current assignment, manual or by the group."""
        return self._machine.assignment()

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Continue at this offset with the next poll of the partition."""
        self._machine.seek(TopicPartition(*partition), offset)
        self._fetcher.schedule()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Seek to the oldest record of these partitions, or of all assigned ones."""
        await self._seek_all(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Seek past the newest record of these partitions, or of all assigned ones."""
        await self._seek_all(partitions, LATEST)

    async def _seek_all(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> None:
        chosen = [self._machine.state(tp).tp for tp in partitions or self._machine.assignment()]
        for tp, found in (await self._list(dict.fromkeys(chosen, timestamp_ms))).items():
            self._machine.seek(tp, found.offset)
        self._fetcher.schedule()

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record that `poll` will return; looked up if it is not known yet."""
        tp = TopicPartition(*partition)
        left_over = self._ahead.first_offsets()
        if tp in left_over:
            return left_over[tp]
        deadline = self._clock.monotonic() + self._request_timeout_s
        while (position := self._machine.state(tp).position) is None:
            error = self._machine.state(tp).error
            if error is not None:
                raise error
            self._fetcher.schedule()
            await self._fetcher.wait_for_change(deadline - self._clock.monotonic(), f"the position in {tp}")
        return position

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. Fetched records are kept."""
        for tp in partitions:
            self._machine.pause(tp)

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue with paused partitions."""
        for tp in partitions:
            self._machine.resume(tp)
        self._fetcher.changed.set()
        self._fetcher.schedule()

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that are paused."""
        return self._machine.paused()

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark of the partition at its last fetch."""
        return self._machine.state(partition).high_watermark

    def metrics(self) -> dict[str, float]:
        """What this consumer did since its start, and how far it is behind; reading it costs nothing per record.

        Counters end in `_total`. Bytes are those on the wire. The lag is known after the first fetch of a partition.
        """
        lags = self._machine.lags().values()
        return {
            "records_read_total": self._machine.records_total,
            "bytes_read_total": self._machine.bytes_total,
            "fetches_total": self._machine.fetches_total,
            "records_lag": sum(lags),
            "records_lag_max": max(lags, default=0),
            "assigned_partitions": len(self._machine.assignment()),
        }

    # ------------------------------------------------------------------ metadata and offsets

    async def partitions_for_topic(self, topic: str) -> list[int]:
        """The partitions of a topic; UnknownTopicOrPartition if it does not exist."""
        layout = await self._cluster.layout(topic, auto_create=False, timeout_s=self._request_timeout_s)
        return list(layout.partitions)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The oldest offset of each partition."""
        found = await self._list(dict.fromkeys(partitions, EARLIEST))
        return {tp: each.offset for tp, each in found.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will get."""
        found = await self._list(dict.fromkeys(partitions, LATEST))
        return {tp: each.offset for tp, each in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after its time in ms; None if all are older."""
        for timestamp_ms in timestamps.values():
            if timestamp_ms < 0:
                raise ValueError(f"{timestamp_ms} is not a time in milliseconds since 1970.")
        found = await self._list(timestamps)
        return {tp: each if each.offset >= 0 else None for tp, each in found.items()}

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_running()
        return await self._fetcher.list_offsets(wanted)

    # ------------------------------------------------------------------ reading

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord[K, V]]:
        """Available records; waits up to `timeout_ms` for the first one. An empty list if none arrived.

        Within a partition records are in offset order. Raises errors that stop the consumer: a missing
        topic, a position out of range with `auto_offset_reset="none"`, a record that cannot be read, a group
        that cannot be joined. A poll also marks the records of the previous poll as processed.
        """
        limit = self._max_poll_records if max_records is None else max_records
        try:
            return await self._poll(self._clock.monotonic() + timeout_ms / 1000, limit)
        finally:
            if self._group is not None:
                self._group.poll_ended()

    async def _poll(self, deadline: float, limit: int) -> list[ConsumerRecord[K, V]]:
        while True:
            self._check_running()
            self._fetcher.changed.clear()
            if self._group is not None:
                await self._group.poll_began()
            # Records left over from an iteration have passed the interceptors already.
            if left_over := self._ahead.take(limit):
                return left_over
            records = self._machine.take(limit)
            self._fetcher.schedule()
            if records:
                return self._intercepted(records) if self._interceptors else records
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                # The pump must run even if the caller never waits.
                await self._clock.sleep(0)
                return []
            try:
                await self._fetcher.wait_for_change(left_s, "records")
            except TimeoutError:
                return []

    async def getone(self) -> ConsumerRecord[K, V]:
        """The next record, however long it takes."""
        while True:
            for record in await self.poll(timeout_ms=_ITERATION_POLL_MS, max_records=1):
                return record

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        """All records, as they arrive, until the consumer is stopped. A seek takes effect with the next record.

        A record counts as consumed when it is yielded; records that an iteration leaves over do not.
        """
        while self._fetcher.running:
            ready = self._ahead.ready
            while ready:
                yield ready.popleft()
            try:
                records = await self.poll(timeout_ms=_ITERATION_POLL_MS)
            except ClientClosed:
                if self._fetcher.running:
                    raise
                return  # stopped by another task: the normal end
            self._ahead.put(records)

    # ------------------------------------------------------------------ committing

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets, or the positions in all assigned partitions. Returns when they are committed.

        An offset is that of the next record to read. CommitFailed if this member is no longer in the group.
        """
        self._check_running()
        await self._in_group("commit").commit(offsets)

    def commit_nowait(
        self,
        callback: OnCommit | None = None,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """Commit in the background; `callback(offsets, error)` gets the outcome, with `error` None on success.
        Commits keep their order."""
        self._check_running()
        self._in_group("commit").commit_nowait(callback, offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None if there is none."""
        self._check_running()
        return await self._in_group("committed").committed(partitions)

    def group_metadata(self) -> GroupMetadata:
        """This member, for `Producer.send_offsets`: a transaction of a member that lost its partitions is refused.

        CommitFailed while a subscribed consumer is not a member.
        """
        self._check_running()
        return self._in_group("group_metadata").metadata()

    @property
    def commits_automatically(self) -> bool:
        """True if it is in a group and has `enable_auto_commit`."""
        return self._group is not None and self._group.commits_automatically

    def _in_group(self, what: str) -> GroupReader:
        if self._group is None:
            raise ClientError(f"{what}() needs a group: Consumer(..., group_id='...').")
        return self._group

    def _intercepted(self, records: list[ConsumerRecord[K, V]]) -> list[ConsumerRecord[K, V]]:
        for interceptor in self._interceptors:
            try:
                records = interceptor.on_consume(records)
            except Exception:
                log.exception("%s failed in on_consume; its result is ignored", type(interceptor).__name__)
        return records

    def _committed(self, offsets: Offsets) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception:
                log.exception("%s failed in on_commit", type(interceptor).__name__)

    def _check_running(self) -> None:
        if not self._fetcher.running:
            raise ClientClosed(
                "The consumer is not running; use `async with Consumer(...)`, or call start()."
            )
