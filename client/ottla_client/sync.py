"""The blocking client, for scripts, notebooks and Spark executors. [A]

Each object runs the async client on an event loop in its own thread, so it works from any thread and the caller
needs no loop. `send` does not switch threads: records are queued and moved to that thread in
bulk.

Do not use it across a fork: gRPC in the child would hang. Create a new client there, or start children by
"spawn".
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, Unpack

from ottla_client import admin, consumer, producer
from ottla_client.acl_admin import Acl, AclFilter
from ottla_client.admin import ClusterDescription, ConfigEntry, NewTopic, TopicDescription
from ottla_client.cluster_admin import ClusterLoad, LogDir, PartitionOutcome, Reassignment, ReplicaSize
from ottla_client.committer import OnCommit
from ottla_client.delivery import Delivery as AsyncDelivery
from ottla_client.errors import BufferExhausted, ClientClosed
from ottla_client.group_admin import GroupDescription, GroupListing, PartitionLag
from ottla_client.leaders import Producers
from ottla_client.listener import OnPartitions, RebalanceListener
from ottla_client.loop_thread import Blocking
from ottla_client.prepared import PreparedTransaction
from ottla_client.quota_admin import Quota, QuotaEntity
from ottla_client.record import (
    CommittedOffset,
    ConsumerRecord,
    GroupMetadata,
    Headers,
    K,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TopicPartition,
    V,
)
from ottla_client.settings import AdminSettings, ConsumerSettings, ProducerSettings
from ottla_client.transaction_admin import HangingTransaction, TransactionDescription, TransactionListing
from ottla_client.user_admin import UserDescription

_T = TypeVar("_T")

log = logging.getLogger(__name__)

#: That of the async clients.
DEFAULT_BOOTSTRAP = "127.0.0.1:9192"
#: Limits of the queue, in records and bytes, beside `buffer_memory`; when it is full, `send` waits.
_QUEUED_MAX = 10_000
_QUEUED_BYTES_MAX = 8 * 1024 * 1024
#: The wait of an iteration for records, after which it looks whether the consumer was stopped.
_ITERATION_POLL_MS = 1000
_CLOSED_BEFORE_SENT = "The producer was closed before the record could be sent."


class Delivery:
    """The future of one sent record: `result(timeout_s)` waits for it."""

    __slots__ = ("_error", "_inner", "_owner")

    def __init__(self, owner: Producer, inner: AsyncDelivery | None = None) -> None:
        self._owner = owner
        #: Set when the record is in a batch; a queued one gets it, or its error, from the loop thread.
        self._inner = inner
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._error is not None or (self._inner is not None and self._inner.done())

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Partition and offset of the record; raises its error, or TimeoutError."""
        if not self.done():
            self._owner._thread.run(self._wait(), timeout_s)
        if self._error is not None:
            raise self._error
        if self._inner is None:
            raise ClientClosed(_CLOSED_BEFORE_SENT)
        return self._inner.result()

    async def _wait(self) -> None:
        await self._owner._drained()
        if self._inner is not None:
            settled = asyncio.Event()
            self._inner.add_done_callback(lambda _delivery: settled.set())
            await settled.wait()


def _size_of(data: Any) -> int:
    """Size of serialized data; 0 for other objects, which the record limit bounds."""
    return len(data) if isinstance(data, bytes | str | bytearray) else 0


#: The arguments of `send`, by position; `on_delivery` is the last.
_Record: TypeAlias = tuple[str, Any, Any, Headers, int | None, int | None, producer.OnDelivery | None]
_Queued: TypeAlias = tuple[Delivery, _Record]


def _fail(queued: _Queued, error: Exception) -> None:
    delivery, record = queued
    delivery._error = error
    on_delivery = record[-1]
    if on_delivery is not None:
        try:
            on_delivery(None, error)
        except Exception:
            log.exception("on_delivery failed")


class _SharedProducer(producer.Producer[K, V]):
    """A producer to which any thread may append records, while its loop runs in another one.

    `lock` is held while a record is appended, and while the sender changes batches. Callbacks of users run without it.
    """

    def _share(self, lock: threading.RLock) -> None:
        """Called in the loop thread, before the start."""
        self._lock = self._sender.lock = lock
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._schedule = self._schedule_from_any_thread

    @property
    def _takes_records_at_once(self) -> bool:
        """Interceptors are called in the loop thread, and transactions begin and end there."""
        return not self._interceptors and self._transaction is None

    def _schedule_from_any_thread(self) -> None:
        if threading.get_ident() == self._loop_thread:
            self._sender.schedule()
        else:
            self._loop.call_soon_threadsafe(self._sender.schedule)

    def _put(self, *record: Any) -> AsyncDelivery | None:
        with self._lock:
            return super()._put(*record)

    def _promise(self, delivery: AsyncDelivery, on_delivery: producer.OnDelivery | None) -> None:
        def tell(metadata: RecordMetadata | None, error: Exception | None) -> None:
            if on_delivery is not None:
                self._loop.call_soon(_told, on_delivery, metadata, error)

        super()._promise(delivery, tell)


def _told(on_delivery: producer.OnDelivery, metadata: RecordMetadata | None, error: Exception | None) -> None:
    try:
        on_delivery(metadata, error)
    except Exception:
        log.exception("A delivery callback failed")


class Producer(Blocking[_SharedProducer[K, V]], Generic[K, V]):
    """`ottla_client.Producer`, blocking; the same arguments.

    >>> with Producer("127.0.0.1:9192") as p:
    ...     p.send("greetings", b"hello")
    ...     print(p.send("greetings", b"again").result().offset)

    A record goes into a batch in the caller's thread. If it must wait, for room or for the metadata of a new topic, it
    is queued, and the loop thread appends it and those after it, in order.
    """

    kind = _SharedProducer

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        **settings: Unpack[ProducerSettings[K, V]],
    ) -> None:
        super().__init__(bootstrap_servers, **settings)
        #: Records queued for the loop thread, and those that the mover has taken but not appended yet.
        self._queue: deque[_Queued] = deque()
        self._taken: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._moving = False
        #: Appends a record now; None if all are queued.
        self._put_now: Callable[..., AsyncDelivery | None] | None = None
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)

    async def _started(self) -> _SharedProducer[K, V]:
        made = await super()._started()
        if made._takes_records_at_once:
            self._put_now = partial(producer.Producer._put, made)
        return made

    def _prepared(self, made: _SharedProducer[K, V]) -> None:
        made._share(self._lock)

    async def _stopped(self) -> None:
        """Wait until all records are acknowledged or have failed, then disconnect."""
        try:
            async with asyncio.timeout(self._inner.stop_timeout_s):
                await self._drained()
        except TimeoutError:
            log.error("The producer was closed before all records were in batches.")
        finally:
            await super()._stopped()
            with self._lock:
                left = [*self._taken, *self._queue]
                self._taken.clear()
                self._queue.clear()
                self._room.notify_all()
            for each in left:
                _fail(each, ClientClosed(_CLOSED_BEFORE_SENT))

    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: producer.OnDelivery | None = None,
    ) -> Delivery:
        """Send a record. The returned delivery has the outcome; `on_delivery` is called from the client's thread.

        Waits only while the buffer is full.
        """
        with self._lock:
            if self._open and not self._moving and self._put_now is not None:
                try:
                    made = self._put_now(topic, value, key, headers, partition, timestamp_ms, on_delivery)
                except Exception:
                    made = None  # the loop thread tries again, and the delivery gets the error
                if made is not None:
                    return Delivery(self, made)
            return self._enqueue((topic, value, key, headers, partition, timestamp_ms, on_delivery))

    def _enqueue(self, record: _Record) -> Delivery:
        """Called with the lock."""
        if len(self._queue) >= _QUEUED_MAX or self._queued_bytes >= _QUEUED_BYTES_MAX:
            # Until the queue is empty, because records are not queued then. The mover is bounded by max_block_ms.
            while self._open and self._moving:
                self._room.wait(1.0)
        if not self._open:
            raise ClientClosed("The producer is not running; use `with Producer(...)`, or call start().")
        delivery = Delivery(self)
        self._queue.append((delivery, record))
        self._queued_bytes += _size_of(record[1]) + _size_of(record[2])
        wake, self._moving = not self._moving, True
        if wake:
            self._thread.loop.call_soon_threadsafe(self._start_moving)
        return delivery

    def send_many(
        self,
        topic: str,
        values: Iterable[V | None],
        keys: Iterable[K | None] | None = None,
        *,
        partition: int | None = None,
    ) -> list[Delivery]:
        """Queue many records, in order. Then call `flush()`, or check the last deliveries."""
        pairs = ((value, None) for value in values) if keys is None else zip(values, keys, strict=True)
        return [self.send(topic, value, key, partition=partition) for value, key in pairs]

    def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement. Does not linger; the same keywords as `send`."""
        extra = {"headers": headers, "partition": partition, "timestamp_ms": timestamp_ms}
        return self._thread.run(self._send_and_wait(topic, value, key, extra))

    async def _send_and_wait(self, topic: str, value: Any, key: Any, extra: dict[str, Any]) -> RecordMetadata:
        await self._drained()  # in order with earlier records
        return await self._inner.send_and_wait(topic, value, key, **extra)

    def flush(self) -> None:
        """Return when all records so far are acknowledged or have failed."""
        self._thread.run(self._flush())

    async def _flush(self) -> None:
        await self._drained()
        await self._inner.flush()

    def metrics(self) -> dict[str, float]:
        return self._call(self._inner.metrics)

    def partitions_for(self, topic: str) -> list[int]:
        return self._thread.run(self._inner.partitions_for(topic))

    # ------------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """`with p.transaction():` begins one, commits it at the end, and aborts it on an exception."""
        entered = self._inner.transaction()
        self._thread.run(self._in_order(entered.__aenter__))
        try:
            yield
        except BaseException as error:
            self._thread.run(self._in_order(partial(entered.__aexit__, type(error), error, None)))
            raise
        self._thread.run(self._in_order(partial(entered.__aexit__, None, None, None)))

    def begin(self) -> None:
        """Begin a transaction: all records and offsets from here on belong to it."""
        self._thread.run(self._in_order(self._inner.begin))

    def commit(self) -> None:
        """Commit the transaction; TransactionFailed if one of its records was not written."""
        self._thread.run(self._in_order(self._inner.commit))

    def prepare(self) -> PreparedTransaction | None:
        """Leave the transaction open for another process, which commits or aborts it; None if nothing was written."""
        return self._thread.run(self._in_order(self._inner.prepare))

    def abort(self) -> None:
        """Abort the transaction."""
        self._thread.run(self._in_order(self._inner.abort))

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata | str
    ) -> None:
        """Commit offsets of a consumer group with the transaction."""
        self._thread.run(self._inner.send_offsets(offsets, group))

    async def _in_order(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """After all records that were queued before."""
        await self._drained()
        return await call()

    # ------------------------------------------------------------------ in the loop thread

    def _start_moving(self) -> None:
        self._mover = self._inner._cluster.background.spawn(self._move(), "record mover")

    async def _move(self) -> None:
        """Append queued records to batches until the queue is empty; waits like the async `send`."""
        while True:
            with self._lock:
                taken, self._queue, self._queued_bytes = self._queue, deque(), 0
                self._moving = bool(taken)
                self._room.notify_all()
            if not taken:
                return
            self._taken = taken
            while taken:
                delivery, (topic, value, key, headers, partition, timestamp_ms, on_delivery) = taken[0]
                began = self._inner._clock.monotonic()
                try:
                    delivery._inner = await self._inner.send(
                        topic,
                        value,
                        key,
                        headers=headers,
                        partition=partition,
                        timestamp_ms=timestamp_ms,
                        on_delivery=on_delivery,
                    )
                except Exception as error:
                    _fail(taken[0], error)
                    self._inner._record_failed(error)
                    if self._inner._clock.monotonic() - began > self._inner._max_block_s / 2:
                        self._fail_line(taken, error)
                taken.popleft()

    def _fail_line(self, taken: deque[_Queued], error: Exception) -> None:
        """Fail the first record and all queued ones of its topic: each would wait as long, one after the other."""
        _, (topic, *_) = first = taken.popleft()
        line = [queued for queued in taken if queued[1][0] == topic]
        others = [queued for queued in taken if queued[1][0] != topic]
        taken.clear()
        taken.extend((first, *others))
        for queued in line:
            _fail(queued, error)

    async def _drained(self) -> None:
        """Wait until all records queued so far are in batches."""
        while self._moving:
            mover = getattr(self, "_mover", None)
            if mover is None or mover.done():
                await self._inner._clock.sleep(0)  # the mover is about to start
            else:
                await asyncio.wait((mover,))


class Consumer(Blocking[consumer.Consumer[K, V]], Generic[K, V]):
    """`ottla_client.Consumer`, blocking; the same arguments.

    >>> with Consumer("127.0.0.1:9192", group_id="greeters") as c:
    ...     c.subscribe(["greetings"])
    ...     for record in c:
    ...         print(record.value)

    Rebalance listeners are called from another thread, while `poll` waits for them: they may call this consumer.
    """

    kind = consumer.Consumer

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        **settings: Unpack[ConsumerSettings[K, V]],
    ) -> None:
        super().__init__(bootstrap_servers, **settings)

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        self._call(self._inner.assign, list(partitions))

    def assignment(self) -> list[TopicPartition]:
        return self._call(self._inner.assignment)

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        self._call(self._inner.seek, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        self._thread.run(self._inner.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        self._thread.run(self._inner.seek_to_end(*partitions))

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        return self._thread.run(self._inner.position(partition))

    def pause(self, *partitions: TopicPartition) -> None:
        self._call(self._inner.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._call(self._inner.resume, *partitions)

    def paused(self) -> list[TopicPartition]:
        return self._call(self._inner.paused)

    def highwater(self, partition: TopicPartition) -> int | None:
        return self._call(self._inner.highwater, partition)

    def metrics(self) -> dict[str, float]:
        return self._call(self._inner.metrics)

    def partitions_for_topic(self, topic: str) -> list[int]:
        return self._thread.run(self._inner.partitions_for_topic(topic))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._thread.run(self._inner.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._thread.run(self._inner.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._thread.run(self._inner.offsets_for_times(timestamps))

    def subscribe(
        self, topics: str | re.Pattern[str] | Iterable[str], listener: RebalanceListener | None = None
    ) -> None:
        self._call(self._inner.subscribe, topics, None if listener is None else _in_threads(listener))

    def subscription(self) -> list[str]:
        return self._call(self._inner.subscription)

    def unsubscribe(self) -> None:
        self._thread.run(self._inner.unsubscribe())

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        self._thread.run(self._inner.commit(offsets))

    def commit_nowait(
        self,
        callback: OnCommit | None = None,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """`commit` in the background, in order with others. `callback(offsets, error)` gets the outcome; it is
        called from the client's thread, and must not call the client."""
        self._call(self._inner.commit_nowait, callback, offsets)

    def group_metadata(self) -> GroupMetadata:
        return self._call(self._inner.group_metadata)

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return self._thread.run(self._inner.committed(list(partitions)))

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[ConsumerRecord[K, V]]:
        return self._thread.run(self._inner.poll(timeout_ms, max_records))

    def getone(self) -> ConsumerRecord[K, V]:
        return self._thread.run(self._inner.getone())

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """All records, as they arrive, until the consumer is stopped. The next poll returns left-over records first."""
        while self._open:
            try:
                self._thread.run(self._read_ahead())
            except ClientClosed:
                if self._open:
                    raise
                return  # stopped by another thread: the normal end
            # Yielded records count as consumed; the rest goes back if the loop is left, and before a commit.
            ready = self._inner._ahead.ready
            while ready:
                try:
                    record = ready.popleft()
                except IndexError:
                    break  # the loop thread has dropped the rest, after a seek or a revocation
                yield record

    async def _read_ahead(self) -> None:
        self._inner._ahead.put(await self._inner.poll(timeout_ms=_ITERATION_POLL_MS))


class Admin(Blocking[admin.Admin]):
    """`ottla_client.Admin`, blocking; the same arguments.

    >>> with Admin("127.0.0.1:9192") as a:
    ...     a.create_topics(["greetings"])
    """

    kind = admin.Admin

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = DEFAULT_BOOTSTRAP,
        **settings: Unpack[AdminSettings],
    ) -> None:
        super().__init__(bootstrap_servers, **settings)

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> list[TopicDescription]:
        return self._thread.run(self._inner.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> None:
        self._thread.run(self._inner.delete_topics(names))

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        return self._thread.run(self._inner.list_topics(include_internal=include_internal))

    def describe_topics(
        self, names: Iterable[str] | None = None, *, missing_ok: bool = False
    ) -> list[TopicDescription]:
        return self._thread.run(self._inner.describe_topics(names, missing_ok=missing_ok))

    def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        replica_assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        self._thread.run(
            self._inner.create_partitions(
                topic, total, replica_assignments=replica_assignments, validate_only=validate_only
            )
        )

    def describe_configs(
        self, *, topic: str | None = None, broker: int | None = None, group: str | None = None
    ) -> list[ConfigEntry]:
        return self._thread.run(self._inner.describe_configs(topic=topic, broker=broker, group=group))

    def alter_configs(
        self,
        configs: Mapping[str, str | None],
        *,
        topic: str | None = None,
        broker: int | None = None,
        group: str | None = None,
        all_brokers: bool = False,
        kind: str = "set",
        validate_only: bool = False,
    ) -> None:
        self._thread.run(
            self._inner.alter_configs(
                configs,
                topic=topic,
                broker=broker,
                group=group,
                all_brokers=all_brokers,
                kind=kind,
                validate_only=validate_only,
            )
        )

    def list_offsets(
        self, wanted: Mapping[TopicPartition, str | int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._thread.run(self._inner.list_offsets(wanted, isolation_level=isolation_level))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return self._thread.run(self._inner.delete_records(before))

    def describe_cluster(self) -> ClusterDescription:
        return self._thread.run(self._inner.describe_cluster())

    def describe_users(self, users: Iterable[str] = ()) -> list[UserDescription]:
        return self._thread.run(self._inner.describe_users(users))

    def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        iterations: int = 4096,
    ) -> None:
        self._thread.run(
            self._inner.set_password(user, password, mechanisms=mechanisms, iterations=iterations)
        )

    def delete_user(self, user: str, mechanisms: Iterable[str] | None = None) -> None:
        self._thread.run(self._inner.delete_user(user, mechanisms))

    def describe_brokers(self, *, sizes: bool = True) -> ClusterLoad:
        return self._thread.run(self._inner.describe_brokers(sizes=sizes))

    def describe_replicas(self, topics: Iterable[str] | None = None) -> list[ReplicaSize]:
        return self._thread.run(self._inner.describe_replicas(topics))

    def describe_log_dirs(self, topics: Iterable[str] | None = None) -> list[LogDir]:
        return self._thread.run(self._inner.describe_log_dirs(topics))

    def describe_metrics(
        self, names: Iterable[str] = (), *, timeout_s: float | None = None
    ) -> dict[int, str]:
        return self._thread.run(self._inner.describe_metrics(names, timeout_s=timeout_s))

    def alter_replica_log_dirs(
        self, targets: Mapping[tuple[int, TopicPartition], str]
    ) -> list[PartitionOutcome]:
        return self._thread.run(self._inner.alter_replica_log_dirs(targets))

    def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, keep_replication_factor: bool = False
    ) -> list[PartitionOutcome]:
        return self._thread.run(
            self._inner.alter_partition_reassignments(
                targets, keep_replication_factor=keep_replication_factor
            )
        )

    def list_partition_reassignments(self, topics: Iterable[str] | None = None) -> list[Reassignment]:
        return self._thread.run(self._inner.list_partition_reassignments(topics))

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> list[PartitionOutcome]:
        return self._thread.run(self._inner.elect_leaders(partitions, unclean=unclean))

    def create_acls(self, acls: Iterable[Acl]) -> None:
        self._thread.run(self._inner.create_acls(acls))

    def describe_acls(self, wanted: AclFilter | None = None) -> list[Acl]:
        return self._thread.run(self._inner.describe_acls(wanted))

    def delete_acls(self, filters: Iterable[AclFilter]) -> list[Acl]:
        return self._thread.run(self._inner.delete_acls(filters))

    def describe_quotas(self, entity: QuotaEntity | None = None) -> list[Quota]:
        return self._thread.run(self._inner.describe_quotas(entity))

    def alter_quotas(
        self, entity: QuotaEntity, values: Mapping[str, float], *, remove: Iterable[str] = ()
    ) -> None:
        self._thread.run(self._inner.alter_quotas(entity, values, remove=remove))

    def cordon_broker(self, broker: int) -> None:
        self._thread.run(self._inner.cordon_broker(broker))

    def uncordon_broker(self, broker: int) -> None:
        self._thread.run(self._inner.uncordon_broker(broker))

    def unregister_broker(self, broker: int) -> None:
        self._thread.run(self._inner.unregister_broker(broker))

    def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        return self._thread.run(self._inner.list_groups(states=states, types=types))

    def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        return self._thread.run(self._inner.describe_groups(groups))

    def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._thread.run(self._inner.group_offsets(group, partitions))

    def group_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        return self._thread.run(self._inner.group_lag(group))

    def group_lag_seconds(self, group: str, topics: Iterable[str] = ()) -> dict[TopicPartition, float]:
        return self._thread.run(self._inner.group_lag_seconds(group, topics))

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int = 0,
        prefix: str = "",
    ) -> list[TransactionListing]:
        return self._thread.run(
            self._inner.list_transactions(
                states=states, producer_ids=producer_ids, min_duration_ms=min_duration_ms, prefix=prefix
            )
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> list[TransactionDescription]:
        return self._thread.run(self._inner.describe_transactions(transactional_ids))

    def fence_producers(self, transactional_ids: Iterable[str]) -> None:
        self._thread.run(self._inner.fence_producers(transactional_ids))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        return self._thread.run(self._inner.describe_producers(partitions))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, min_duration_ms: int = 900_000
    ) -> list[HangingTransaction]:
        return self._thread.run(
            self._inner.find_hanging_transactions(partitions, min_duration_ms=min_duration_ms)
        )

    def abort_transaction(self, partition: TopicPartition | tuple[str, int], first_offset: int) -> None:
        self._thread.run(self._inner.abort_transaction(partition, first_offset))

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        self._thread.run(self._inner.alter_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        self._thread.run(self._inner.delete_group_offsets(group, partitions))

    def delete_groups(self, groups: Iterable[str]) -> None:
        self._thread.run(self._inner.delete_groups(groups))


def _in_threads(listener: RebalanceListener) -> RebalanceListener:
    """The listener, called in a thread: inside the loop, a callback that calls the consumer would deadlock."""

    def moved(callback: OnPartitions | None) -> OnPartitions | None:
        if callback is None:
            return None

        async def call(partitions: Sequence[TopicPartition]) -> None:
            await asyncio.to_thread(callback, partitions)

        return call

    return RebalanceListener(moved(listener.on_assigned), moved(listener.on_revoked), moved(listener.on_lost))


__all__ = ["Admin", "BufferExhausted", "Consumer", "Delivery", "Producer"]
