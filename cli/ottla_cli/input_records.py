"""Standard input as records: lines, JSON objects, or the whole input as one record. [P]

`Splitter` cuts a stream of chunks into pieces; a reader turns a piece into a `NewRecord`. Lines are not
decoded: a line is sent as the bytes that were read.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from ottla_client.record import Headers


class BadInput(ValueError):
    """A piece of the input that is not a valid record, with a sentence that says why."""


class NewRecord(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Splitter:
    """Cuts chunks at a delimiter. A non-empty rest at the end is a piece, too."""

    def __init__(self, delimiter: bytes, limit_bytes: int) -> None:
        self._delimiter = delimiter
        self._limit = limit_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        first, *others = chunk.split(self._delimiter)
        if len(self._delimiter) > 1 and self._rest:
            # The delimiter itself may be split across chunks.
            first, *others = (self.rest() + chunk).split(self._delimiter)
        self._keep(first)
        if not others:
            return []
        pieces = [self.rest(), *others[:-1]]
        self._keep(others[-1])
        return pieces

    def _keep(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes > self._limit:
            raise BadInput(
                f"A record has more than {self._limit} bytes. Check the delimiter, "
                "or raise --max-record-bytes."
            )

    def rest(self) -> bytes:
        """Remove and return what follows the last delimiter."""
        made = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        return made


def line_reader(
    *, key_separator: bytes | None, key: bytes | None, headers: Headers, null_if_empty: bool
) -> Callable[[bytes], NewRecord]:
    """A reader for lines: a value, or key, separator and value."""

    def read(line: bytes) -> NewRecord:
        this_key, value = key, line
        if key_separator is not None:
            before, found, after = line.partition(key_separator)
            if found:
                this_key, value = before, after
        if null_if_empty:
            return NewRecord(value or None, this_key or None, headers)
        return NewRecord(value, this_key, headers)

    return read


_JSON_NAMES = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
#: Fields that consume --json writes and produce ignores.
_JSON_PASSED_OVER = ("topic", "offset", "timestamp_type")


def read_json(line: bytes) -> NewRecord:
    """One JSON object, as `consume --json` writes it or written by hand. A non-string value is stored as JSON."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise BadInput(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput('a JSON object is needed, such as {"key": "k", "value": "v"}')
    for name in found:
        if name not in _JSON_NAMES and name not in _JSON_PASSED_OVER:
            raise BadInput(f"field {name!r} is not known; use {', '.join(_JSON_NAMES)}")
    return NewRecord(
        _json_bytes(found, "value"),
        _json_bytes(found, "key"),
        _json_headers(found.get("headers") or []),
        _json_number(found, "partition"),
        _json_number(found, "timestamp"),
    )


def _json_bytes(found: dict[str, Any], name: str) -> bytes | None:
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadInput(f"{name}_base64 is not base64") from None
    value = found.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} contains half a surrogate pair, which is not valid text") from None


def _json_headers(found: Any) -> Headers:
    """Headers from a list of `{"key", "value"}`, or from an object of names and values."""
    if isinstance(found, dict):
        return [(name, _json_bytes({"value": value}, "value")) for name, value in found.items()]
    if not isinstance(found, list) or not all(
        isinstance(each, dict) and isinstance(each.get("key"), str) for each in found
    ):
        raise BadInput('headers are an object, or a list of {"key": …, "value": …}')
    return [(each["key"], _json_bytes(each, "value")) for each in found]


def _json_number(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise BadInput(f"{name} is {value!r}, not an integer of 0 or more")
    return value


def parse_headers(pairs: list[str]) -> list[tuple[str, bytes | None]]:
    """`-H name=value`; `-H name` alone has a null value. ValueError with a sentence."""
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name or not name.isprintable():
            raise ValueError(f"-H takes name=value, not {pair!r}.")
        found.append((name, value.encode(errors="surrogateescape") if separator else None))
    return found
