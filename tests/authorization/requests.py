"""One request for each API of both protocols, made from its schema: about the topic `victim`, the group `g` and the
transactional id `x`, valid as far as the check of rights, and without consequence for others."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from authorization.guarded_broker import GuardedBroker
from ottla_broker.edge.grpc import server
from ottla_broker.edge.grpc.acls_service import ACLS_CALLS, ACLS_SERVICE
from ottla_broker.edge.grpc.cluster_service import CLUSTER_CALLS
from ottla_broker.edge.grpc.groups_service import GROUPS_CALLS, GROUPS_SERVICE
from ottla_broker.edge.grpc.quotas_service import QUOTAS_CALLS, QUOTAS_SERVICE
from ottla_broker.edge.grpc.transactions_service import TRANSACTIONS_CALLS, TRANSACTIONS_SERVICE
from ottla_broker.edge.grpc.users_service import USERS_CALLS
from ottla_broker.edge.kafka import schema
from ottla_broker.edge.kafka.decode import compile_reader
from ottla_broker.edge.kafka.encode import compile_writer
from ottla_broker.edge.kafka.schema import FieldPlan, StructPlan
from ottla_broker.edge.kafka.versions import Api
from ottla_core.errors import error_type
from ottla_core.pb import broker_pb2

TOPIC, GROUP, ID = "victim", "g", "x"
AUTHORIZATION = {
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "group",
    "CLUSTER_AUTHORIZATION_FAILED": "cluster",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "id",
    # A topic that is asked for by its id is unknown to those who may not describe it.
    "UNKNOWN_TOPIC_ID": "unknown",
}

#: By API and field, where a value by the field's name alone would not do.
_SPECIAL: dict[tuple[str, str], Any] = {
    ("produce", "acks"): 1,
    ("produce", "transactional_id"): None,
    ("init_producer_id", "transactional_id"): ID,
    ("find_coordinator", "coordinator_keys"): [GROUP],
    ("delete_groups", "groups_names"): [GROUP],
    ("describe_groups", "groups"): [GROUP],
    ("consumer_group_describe", "group_ids"): [GROUP],
    ("describe_transactions", "transactional_ids"): [ID],
    ("list_transactions", "transactional_id_pattern"): None,
    ("list_transactions", "state_filters"): [],
    ("list_transactions", "producer_id_filters"): [],
    ("list_groups", "states_filter"): [],
    ("list_groups", "types_filter"): [],
    ("offset_fetch", "topics"): None,
    ("list_config_resources", "resource_types"): [],
    ("consumer_group_heartbeat", "subscribed_topic_names"): [TOPIC],
    ("consumer_group_heartbeat", "subscribed_topic_regex"): None,
    ("describe_topic_partitions", "cursor"): None,
    ("unregister_broker", "broker_id"): 99,
    ("delete_topics", "name"): None,
    ("metadata", "name"): None,
    ("fetch", "cluster_id"): None,
    ("fetch", "session_epoch"): -1,
    ("alter_partition_reassignments", "replicas"): None,
    ("alter_user_scram_credentials", "name"): "",
    ("describe_cluster", "endpoint_type"): 1,
    ("create_topics", "assignments"): [],
    ("describe_client_quotas", "components"): [],
    ("describe_user_scram_credentials", "name"): "nobody",
}
_BY_NAME: dict[str, Any] = {
    "group_id": GROUP,
    "group": GROUP,
    "transactional_id": ID,
    "resource_type": 2,
    "resource_name": TOPIC,
    "topic": TOPIC,
    "topic_name": TOPIC,
    "name": TOPIC,
    "validate_only": True,
    "records": None,
    "principal": "User:nobody",
}


class KafkaClient:
    def __init__(self, guarded: GuardedBroker, user: str) -> None:
        context = ssl.create_default_context(cafile=str(guarded.authority.file))
        context.load_cert_chain(str(guarded.certificate(user)))
        host, _, port = guarded.secured.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=20)
        self._socket = context.wrap_socket(plain, server_hostname=host)

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: Api, topic_id: UUID) -> set[str]:
        """Names of all errors in the answer."""
        version = api.high
        plan = schema.load(api, version, "request")
        out = bytearray()
        compile_writer(plan)(out, _struct(api.name, plan, topic_id))
        flexible = version >= api.flexible_from
        head = struct.pack(">hhih", api.key, version, 7, -1) + (b"\x00" if flexible else b"")
        self._socket.sendall(struct.pack(">i", len(head) + len(out)) + head + out)
        body = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        start = 5 if flexible and api.name != "api_versions" else 4
        reader = compile_reader(schema.load(api, version, "response"))
        return {error_type(code).name for code in _codes(reader(memoryview(body)[start:])) if code}

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the broker closed the connection"
            found += more
        return found


def _struct(api: str, plan: StructPlan, topic_id: UUID) -> dict[str, Any]:
    return {field.name: _value(api, field, topic_id) for field in plan.fields}


def _value(api: str, field: FieldPlan, topic_id: UUID) -> Any:
    if (api, field.name) in _SPECIAL:
        return _SPECIAL[api, field.name]
    if field.struct is not None:
        made = _struct(api, field.struct, topic_id)
        return [made] if field.is_array else made
    one = _BY_NAME.get(field.name, topic_id if field.kind == "uuid" else _EMPTY.get(field.kind, 0))
    return [one] if field.is_array else one


_EMPTY: dict[str, Any] = {"string": "", "bytes": b"", "records": None, "bool": False, "float64": 0.0}


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name.endswith("error_code"):
                yield part
            else:
                yield from _codes(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _codes(part)


# ---------------------------------------------------------------------- gRPC

METHODS: dict[str, Any] = {
    f"{service}/{name}": request
    for service, calls in (
        (server.LOG_SERVICE, server._LOG_STREAMS | server._LOG_CALLS),
        (server.ADMIN_SERVICE, server._ADMIN_CALLS | CLUSTER_CALLS | USERS_CALLS),
        (GROUPS_SERVICE, GROUPS_CALLS),
        (TRANSACTIONS_SERVICE, TRANSACTIONS_CALLS),
        (ACLS_SERVICE, ACLS_CALLS),
        (QUOTAS_SERVICE, QUOTAS_CALLS),
    )
    for name, (_, request) in calls.items()
}
_GRPC: dict[str, Any] = {
    "acks": 1,
    "broker": 99,
    "timeout_ms": 100,
    "topic_regex": None,
    "names": [TOPIC],
    "groups": [GROUP],
    "transactional_ids": [ID],
    "states": [],
    "types": [],
    "prefix": "",
    "keep_prepared": False,
    "assignor": None,
}


def call(channel: grpc.Channel, method: str) -> set[str]:
    """Names of all errors in the answer."""
    request = _filled(METHODS[method](), method)
    path = f"/{method}"
    kind = type(request).__name__.removesuffix("Request") + "Response"
    answer_type = getattr(__import__(type(request).__module__, fromlist=[kind]), kind)
    forms = {
        "request_serializer": lambda m: m.SerializeToString(),
        "response_deserializer": answer_type.FromString,
    }
    try:
        if method in ("ottla.v1.Log/Produce", "ottla.v1.Log/Fetch"):
            answer = next(channel.stream_stream(path, **forms)(iter([request]), timeout=20))
        else:
            answer = channel.unary_unary(path, **forms)(request, timeout=20)
    except grpc.RpcError as refused:
        for key, value in refused.trailing_metadata() or ():
            if key == "ottla-error-bin":
                error = broker_pb2.Error.FromString(value)
                if error.name in AUTHORIZATION:
                    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
                return {error.name}
        raise
    return set(_names(answer))


def _filled(message: Any, method: str) -> Any:
    for field in message.DESCRIPTOR.fields:
        name, value = field.name, _BY_NAME.get(field.name)
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry or name in ("resource_type",):
                continue
            target = getattr(message, name)
            _filled(target.add() if field.is_repeated else target, method)
            if not field.is_repeated:
                target.SetInParent()
            continue
        if name in _GRPC:
            value = _GRPC[name]
        if field.enum_type is not None:
            value = 2 if field.enum_type.name == "ConfigResourceType" else 1
        if name == "topics" and field.type == FieldDescriptor.TYPE_STRING:
            value = TOPIC
        if name == "partitions" and field.is_repeated:
            value = 0
        if name == "topic_id" and field.type == FieldDescriptor.TYPE_STRING:
            value = str(UUID(int=1))
        if name == "transactional_id" and method.startswith("ottla.v1.Log/"):
            value = None
        if value is None or (isinstance(value, str) and field.type != FieldDescriptor.TYPE_STRING):
            continue
        if field.is_repeated:
            getattr(message, name).extend(value if isinstance(value, list) else [value])
        else:
            setattr(message, name, value)
    return message


def _names(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.name == "Error":
            yield value.name
        else:
            for each in value if field.is_repeated else (value,):
                if isinstance(each, Message):
                    yield from _names(each)
