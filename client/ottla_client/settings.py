"""The settings of the clients as types, for the blocking clients and for callers that build settings first. [P]

    settings: ConsumerSettings[str, Order] = {"group_id": "billing", "value_deserializer": Order.parse}
    with Consumer(address, **settings) as consumer: ...

The async clients have the same ones as arguments; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypedDict

from ottla_client.assignors import Assignor
from ottla_client.interceptors import ConsumerInterceptor, ProducerInterceptor
from ottla_client.partitioner import PartitionCallable
from ottla_client.record import K, V
from ottla_client.security import Security


class AdminSettings(TypedDict, total=False):
    request_timeout_ms: int
    client_id: str
    security: Security | Mapping[str, str] | None


class ProducerSettings(TypedDict, Generic[K, V], total=False):
    acks: str | int
    linger_ms: float
    batch_size: int
    buffer_memory: int
    compression: str
    key_serializer: Callable[[K], bytes | None] | str | None
    value_serializer: Callable[[V], bytes | None] | str | None
    partitioner: str | PartitionCallable
    interceptors: Sequence[ProducerInterceptor]
    retries: int
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_block_ms: int
    max_in_flight: int
    max_request_size: int
    enable_idempotence: bool | None
    metadata_max_age_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int
    client_id: str
    security: Security | Mapping[str, str] | None


class ConsumerSettings(TypedDict, Generic[K, V], total=False):
    key_deserializer: Callable[[bytes], K] | str | None
    value_deserializer: Callable[[bytes], V] | str | None
    auto_offset_reset: str
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    prefetch_max_bytes: int
    isolation_level: str
    check_crcs: bool
    client_rack: str
    interceptors: Sequence[ConsumerInterceptor]
    request_timeout_ms: int
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    metadata_max_age_ms: int
    client_id: str
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str
    session_timeout_ms: int | None
    heartbeat_interval_ms: int | None
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] | None
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    security: Security | Mapping[str, str] | None
