"""Ottla's own client, over gRPC: `Producer`, `Consumer` and `Admin`, and the same blocking in `ottla_client.sync`."""

from ottla_client.admin import Admin, ConfigEntry, NewTopic, TopicDescription
from ottla_client.consumer import Consumer
from ottla_client.delivery import Delivery
from ottla_client.interceptors import ConsumerInterceptor, ProducerInterceptor
from ottla_client.listener import RebalanceListener
from ottla_client.producer import Producer
from ottla_client.record import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)

__all__ = [
    "Admin",
    "ConfigEntry",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "Delivery",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "TopicDescription",
    "TopicPartition",
]
