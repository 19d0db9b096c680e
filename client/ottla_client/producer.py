"""The producer: `send` puts a record into a batch, and batches are sent in the background. [S]

The public API: settings, serialization, partitioning, deliveries. `accumulator` collects records into batches,
`sender` sends them. `send` is the hot path of the client: everything in `_put` costs time per record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic

from ottla_client.accumulator import Accumulator
from ottla_client.connected import Connected, check_positive
from ottla_client.delivery import Delivery, Dropped
from ottla_client.errors import (
    BufferExhausted,
    ClientClosed,
    ClientError,
    SerializationFailed,
    UnknownTopicOrPartition,
)
from ottla_client.interceptors import ProducerInterceptor
from ottla_client.partitioner import PartitionCallable, partitioner_for
from ottla_client.prepared import PreparedTransaction
from ottla_client.producer_machine import Policy, ProducerMachine
from ottla_client.record import (
    GroupMetadata,
    Headers,
    K,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    V,
)
from ottla_client.security import Security
from ottla_client.sender import Sender
from ottla_client.serializers import Serializer, bytes_serializer, serializer_for
from ottla_client.transaction_machine import TransactionMachine
from ottla_client.transactions import Transactions
from ottla_core.errors import UnsupportedCompressionType
from ottla_core.ids import TopicPartition
from ottla_core.records.compression import Compression
from ottla_core.records.encoded import EncodedRecords

log = logging.getLogger(__name__)

OnDelivery = Callable[[RecordMetadata | None, Exception | None], None]

#: A tight loop of sends yields to the event loop after so many, so that batches are sent and timers run.
_SENDS_PER_TURN = 512
_ACKS: dict[str | int, int] = {"all": -1, "-1": -1, "1": 1, "0": 0, -1: -1, 1: 1, 0: 0}
#: The broker recognises duplicates among this many batches per partition.
_IDEMPOTENT_IN_FLIGHT_MAX = 5


class Producer(Connected, Generic[K, V]):
    """Sends records to topics.

    >>> async with Producer("127.0.0.1:9192") as producer:
    ...     await producer.send("greetings", b"hello")              # batched, sent soon
    ...     delivery = await producer.send("greetings", b"again", key=b"k")
    ...     print((await delivery).offset)                          # waits for the acknowledgement
    ...     await producer.send_and_wait("greetings", b"bye")       # both in one

    Leaving the block waits until all records are acknowledged. By default, retries neither lose nor duplicate records:
    `acks="all"` and `enable_idempotence=True`.

    Arguments, with Kafka's names and meanings:

    * `security`: TLS and login: a `Security`, or a mapping with Kafka's names (`security.protocol`, ...).
    * `acks`: "all" waits for all in-sync replicas, 1 for the leader, 0 for none.
    * `linger_ms`: how long a batch may wait for more records. `batch_size`: bytes at which it is sent at once;
      memory grows as it fills. The default is larger than Kafka's 16 KiB, because each gRPC message has a fixed cost.
    * `buffer_memory`: bytes of records not yet acknowledged; when it is used up, `send` waits up to
      `max_block_ms`.
    * `compression`: "none", "gzip", "snappy", "lz4" or "zstd", per batch.
    * `key_serializer`, `value_serializer`: "bytes", "str", "int", "json", or a callable to bytes.
    * `partitioner`: "default" (murmur2 of the key as Java's, else sticky), "sticky", "round_robin", or a
      callable `(key, all_partitions, available_partitions) -> partition`.
    * `delivery_timeout_ms`: a record not acknowledged by then fails. Within it, failures are retried
      (`retries` times, pausing `retry_backoff_ms`, doubled up to `retry_backoff_max_ms`).
    * `request_timeout_ms`: if a broker does not answer a request in time, the client reconnects.
    * `max_in_flight`: unanswered batches per partition. Without idempotence, more than 1 can reorder records on
      retries.
    * `max_request_size`: the largest request, hence the largest record.
    * `client_id`: the name under which brokers count and log this client, and under which it has quotas.

    With a `transactional_id` records are sent in transactions, which consumers with
    `isolation_level="read_committed"` see as a whole or not at all:

    >>> async with Producer("127.0.0.1:9192", transactional_id="billing-0") as producer:
    ...     async with producer.transaction():                      # commits at its end, aborts on an exception
    ...         await producer.send("invoices", b"...")
    ...         await producer.send_offsets({TopicPartition("orders", 0): 43}, consumer.group_metadata())

    The producer that starts last owns the transactional id; earlier ones get ProducerFenced. A transaction that is open
    for longer than `transaction_timeout_ms` is aborted by its coordinator, and the producer is fenced.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "127.0.0.1:9192",
        *,
        acks: str | int = "all",
        linger_ms: float = 5,
        batch_size: int = 262_144,
        buffer_memory: int = 32 * 1024 * 1024,
        compression: str = "none",
        key_serializer: Callable[[K], bytes | None] | str | None = None,
        value_serializer: Callable[[V], bytes | None] | str | None = None,
        partitioner: str | PartitionCallable = "default",
        interceptors: Sequence[ProducerInterceptor] = (),
        retries: int = 2**31 - 1,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1000,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        max_block_ms: int = 60_000,
        max_in_flight: int = 5,
        max_request_size: int = 1024 * 1024,
        enable_idempotence: bool | None = None,
        metadata_max_age_ms: int = 300_000,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        client_id: str = "ottla-producer",
        security: Security | Mapping[str, str] | None = None,
    ) -> None:
        if acks not in _ACKS:
            raise ValueError(f"acks={acks!r}: choose 0, 1 or 'all'.")
        self._acks = _ACKS[acks]
        check_positive(
            batch_size=batch_size,
            buffer_memory=buffer_memory,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight=max_in_flight,
            max_request_size=max_request_size,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        idempotent = _check_idempotence(enable_idempotence, self._acks, max_in_flight, retries)
        if transactional_id is not None and not (transactional_id and idempotent):
            raise ValueError("transactional_id needs a name, acks='all' and enable_idempotence=True.")
        super().__init__(
            bootstrap_servers,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            security=security,
            client_id=client_id,
        )
        self._partitioner = partitioner_for(partitioner, self._chance)
        self._batch_bytes = min(batch_size, max_request_size)
        self._accumulator = Accumulator(
            batch_bytes=batch_size,
            linger_s=linger_ms / 1000,
            buffer_bytes=buffer_memory,
            delivery_timeout_s=delivery_timeout_ms / 1000,
            record_bytes_max=max_request_size,
            compression=_compression_named(compression),
            on_close=lambda tp: self._partitioner.batch_closed(*tp),
        )
        self._transaction = None if transactional_id is None else TransactionMachine(transactional_id)
        self._machine = ProducerMachine(
            self._accumulator,
            Policy(
                max_in_flight=max_in_flight,
                retries=retries,
                backoff_s=self._backoff_s,
                backoff_max_s=self._backoff_max_s,
                request_bytes=max_request_size,
                idempotent=idempotent,
            ),
            self._chance.fraction,
            self._transaction,
        )
        self._key_serializer = serializer_for(key_serializer)
        self._value_serializer = serializer_for(value_serializer)
        self._interceptors = tuple(interceptors)
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        #: By then every record has been acknowledged or has failed.
        self.stop_timeout_s = self._delivery_timeout_s + self._request_timeout_s
        self._max_block_s = max_block_ms / 1000
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            self._machine,
            self._clock,
            acks=self._acks,
            request_timeout_s=self._request_timeout_s,
            transactional_id=transactional_id or "",
        )
        self._transactions = self._new_transactions(transaction_timeout_ms)
        self._cache_for_the_hot_path()

    def _cache_for_the_hot_path(self) -> None:
        self._sends = 0
        self._topics = self._sender.topics
        self._append = self._accumulator.append
        self._choose = self._partitioner.choose
        self._wall_ms = self._clock.wall_ms
        self._schedule = self._sender.schedule

    def _new_transactions(self, transaction_timeout_ms: int) -> Transactions | None:
        if self._transaction is None:
            return None
        return Transactions(
            self._cluster,
            self._clock,
            self._transaction,
            self._machine,
            self._sender,
            transaction_timeout_ms=transaction_timeout_ms,
            timeout_s=self._max_block_s,
        )

    # ------------------------------------------------------------------ start and stop

    async def start(self) -> None:
        self._sender.listen()
        await super().start()
        self._sender.start()
        if self._transactions is not None:
            await self._transactions.start()

    async def stop(self) -> None:
        """Wait until all records are acknowledged or have failed, then disconnect. Bounded by `stop_timeout_s`.

        A transaction that is still open is aborted.
        """
        try:
            if self._transactions is not None and self._sender.running:
                await self._transactions.stop()
            await self._sender.stop(self.stop_timeout_s)
        finally:
            await super().stop()

    # ------------------------------------------------------------------ sending

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Put a record into a batch. Waits only for room in the buffer, or for the metadata of a new topic.

        Await the returned delivery to know that the record was written; or pass `on_delivery(metadata, error)`,
        which is called from the event loop with one of the two. Unhandled failures are logged.
        """
        if self._interceptors:
            kept = self._intercepted(topic, value, key, headers, partition, timestamp_ms)
            if kept is None:
                return self._dropped(topic, timestamp_ms, on_delivery)
            topic, value, key, headers, partition, timestamp_ms = kept
        try:
            delivery = self._put(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        except UnknownTopicOrPartition:
            await self._look_for(topic, partition)
            delivery = self._put(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if delivery is None:
            delivery = await self._put_when_possible(
                topic, value, key, headers, partition, timestamp_ms, on_delivery
            )
        self._sends += 1
        if self._sends >= _SENDS_PER_TURN:
            self._sends = 0
            await self._clock.sleep(0)
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement.

        Does not linger: a waiting caller sends no further records. Records of other tasks still share the
        batch.
        """
        delivery = await self.send(
            topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        delivery.hasten(self._sender.hasten)
        return await delivery

    def send_nowait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """`send` for callers that cannot wait: BufferExhausted if there is no room, or the topic is not known yet."""
        if self._interceptors:
            kept = self._intercepted(topic, value, key, headers, partition, timestamp_ms)
            if kept is None:
                return self._dropped(topic, timestamp_ms, on_delivery)
            topic, value, key, headers, partition, timestamp_ms = kept
        delivery = self._put(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if delivery is None:
            if topic in self._topics:
                raise BufferExhausted("buffer_memory is used up; wait for acknowledgements, or use send().")
            raise BufferExhausted(
                f"Topic {topic!r} is not known yet; call partitions_for() first, or use send()."
            )
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Iterable[V | None],
        keys: Iterable[K | None] | None = None,
        *,
        partition: int | None = None,
    ) -> list[Delivery]:
        """Send many records, in order; the fastest way for bulk. Then await `flush()`, or the last deliveries."""
        deliveries: list[Delivery] = []
        pairs = ((value, None) for value in values) if keys is None else zip(values, keys, strict=True)
        if self._interceptors:
            for value, key in pairs:
                deliveries.append(await self.send(topic, value, key, partition=partition))
            return deliveries
        await self._look_for(topic, partition)
        put, keep = self._put, deliveries.append
        for value, key in pairs:
            delivery = put(topic, value, key, (), partition, None, None)
            if delivery is None:
                delivery = await self._put_when_possible(topic, value, key, (), partition, None, None)
            keep(delivery)
            if not len(deliveries) % _SENDS_PER_TURN:
                await self._clock.sleep(0)
        return deliveries

    async def send_encoded(self, topic: str, partition: int, records: EncodedRecords) -> Delivery:
        """Send a batch that the caller has encoded; the delivery is that of its first record.

        For callers that encode columns, thousands of records at a time; interceptors and `compression` do not apply.
        The batch keeps its place among the other records of its partition. Waits only for room or metadata.
        """
        deadline = self._clock.monotonic() + self._max_block_s
        while True:
            if self._transaction is not None:
                self._transaction.check_write()
            known = self._topics.get(topic)
            left_s = deadline - self._clock.monotonic()
            if known is None:
                self._check_running()
                await self._cluster.layout(topic, auto_create=True, timeout_s=left_s)
                continue
            if not 0 <= partition < len(known.lanes):
                await self._look_for(topic, partition)
                if not 0 <= partition < len(known.lanes):
                    raise _unknown_partition(topic, partition, len(known.lanes))
            batch = self._accumulator.append_encoded(known.lanes[partition], records, self._clock.monotonic())
            self._sender.schedule()
            if batch is not None:
                return Delivery(batch, 0, records.max_timestamp_ms)
            await self._sender.room(left_s)

    def batch_bytes(self, topic: str) -> int:
        """Maximum size of encoded batches for this topic: `batch_size`, or less after a broker refused a larger one."""
        lanes = self._topics[topic].lanes if topic in self._topics else ()
        return min((self._batch_bytes, *map(self._accumulator.batch_bytes, lanes)))

    async def flush(self) -> None:
        """Send all buffered records; return when they are acknowledged or have failed. Does not wait for later ones."""
        self._check_running()
        await self._sender.flush()

    def metrics(self) -> dict[str, float]:
        """What this producer did since its start, and what it buffers now; reading it costs nothing per record.

        Counters end in `_total`. Bytes are those before compression.
        """
        totals = self._accumulator.totals
        return {
            "records_sent_total": totals.records_sent,
            "bytes_sent_total": totals.bytes_sent,
            "batches_sent_total": totals.batches_sent,
            "records_failed_total": totals.records_failed,
            "retries_total": totals.retries,
            "buffer_used_bytes": self._accumulator.used_bytes,
            "unsettled_batches": len(self._accumulator.unsettled),
        }

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        self._check_running()
        layout = await self._cluster.layout(topic, auto_create=True, timeout_s=self._max_block_s)
        return list(layout.partitions)

    # ------------------------------------------------------------------ transactions

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """`async with producer.transaction():` begins one, commits it at the end, and aborts it on an exception."""
        return self._in_transactions("transaction").transaction()

    async def begin(self) -> None:
        """Begin a transaction: all records and offsets from here on belong to it."""
        self._in_transactions("begin").machine.begin()

    async def commit(self) -> None:
        """Wait for all records of the transaction, and commit it. Returns when the decision is stored.

        TransactionFailed if a record was not written: abort() then. After a timeout it is unknown whether the
        transaction is committed; call commit() again to find out.
        """
        await self._in_transactions("commit").commit()

    async def prepare(self) -> PreparedTransaction | None:
        """Wait for all records of the transaction, and leave it open for another process, which commits or aborts it
        (`ottla_client.prepared.PreparedTransactions`). Then close the producer. None if nothing was written.
        """
        return await self._in_transactions("prepare").prepare()

    async def abort(self) -> None:
        """Abort the transaction. Records that are not acknowledged yet fail with TransactionFailed."""
        await self._in_transactions("abort").abort()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata | str
    ) -> None:
        """Commit offsets of a consumer group with the transaction: all or nothing, together with its records.

        `group` is `consumer.group_metadata()`, so that a consumer that lost its partitions meanwhile is refused
        (CommitFailed); or the name of a group whose offsets nobody else commits.
        """
        await self._in_transactions("send_offsets").send_offsets(offsets, group)

    def _record_failed(self, error: Exception) -> None:
        """A record could not be sent, and its caller may not know: an open transaction must not be committed."""
        if self._transaction is not None:
            self._transaction.failed(error)

    def _in_transactions(self, what: str) -> Transactions:
        if self._transactions is None:
            raise ClientError(f"{what}() needs a transactional id: Producer(..., transactional_id='...').")
        self._check_running()
        return self._transactions

    # ------------------------------------------------------------------ appending

    def _put(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery | None:
        """Append one record. None if it must wait for the topic's layout or for room."""
        if self._transaction is not None:
            self._transaction.check_write()
        known = self._topics.get(topic)
        if known is None:
            self._check_running()
            return None
        if value is not None and (self._value_serializer is not None or value.__class__ is not bytes):
            value = _serialized(self._value_serializer, value, "value", topic)
        if key is not None and (self._key_serializer is not None or key.__class__ is not bytes):
            key = _serialized(self._key_serializer, key, "key", topic)
        if partition is None:
            partition = self._choose(topic, key, known.partitions, known.available)
        if not 0 <= partition < len(known.lanes):
            raise _unknown_partition(topic, partition, len(known.lanes))
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        lane = known.lanes[partition]
        batch = self._append(lane, timestamp_ms, key, value, headers)
        if batch is None:
            batch = self._append(lane, timestamp_ms, key, value, headers, self._clock.monotonic())
            self._schedule()
            if batch is None:
                return None
        delivery = Delivery(batch, batch.count - 1, timestamp_ms)
        if on_delivery is not None or self._interceptors:
            self._promise(delivery, on_delivery)
        return delivery

    async def _look_for(self, topic: str, partition: int | None) -> None:
        """Refresh the topic: an unknown partition may have been added since the last refresh."""
        known = self._topics.get(topic)
        if known is not None and partition is not None and partition >= len(known.lanes):
            await self._cluster.refresh([topic], timeout_s=self._max_block_s)

    async def _put_when_possible(self, topic: str, *record: Any) -> Delivery:
        """Like `_put`, but waits for metadata or room, up to `max_block_ms`."""
        deadline = self._clock.monotonic() + self._max_block_s
        while True:
            left_s = deadline - self._clock.monotonic()
            if topic not in self._topics:
                await self._cluster.layout(topic, auto_create=True, timeout_s=left_s)
            else:
                await self._sender.room(left_s)
            delivery = self._put(topic, *record)
            if delivery is not None:
                return delivery

    def _intercepted(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[str, Any, Any, Headers, int | None, int | None] | None:
        """What is to be sent; None if an interceptor drops the record."""
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        for interceptor in self._interceptors:
            try:
                made = interceptor.on_send(record)
            except Exception:
                log.exception("%s failed in on_send; its result is ignored", type(interceptor).__name__)
                continue
            if made is None:
                return None
            record = made
        return record.topic, record.value, record.key, record.headers, record.partition, record.timestamp_ms

    def _dropped(self, topic: str, timestamp_ms: int | None, on_delivery: OnDelivery | None) -> Delivery:
        dropped = Dropped(topic, self._wall_ms() if timestamp_ms is None else timestamp_ms)
        if on_delivery is not None:
            dropped.add_done_callback(lambda settled: on_delivery(settled.result(), None))
        return dropped

    def _promise(self, delivery: Delivery, on_delivery: OnDelivery | None) -> None:
        """Call the callback and the interceptors when the record is settled."""
        told_to: list[OnDelivery] = [interceptor.on_acknowledgement for interceptor in self._interceptors]
        if on_delivery is not None:
            told_to.append(on_delivery)

        def tell(settled: Delivery) -> None:
            error = settled.exception()
            metadata = None if error is not None else settled.result()
            for tell_one in told_to:
                try:
                    tell_one(metadata, error)
                except Exception:
                    log.exception("A delivery callback failed")

        delivery.add_done_callback(tell)

    def _check_running(self) -> None:
        if not self._sender.running:
            raise ClientClosed(
                "The producer is not running; use `async with Producer(...)`, or call start()."
            )


def _unknown_partition(topic: str, partition: int, count: int) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"Topic {topic!r} has partitions 0 to {count - 1}, not {partition}.")


def _compression_named(name: str) -> Compression:
    try:
        return Compression.named(name)
    except UnsupportedCompressionType as unknown:
        raise ValueError(unknown.message) from None


def _serialized(serializer: Serializer | None, data: Any, what: str, topic: str) -> bytes | None:
    try:
        return (serializer or bytes_serializer)(data)
    except Exception as error:
        sentence = f"The {what} for topic {topic!r} could not be serialized: {error}."
        raise SerializationFailed(sentence) from error


def _check_idempotence(wanted: bool | None, acks: int, max_in_flight: int, retries: int) -> bool:
    """On unless other settings exclude it; ValueError if it was requested together with those."""
    obstacles = [
        text
        for holds, text in (
            (acks != -1, "acks='all'"),
            (not 1 <= max_in_flight <= _IDEMPOTENT_IN_FLIGHT_MAX, "max_in_flight from 1 to 5"),
            (retries < 1, "retries"),
        )
        if holds
    ]
    if wanted and obstacles:
        raise ValueError(f"enable_idempotence=True needs {' and '.join(obstacles)}.")
    return not obstacles if wanted is None else wanted
