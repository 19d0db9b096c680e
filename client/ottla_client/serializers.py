"""Objects to bytes and back. [P]

A serializer is any callable from an object to `bytes` (or None, which Kafka calls a tombstone); a
deserializer is the reverse. Pass a callable, or one of these names: `"bytes"`,
`"str"`, `"int"`, `"json"`.

None never reaches a serializer: an absent key or value stays absent.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

Serializer: TypeAlias = Callable[[Any], bytes | None]
Deserializer: TypeAlias = Callable[[bytes], Any]

T = TypeVar("T")

_LONG = struct.Struct(">q")


def bytes_serializer(value: Any) -> bytes:
    """Bytes unchanged; TypeError for other types, because guessing an encoding loses data."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"expected bytes, got {type(value).__name__}; pass key_serializer/value_serializer, "
        'for example "str" or "json"'
    )


def str_serializer(value: Any) -> bytes:
    """Text as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"expected str, got {type(value).__name__}")
    return value.encode()


def str_deserializer(data: bytes) -> str:
    return data.decode()


def int_serializer(value: Any) -> bytes:
    """Eight bytes, big-endian, signed: what Java's LongSerializer writes."""
    return _LONG.pack(value)


def int_deserializer(data: bytes) -> int:
    """Reads what Java's Short-, Integer- and LongSerializer write: 2, 4 or 8 bytes."""
    if len(data) not in (2, 4, 8):
        raise ValueError(f"expected 2, 4 or 8 bytes, got {len(data)}")
    return int.from_bytes(data, "big", signed=True)


def json_serializer(value: Any) -> bytes:
    """Compact JSON as UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def json_deserializer(data: bytes) -> Any:
    return json.loads(data)


_SERIALIZERS: dict[str, Serializer | None] = {
    "bytes": None,
    "str": str_serializer,
    "int": int_serializer,
    "json": json_serializer,
}
_DESERIALIZERS: dict[str, Deserializer | None] = {
    "bytes": None,
    "str": str_deserializer,
    "int": int_deserializer,
    "json": json_deserializer,
}


def serializer_for(given: Serializer | str | None) -> Serializer | None:
    """The callable for a name or a callable; None (the fast path) if bytes pass unchanged."""
    if isinstance(given, str):
        return _named(given, _SERIALIZERS, "serializer")
    return given


def deserializer_for(given: Deserializer | str | None) -> Deserializer | None:
    if isinstance(given, str):
        return _named(given, _DESERIALIZERS, "deserializer")
    return given


def _named(name: str, known: dict[str, T], what: str) -> T:
    try:
        return known[name]
    except KeyError:
        choices = ", ".join(known)
        raise ValueError(f"There is no {what} {name!r}; choose {choices}, or pass a callable.") from None
