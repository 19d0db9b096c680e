"""Values of the metadata store: readable JSON with a version, and the readers of its fields. [P]

    {"v":1,"replicas":[1],"leader":1,"epoch":4,"isr":[1]}

Ids are UUIDs in Kafka's spelling (base64url, 22 characters), as its tools print them.

Versions. A new field does not change "v": a reader skips what it does not know, and a writer puts it back,
because during a rolling upgrade an old broker rewrites what a new controller wrote. "v" grows only with a
change that an old reader would misread; such a value is refused (`BadValue`), the reader keeps its former
state, and every write that it bases on it fails its compare.

Used by `sections/`, which own the format of each kind.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from ottla_core.bounded_json import parse_json
from ottla_core.ports.store import Entry

V = TypeVar("V")

VERSION = 1

#: Name and JSON value of each field that this version does not know.
Extra: TypeAlias = tuple[tuple[str, object], ...]
#: Fields not read yet; each reader takes its own, and what remains is `Extra`.
Fields: TypeAlias = dict[str, Any]


class BadValue(ValueError):
    """A key or value in the store that this version cannot use; the text says which and why."""


_MISTAKES = (BadValue, TypeError, ValueError, KeyError, AttributeError)

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


def number_from_text(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        raise BadValue(f"{text[:40]!r} is not a number.")
    return int(text)


# ---------------------------------------------------------------------- values

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode_fields(fields: dict[str, object], extra: Extra = ()) -> bytes:
    return _encode({"v": VERSION, **fields, **dict(extra)}).encode()


def decode_fields(value: bytes) -> Fields:
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


def decoder(decode: Callable[[Entry], V]) -> Callable[[Entry], V]:
    """Whatever goes wrong becomes a BadValue that names the key."""

    @wraps(decode)
    def checked(entry: Entry) -> V:
        try:
            return decode(entry)
        except _MISTAKES as error:
            raise BadValue(f"{entry.key} cannot be used: {error}.") from None

    return checked


def id_texts(values: Iterable[UUID]) -> list[str]:
    return [uuid_text(v) for v in values]


def take_int(fields: Fields, name: str) -> int:
    found = fields.pop(name, None)
    if type(found) is not int:
        raise BadValue(f'"{name}" is not a whole number')
    return found


def take_ints(fields: Fields, name: str) -> tuple[int, ...]:
    found = fields.pop(name, ())
    if found and (type(found) is not list or not all(type(n) is int for n in found)):
        raise BadValue(f'"{name}" is not a list of whole numbers')
    return tuple(found)


def take_uuid(fields: Fields, name: str) -> UUID:
    return uuid_from_text(str(fields.pop(name, "")))


def take_uuids(fields: Fields, name: str) -> tuple[UUID, ...]:
    return tuple(uuid_from_text(str(text)) for text in fields.pop(name, ()))


def take_texts(fields: Fields, name: str) -> dict[str, str]:
    found = fields.pop(name, {})
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise BadValue(f'"{name}" does not map names to texts')
    return found
