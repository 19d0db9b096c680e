"""Decoded keys and values as JSON text on one line. [P]

`JsonText` marks bytes that are JSON, so that the format `json` writes them as a JSON value and not as a string.
What JSON has no form for: bytes become base64, decimals, dates, times and UUIDs text, and numbers that are not
finite the text that Protobuf's JSON mapping gives them.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from typing import Any, NoReturn

#: Created once: json.dumps would create one per record.
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_ENCODE_ASCII = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class JsonText(bytes):
    """The JSON text of a decoded key or value."""

    __slots__ = ()

    def parsed(self) -> Any:
        return json.loads(self)


def json_line(document: Any) -> bytes:
    """JSON on one line. Half of a surrogate pair, which JSON can escape and UTF-8 cannot hold, stays an escape."""
    try:
        return _ENCODE(document).encode()
    except UnicodeEncodeError:
        return _ENCODE_ASCII(document).encode()


def parse_strictly(data: bytes) -> Any:
    """ValueError for what Python's parser accepts beyond JSON, and for numbers that no float can hold."""
    return json.loads(data, parse_constant=_refuse, parse_float=_finite)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text} is too large")
    return number


def plain(value: Any) -> Any:
    """What an Avro reader returns, as values that JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
