"""JSON from somebody else: parsed only to a depth that every reader and writer of ours can walk. [P]

`json` walks nested values by recursion. A value that it has just managed to read may be too deep for the code that
walks it next, on a stack that is deeper already. So depth has a bound here, far below the interpreter's, and
everything that is wrong with the bytes is a ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

#: Values of ours have four levels at most.
DEPTH_MAX = 32

_decode = json.JSONDecoder().decode


def parse_json(data: bytes, *, depth_max: int = DEPTH_MAX) -> Any:
    """The value. ValueError if it is not JSON in UTF-8, or nested deeper than `depth_max`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # Its own text would repeat the bytes, however many they are.
        raise ValueError(f"the text is not UTF-8 at byte {error.start}") from None
    # Most values have fewer brackets than levels are allowed: those need no second look.
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
