from ottla_core.pb import broker_pb2 as _broker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QuotaEntity(_message.Message):
    __slots__ = ("user", "client_id", "ip")
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    IP_FIELD_NUMBER: _ClassVar[int]
    user: str
    client_id: str
    ip: str
    def __init__(self, user: _Optional[str] = ..., client_id: _Optional[str] = ..., ip: _Optional[str] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("entity", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    entity: QuotaEntity
    values: _containers.ScalarMap[str, float]
    def __init__(self, entity: _Optional[_Union[QuotaEntity, _Mapping]] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class DescribeQuotasRequest(_message.Message):
    __slots__ = ("entity",)
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    entity: QuotaEntity
    def __init__(self, entity: _Optional[_Union[QuotaEntity, _Mapping]] = ...) -> None: ...

class DescribeQuotasResponse(_message.Message):
    __slots__ = ("error", "quotas")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ...) -> None: ...

class QuotaChange(_message.Message):
    __slots__ = ("entity", "set", "remove")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    entity: QuotaEntity
    set: _containers.ScalarMap[str, float]
    remove: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entity: _Optional[_Union[QuotaEntity, _Mapping]] = ..., set: _Optional[_Mapping[str, float]] = ..., remove: _Optional[_Iterable[str]] = ...) -> None: ...

class AlterQuotasRequest(_message.Message):
    __slots__ = ("changes", "validate_only")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[QuotaChange]
    validate_only: bool
    def __init__(self, changes: _Optional[_Iterable[_Union[QuotaChange, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class AlterQuotasResponse(_message.Message):
    __slots__ = ("error", "outcomes")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    outcomes: _containers.RepeatedCompositeFieldContainer[QuotaOutcome]
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ..., outcomes: _Optional[_Iterable[_Union[QuotaOutcome, _Mapping]]] = ...) -> None: ...

class QuotaOutcome(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _broker_pb2.Error
    def __init__(self, error: _Optional[_Union[_broker_pb2.Error, _Mapping]] = ...) -> None: ...
