"""Errors that the client itself raises. [P]

Errors of a broker arrive as subclasses of `ottla_core.errors.RequestError`, with Kafka's code and name.
The errors here never crossed the wire. All messages are sentences that say what to do.
"""

from __future__ import annotations

from ottla_core.errors import (
    OffsetOutOfRange,
    ProducerFenced,
    RequestError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

__all__ = [
    "BrokerSideNotOffered",
    "BufferExhausted",
    "ClientClosed",
    "ClientError",
    "CannotConnect",
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
]


class ClientError(Exception):
    """Base of all errors that the client itself raises."""


class CannotConnect(ClientError):
    """No broker answered at any of the addresses."""


class NotServed(CannotConnect):
    """The server does not know the call: it is an older version, or not an Ottla broker."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or never started."""


class BufferExhausted(ClientError):
    """`buffer_memory` is used up: records are sent faster than the brokers take them."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`. It may or may not have been written."""


class SerializationFailed(ClientError):
    """A serializer or deserializer could not handle a key or a value."""


class NotAssigned(ClientError):
    """The partition is not assigned to the consumer."""


class NoOffset(ClientError):
    """The consumer has no valid position, and `auto_offset_reset="none"` forbids a reset."""


class LogTruncated(NoOffset):
    """Records that were read are no longer in the log, and `auto_offset_reset="none"` forbids a reset."""


class GroupTrouble(ClientError):
    """This consumer cannot be a member of its group; the sentence says why."""


class BrokerSideNotOffered(GroupTrouble):
    """The coordinator does not take this member with the broker-side protocol; the classic one may work."""


class CommitFailed(ClientError):
    """Offsets were not committed: the partitions have been reassigned to other members."""


class NotInTransaction(ClientError):
    """A transactional producer was used outside of a transaction."""


class TransactionFailed(ClientError):
    """Part of the transaction was not written: abort it, then it may be repeated."""
