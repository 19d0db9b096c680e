"""Codec of the files that identify data: Kafka's `meta.properties` and `partition.metadata`. [P]"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple
from uuid import UUID

_META_VERSION = 1
_METADATA_VERSION = 0


class BadProperties(ValueError):
    """The file is damaged, or from an unknown version. The message is a sentence."""


class DirectoryIdentity(NamedTuple):
    """What `meta.properties` holds."""

    cluster_id: str
    broker_id: int
    directory_id: UUID


def encode_uuid(value: UUID) -> str:
    """Kafka's spelling: base64 for URLs, without padding."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise BadProperties(f"{text[:40]!r} is not an id.") from error


def encode_meta(identity: DirectoryIdentity) -> bytes:
    return (
        f"#\n#Ottla log directory\n"
        f"cluster.id={identity.cluster_id}\n"
        f"directory.id={encode_uuid(identity.directory_id)}\n"
        f"node.id={identity.broker_id}\n"
        f"version={_META_VERSION}\n"
    ).encode()


def decode_meta(data: bytes) -> DirectoryIdentity:
    values = _values(data, "=")
    version = values.get("version")
    if version != str(_META_VERSION):
        raise BadProperties(f"its format version is {version}, this release knows {_META_VERSION}.")
    try:
        return DirectoryIdentity(
            values["cluster.id"], int(values["node.id"]), decode_uuid(values["directory.id"])
        )
    except (KeyError, ValueError) as error:
        raise BadProperties(f"it lacks a readable cluster.id, node.id or directory.id ({error}).") from error


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: {_METADATA_VERSION}\ntopic_id: {encode_uuid(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> UUID:
    values = _values(data, ":")
    if values.get("version") != str(_METADATA_VERSION) or "topic_id" not in values:
        raise BadProperties("it is not a partition.metadata of version 0.")
    return decode_uuid(values["topic_id"])


def _values(data: bytes, separator: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition(separator)
            values[name.strip()] = value.strip()
    return values
