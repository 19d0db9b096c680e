"""Ottla's own client, over gRPC: `Producer`, `Consumer` and `Admin`, and the same blocking in `ottla_client.sync`.

Names are loaded when they are first used: a command that only needs `Admin` starts without consumer and producer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import ottla_core  # noqa: F401  # prefers compiled modules, also those of this package

if TYPE_CHECKING:
    from ottla_client.admin import Admin, ConfigEntry, NewTopic, TopicDescription
    from ottla_client.consumer import Consumer
    from ottla_client.delivery import Delivery
    from ottla_client.errors import (
        BrokerSideNotOffered,
        BufferExhausted,
        CannotConnect,
        ClientClosed,
        ClientError,
        CommitFailed,
        DeliveryTimedOut,
        GroupTrouble,
        LogTruncated,
        NoOffset,
        NotAssigned,
        NotInTransaction,
        NotServed,
        OffsetOutOfRange,
        ProducerFenced,
        RequestError,
        RequestTimedOut,
        SerializationFailed,
        TopicAlreadyExists,
        TransactionFailed,
        UnknownTopicOrPartition,
    )
    from ottla_client.interceptors import ConsumerInterceptor, ProducerInterceptor
    from ottla_client.listener import RebalanceListener
    from ottla_client.producer import Producer
    from ottla_client.record import (
        ConsumerRecord,
        GroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        ProducerRecord,
        RecordMetadata,
        TopicPartition,
    )
    from ottla_client.security import Security
    from ottla_client.settings import AdminSettings, ConsumerSettings, ProducerSettings
    from ottla_client.transform import ExactlyOnce
    from ottla_client.worker_pool import WorkerPool

_MODULES = {
    "admin": ("Admin", "ConfigEntry", "NewTopic", "TopicDescription"),
    "consumer": ("Consumer",),
    "delivery": ("Delivery",),
    "errors": (
        "BrokerSideNotOffered",
        "BufferExhausted",
        "CannotConnect",
        "ClientClosed",
        "ClientError",
        "CommitFailed",
        "DeliveryTimedOut",
        "GroupTrouble",
        "LogTruncated",
        "NoOffset",
        "NotAssigned",
        "NotInTransaction",
        "NotServed",
        "OffsetOutOfRange",
        "ProducerFenced",
        "RequestError",
        "RequestTimedOut",
        "SerializationFailed",
        "TopicAlreadyExists",
        "TransactionFailed",
        "UnknownTopicOrPartition",
    ),
    "interceptors": ("ConsumerInterceptor", "ProducerInterceptor"),
    "listener": ("RebalanceListener",),
    "producer": ("Producer",),
    "record": (
        "ConsumerRecord",
        "GroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "ProducerRecord",
        "RecordMetadata",
        "TopicPartition",
    ),
    "security": ("Security",),
    "settings": ("AdminSettings", "ConsumerSettings", "ProducerSettings"),
    "transform": ("ExactlyOnce",),
    "worker_pool": ("WorkerPool",),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Admin",
    "AdminSettings",
    "BrokerSideNotOffered",
    "BufferExhausted",
    "CannotConnect",
    "ClientClosed",
    "ClientError",
    "CommitFailed",
    "ConfigEntry",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ConsumerSettings",
    "Delivery",
    "DeliveryTimedOut",
    "ExactlyOnce",
    "GroupMetadata",
    "GroupTrouble",
    "LogTruncated",
    "NewTopic",
    "NoOffset",
    "NotAssigned",
    "NotInTransaction",
    "NotServed",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "Producer",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerRecord",
    "ProducerSettings",
    "RebalanceListener",
    "RecordMetadata",
    "RequestError",
    "RequestTimedOut",
    "Security",
    "SerializationFailed",
    "TopicAlreadyExists",
    "TopicDescription",
    "TopicPartition",
    "TransactionFailed",
    "UnknownTopicOrPartition",
    "WorkerPool",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
