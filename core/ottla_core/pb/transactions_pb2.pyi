from ottla_core.pb import broker_pb2 as _broker_pb2
from ottla_core.pb import groups_pb2 as _groups_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProducerIdentity(_message.Message):
    __slots__ = ("id", "epoch")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class InitProducerRequest(_message.Message):
    __slots__ = ("transactional_id", "transaction_timeout_ms", "keep_prepared", "current")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_PREPARED_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    transaction_timeout_ms: int
    keep_prepared: bool
    current: ProducerIdentity
    def __init__(self, transactional_id: _Optional[str] = ..., transaction_timeout_ms: _Optional[int] = ..., keep_prepared: _Optional[bool] = ..., current: _Optional[_Union[ProducerIdentity, _Mapping]] = ...) -> None: ...

class InitProducerResponse(_message.Message):
    __slots__ = ("error", "producer", "ongoing")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    ONGOING_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    producer: ProducerIdentity
    ongoing: ProducerIdentity
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ..., ongoing: _Optional[_Union[ProducerIdentity, _Mapping]] = ...) -> None: ...

class PrepareTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: ProducerIdentity
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ...) -> None: ...

class PrepareTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ...) -> None: ...

class ForgetTransactionalIdsRequest(_message.Message):
    __slots__ = ("transactional_ids",)
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transactional_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transactional_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ForgetTransactionalIdsResponse(_message.Message):
    __slots__ = ("forgotten",)
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    forgotten: _containers.RepeatedCompositeFieldContainer[ForgottenTransactionalId]
    def __init__(self, forgotten: _Optional[_Iterable[_Union[ForgottenTransactionalId, _Mapping]]] = ...) -> None: ...

class ForgottenTransactionalId(_message.Message):
    __slots__ = ("transactional_id", "error")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    error: _broker_pb2.Error
    def __init__(self, transactional_id: _Optional[str] = ..., error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer", "commit")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ..., commit: _Optional[bool] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("error", "producer")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    producer: ProducerIdentity
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ...) -> None: ...

class TxnOffsetCommitRequest(_message.Message):
    __slots__ = ("transactional_id", "producer", "group", "generation", "member_id", "group_instance_id", "offsets")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: ProducerIdentity
    group: str
    generation: int
    member_id: str
    group_instance_id: str
    offsets: _containers.RepeatedCompositeFieldContainer[_groups_pb2.OffsetToCommit]
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ..., group: _Optional[str] = ..., generation: _Optional[int] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[_groups_pb2.OffsetToCommit, _Mapping]]] = ...) -> None: ...

class TxnOffsetCommitResponse(_message.Message):
    __slots__ = ("error", "partitions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    partitions: _containers.RepeatedCompositeFieldContainer[_groups_pb2.CommittedOffset]
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[_groups_pb2.CommittedOffset, _Mapping]]] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("states", "producer_ids", "min_duration_ms", "prefix")
    STATES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    min_duration_ms: int
    prefix: str
    def __init__(self, states: _Optional[_Iterable[str]] = ..., producer_ids: _Optional[_Iterable[int]] = ..., min_duration_ms: _Optional[int] = ..., prefix: _Optional[str] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("error", "transactions", "unknown_states")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_STATES_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    transactions: _containers.RepeatedCompositeFieldContainer[ListedTransaction]
    unknown_states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., transactions: _Optional[_Iterable[_Union[ListedTransaction, _Mapping]]] = ..., unknown_states: _Optional[_Iterable[str]] = ...) -> None: ...

class ListedTransaction(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "state", "producer_epoch")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    state: str
    producer_epoch: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., state: _Optional[str] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class DescribeTransactionsRequest(_message.Message):
    __slots__ = ("transactional_ids",)
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transactional_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transactional_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeTransactionsResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[DescribedTransaction]
    def __init__(self, transactions: _Optional[_Iterable[_Union[DescribedTransaction, _Mapping]]] = ...) -> None: ...

class DescribedTransaction(_message.Message):
    __slots__ = ("transactional_id", "error", "state", "producer", "timeout_ms", "started_ms", "topics", "coordinator_id")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    error: _broker_pb2.Error
    state: str
    producer: ProducerIdentity
    timeout_ms: int
    started_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[_broker_pb2.TopicPartitions]
    coordinator_id: int
    def __init__(self, transactional_id: _Optional[str] = ..., error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., state: _Optional[str] = ..., producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., started_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[_broker_pb2.TopicPartitions, _Mapping]]] = ..., coordinator_id: _Optional[int] = ...) -> None: ...

class DescribeProducersRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[_broker_pb2.TopicPartitions]
    def __init__(self, topics: _Optional[_Iterable[_Union[_broker_pb2.TopicPartitions, _Mapping]]] = ...) -> None: ...

class DescribeProducersResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProducers]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionProducers, _Mapping]]] = ...) -> None: ...

class PartitionProducers(_message.Message):
    __slots__ = ("topic", "partition", "error", "producers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error: _broker_pb2.Error
    producers: _containers.RepeatedCompositeFieldContainer[ActiveProducer]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., producers: _Optional[_Iterable[_Union[ActiveProducer, _Mapping]]] = ...) -> None: ...

class ActiveProducer(_message.Message):
    __slots__ = ("producer", "last_sequence", "last_timestamp_ms", "coordinator_epoch", "transaction_first_offset")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    producer: ProducerIdentity
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int
    def __init__(self, producer: _Optional[_Union[ProducerIdentity, _Mapping]] = ..., last_sequence: _Optional[int] = ..., last_timestamp_ms: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., transaction_first_offset: _Optional[int] = ...) -> None: ...

class AbortTransactionRequest(_message.Message):
    __slots__ = ("topic", "partition", "first_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    first_offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ...) -> None: ...

class AbortTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ...) -> None: ...
