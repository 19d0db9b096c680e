"""Parses JSON from other processes, with bounded depth. [P]

`json` uses recursion for nested values. A value that it can just read may be too deep for the code that
processes it next, with a deeper stack. So the depth is bounded, far below the interpreter's limit, and
every error in the bytes is a ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

#: Ottla's own values have at most four levels.
DEPTH_MAX = 32

_decode = json.JSONDecoder().decode


def parse_json(data: bytes, *, depth_max: int = DEPTH_MAX) -> Any:
    """The value. ValueError if it is not JSON in UTF-8, or nested deeper than `depth_max`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # The text of UnicodeDecodeError would contain all the bytes.
        raise ValueError(f"the text is not UTF-8 at byte {error.start}") from None
    # Most values have fewer brackets than allowed levels and need no further check.
    is_flat = text.count("[") + text.count("{") <= depth_max
    try:
        value = _decode(text)
    except RecursionError:
        raise ValueError(f"the JSON is nested deeper than {depth_max} levels") from None
    if not is_flat and _is_deeper(value, depth_max):
        raise ValueError(f"the JSON is nested deeper than {depth_max} levels")
    return value


def _is_deeper(value: Any, depth_max: int) -> bool:
    level = _containers([value])
    for _ in range(depth_max):
        level = _containers(
            inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)
        )
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]
