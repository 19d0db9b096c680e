"""Keys of the metadata store, and their values as readable JSON. [P]

    cluster                       {"v":1,"id":"Fw0uyH7bTs2QkgMb0fGnWA"}                       the cluster's id
    controller                    {"v":1,"broker":1,"incarnation":…}                          leased
    brokers/<id>                  {"v":1,"incarnation":…,"endpoints":[…],"directories":[…]}   leased: online
    members/<id>                  {"v":1,"incarnation":…,"directories":[…]}                   last admitted
    topics/<name>                 {"v":1,"id":…,"partitions":3,"config":{…}}
    partitions/<topic id>/<n>     {"v":1,"replicas":[1],"leader":1,"epoch":4,"isr":[1]}
    config/broker/<id>|default    {"v":1,"config":{…}}
    config/groups/<group id>      {"v":1,"config":{…}}
    removals                      {"v":1,"broker":2,"by":1}                       the last broker removed
    ids/producer-block            {"v":1,"next":1000}                             the first id not allocated
    recoveries                    {"v":1,"number":1}                              how often history was lost for good

Ids are UUIDs in Kafka's spelling (base64url, 22 characters), as its tools print them.

Versions. A new field does not change "v": a reader skips what it does not know, and a writer puts it back,
because during a rolling upgrade an old broker rewrites what a new controller wrote. "v" grows only with a
change that an old reader would misread; such a value is refused (`BadValue`), the reader keeps its former
state, and every write that it bases on it fails its compare.

Only this module knows the format of keys. It must never decide anything.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

from ottla_broker.controller.image import (
    BrokerImage,
    Endpoint,
    Extra,
    MemberImage,
    PartitionImage,
    TopicImage,
)
from ottla_core.bounded_json import parse_json
from ottla_core.ports.store import Entry

VERSION = 1

CLUSTER = "cluster"
CONTROLLER = "controller"
BROKERS = "brokers/"
MEMBERS = "members/"
TOPICS = "topics/"
PARTITIONS = "partitions/"
BROKER_CONFIGS = "config/broker/"
GROUP_CONFIGS = "config/groups/"
REMOVALS = "removals"
PRODUCER_BLOCK = "ids/producer-block"
RECOVERIES = "recoveries"

#: The key of "all brokers" in `config/broker/<…>`; the image's key for it is "".
_ALL_BROKERS = "default"

#: Far above what one cluster serves; a typing error in etcdctl must not make every broker allocate gigabytes.
PARTITIONS_MAX = 200_000


class BadValue(ValueError):
    """A key or value in the store that this version cannot use; the text says which and why."""


# ---------------------------------------------------------------------- ids


def uuid_text(value: UUID) -> str:
    """Kafka's spelling of a UUID."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


@lru_cache(maxsize=4096)  # One topic id stands in the key of each of its partitions.
def uuid_from_text(text: str) -> UUID:
    try:
        raw = urlsafe_b64decode(text + "==")
    except ValueError:
        raw = b""
    if len(text) != 22 or len(raw) != 16:
        raise BadValue(f"{text[:40]!r} is not an id of 22 base64url characters.")
    return UUID(bytes=raw)


# ---------------------------------------------------------------------- keys


def broker(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def member(broker_id: int) -> str:
    return f"{MEMBERS}{broker_id}"


def topic(name: str) -> str:
    return TOPICS + name


def partition(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS}{uuid_text(topic_id)}/{index}"


def broker_config(key: str) -> str:
    """`key` as in `ClusterImage.broker_configs`: a broker id, or "" for all brokers."""
    return BROKER_CONFIGS + (key or _ALL_BROKERS)


def group_config(group: str) -> str:
    return GROUP_CONFIGS + group


def broker_id_of(key: str) -> int:
    """The id in `brokers/<id>` or `members/<id>`."""
    return _number(key, key.partition("/")[2])


def topic_name_of(key: str) -> str:
    return key.removeprefix(TOPICS)


def partition_of(key: str) -> tuple[UUID, int]:
    """(topic id, number) in `partitions/<topic id>/<n>`."""
    id_text, _, index = key[len(PARTITIONS) :].partition("/")
    try:
        return uuid_from_text(id_text), _number(key, index)
    except BadValue as error:
        raise BadValue(f"{key}: {error}") from None


def broker_config_of(key: str) -> str:
    name = key.removeprefix(BROKER_CONFIGS)
    return "" if name == _ALL_BROKERS else name


def group_config_of(key: str) -> str:
    return key.removeprefix(GROUP_CONFIGS)


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise BadValue(f"{key}: {text[:40]!r} is not a number.")
    return int(text)


# ---------------------------------------------------------------------- values

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _value(fields: dict[str, object], extra: Extra = ()) -> bytes:
    return _encode({"v": VERSION, **fields, **dict(extra)}).encode()


def _fields(value: bytes) -> dict[str, Any]:
    try:
        fields: Any = parse_json(value)
    except ValueError as error:
        raise BadValue(f"it does not hold JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadValue("it does not hold a JSON object")
    version = fields.pop("v", None)
    if not isinstance(version, int) or version < 1:
        raise BadValue('it has no version "v"')
    if version > VERSION:
        raise BadValue(
            f"it was written in format {version}, and this broker reads up to {VERSION}: upgrade it"
        )
    return fields


def _ids(values: Iterable[UUID]) -> list[str]:
    return [uuid_text(v) for v in values]


def _int(fields: dict[str, Any], name: str, default: int | None = None) -> int:
    found = fields.pop(name, default)
    if type(found) is not int:
        raise BadValue(f'"{name}" is not a whole number')
    return found


def _ints(fields: dict[str, Any], name: str) -> tuple[int, ...]:
    found = fields.pop(name, ())
    if found and (type(found) is not list or not all(type(n) is int for n in found)):
        raise BadValue(f'"{name}" is not a list of whole numbers')
    return tuple(found)


def _uuid(fields: dict[str, Any], name: str) -> UUID:
    return uuid_from_text(str(fields.pop(name, "")))


def _uuids(fields: dict[str, Any], name: str) -> tuple[UUID, ...]:
    return tuple(uuid_from_text(str(text)) for text in fields.pop(name, ()))


def _texts(fields: dict[str, Any], name: str) -> dict[str, str]:
    found = fields.pop(name, {})
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise BadValue(f'"{name}" does not map names to texts')
    return found


def _misread(entry: Entry, error: Exception) -> BadValue:
    return BadValue(f"{entry.key} cannot be used: {error}.")


_MISTAKES = (BadValue, TypeError, ValueError, KeyError, AttributeError)


def encode_partition(image: PartitionImage) -> bytes:
    fields: dict[str, object] = {
        "replicas": image.replicas,
        "leader": image.leader,
        "epoch": image.leader_epoch,
        "isr": image.isr,
    }
    if image.elr:
        fields["elr"] = image.elr
    if image.adding:
        fields["adding"] = image.adding
    if image.removing:
        fields["removing"] = image.removing
    if image.torn:
        fields["torn"] = image.torn
    if image.dropped:
        fields["dropped"] = image.dropped
    return _value(fields, image.extra)


def decode_partition(entry: Entry) -> PartitionImage:
    try:
        replicas, leader, epoch, isr, elr, adding, removing, torn, dropped, extra = _partition_fields(
            entry.value
        )
    except _MISTAKES as error:
        raise _misread(entry, error) from None
    return PartitionImage(
        replicas, leader, epoch, isr, elr, adding, removing, entry.mod_revision, extra, torn, dropped
    )


_Ints: TypeAlias = tuple[int, ...]


@lru_cache(maxsize=8192)  # Thousands of partitions share a few states: decoded once, and kept once.
def _partition_fields(
    value: bytes,
) -> tuple[_Ints, int, int, _Ints, _Ints, _Ints, _Ints, _Ints, _Ints, Extra]:
    fields = _fields(value)
    return (
        _ints(fields, "replicas"),
        _int(fields, "leader"),
        _int(fields, "epoch"),
        _ints(fields, "isr"),
        _ints(fields, "elr"),
        _ints(fields, "adding"),
        _ints(fields, "removing"),
        _ints(fields, "torn"),
        _ints(fields, "dropped"),
        tuple(fields.items()),
    )


def encode_topic(topic_id: UUID, partitions: int, config: Mapping[str, str], extra: Extra = ()) -> bytes:
    return _value({"id": uuid_text(topic_id), "partitions": partitions, "config": dict(config)}, extra)


def decode_topic(entry: Entry) -> tuple[TopicImage, int]:
    """The topic without its partitions, and their number: partitions have their own keys."""
    try:
        fields = _fields(entry.value)
        topic_id, count, config = _uuid(fields, "id"), _int(fields, "partitions"), _texts(fields, "config")
        if not 1 <= count <= PARTITIONS_MAX:
            raise BadValue(f'"partitions" is {count}, not between 1 and {PARTITIONS_MAX}')
        name, extra = topic_name_of(entry.key), tuple(fields.items())
        return TopicImage(name, topic_id, config, (), entry.mod_revision, extra), count
    except _MISTAKES as error:
        raise _misread(entry, error) from None


def encode_broker(image: BrokerImage) -> bytes:
    fields: dict[str, object] = {
        "incarnation": uuid_text(image.incarnation),
        "endpoints": [
            {"listener": e.listener, "protocol": e.protocol, "host": e.host, "port": e.port}
            for e in image.endpoints
        ],
        "rack": image.rack,
        "directories": _ids(image.directories),
        "torn": _ids(image.torn),
    }
    if image.stopping:
        fields["stopping"] = True
    if image.offline:
        fields["offline"] = {uuid_text(topic_id): list(lost) for topic_id, lost in image.offline.items()}
    return _value(fields, image.extra)


def decode_broker(entry: Entry) -> BrokerImage:
    try:
        fields = _fields(entry.value)
        stopping = fields.pop("stopping", False) is True
        offline = {
            uuid_from_text(topic_id): tuple(int(n) for n in lost)
            for topic_id, lost in fields.pop("offline", {}).items()
        }
        return BrokerImage(
            broker_id_of(entry.key),
            _uuid(fields, "incarnation"),
            tuple(
                Endpoint(str(e["listener"]), str(e["protocol"]), str(e["host"]), int(e["port"]))
                for e in fields.pop("endpoints", ())
            ),
            fields.pop("rack", None),
            entry.create_revision,
            _uuids(fields, "directories"),
            _uuids(fields, "torn"),
            tuple(fields.items()),
            stopping,
            offline,
            entry.mod_revision,
        )
    except _MISTAKES as error:
        raise _misread(entry, error) from None


def encode_member(image: MemberImage) -> bytes:
    return _value(
        {"incarnation": uuid_text(image.incarnation), "directories": _ids(image.directories)}, image.extra
    )


def decode_member(entry: Entry) -> MemberImage:
    try:
        fields = _fields(entry.value)
        return MemberImage(
            broker_id_of(entry.key),
            _uuid(fields, "incarnation"),
            _uuids(fields, "directories"),
            entry.mod_revision,
            tuple(fields.items()),
        )
    except _MISTAKES as error:
        raise _misread(entry, error) from None


def encode_controller(broker_id: int, incarnation: UUID) -> bytes:
    return _value({"broker": broker_id, "incarnation": uuid_text(incarnation)})


def decode_controller(entry: Entry) -> tuple[int, UUID]:
    try:
        fields = _fields(entry.value)
        return _int(fields, "broker"), _uuid(fields, "incarnation")
    except _MISTAKES as error:
        raise _misread(entry, error) from None


def encode_cluster(cluster_id: str) -> bytes:
    return _value({"id": cluster_id})


def decode_cluster(entry: Entry) -> str:
    try:
        fields = _fields(entry.value)
        return uuid_text(_uuid(fields, "id"))
    except _MISTAKES as error:
        raise _misread(entry, error) from None


def encode_config(config: Mapping[str, str]) -> bytes:
    return _value({"config": dict(config)})


def decode_config(entry: Entry) -> dict[str, str]:
    try:
        fields = _fields(entry.value)
        return _texts(fields, "config")
    except _MISTAKES as error:
        raise _misread(entry, error) from None


def encode_removal(broker_id: int, by: int) -> bytes:
    return _value({"broker": broker_id, "by": by})


def encode_producer_block(next_id: int) -> bytes:
    return _value({"next": next_id})


def decode_producer_block(entry: Entry) -> int:
    try:
        fields = _fields(entry.value)
        return _int(fields, "next")
    except _MISTAKES as error:
        raise _misread(entry, error) from None


def encode_recoveries(number: int) -> bytes:
    return _value({"number": number})


def decode_recoveries(entry: Entry) -> int:
    try:
        fields = _fields(entry.value)
        return _int(fields, "number")
    except _MISTAKES as error:
        raise _misread(entry, error) from None
