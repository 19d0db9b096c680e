"""Conditions on JSON values for `ottla consume --where`: `$.user.id == 5`. [P]

    condition := path [operator value]
    path      := $ followed by .name, ["any name"], [0], [-1] or [*]
    operator  := ==  !=  <  <=  >  >=  =~

A value is JSON; what is not JSON is text, so that `$.state == open` needs no quotes within quotes. A path alone holds
if it leads to something that is not null. With [*] it is enough that one element fits. Values of different types
are not equal, and no smaller or larger.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Condition: TypeAlias = Callable[[Any], bool]
_Step: TypeAlias = str | int | None

_STEP = re.compile(r'\.([A-Za-z_][\w-]*)|\[(-?\d+)\]|\[("(?:[^"\\]|\\.)*")\]|\[(\*)\]')
_REST = re.compile(r"\s*(==|!=|<=|>=|=~|<|>)\s*(.+?)\s*", re.DOTALL)
_ORDERED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def json_condition(text: str) -> Condition:
    """ValueError with a sentence if it is not one."""
    steps, rest = _path(text)
    if not rest.strip():
        return lambda document: any(found is not None for found in _found(document, steps))
    parts = _REST.fullmatch(rest)
    if parts is None:
        raise ValueError(
            _wrong(text, f"{rest.strip()!r} is not an operator (== != < <= > >= =~) and a value")
        )
    fits = _comparison(parts[1], parts[2], text)
    if parts[1] == "!=":
        # Of all that is found: `$.tags[*] != "old"` holds for records without the tag, also without tags.
        return lambda document: all(fits(found) for found in _found(document, steps))
    return lambda document: any(fits(found) for found in _found(document, steps))


def _wrong(text: str, why: str) -> str:
    return f"--where takes a condition such as '$.user.id == 5', not {text!r}: {why}."


def _path(text: str) -> tuple[list[_Step], str]:
    text = text.strip()
    if not text.startswith("$"):
        raise ValueError(_wrong(text, "the path begins with $, which is the value of the record"))
    steps: list[_Step] = []
    at = 1
    while (step := _STEP.match(text, at)) is not None:
        name, index, quoted, every = step.groups()
        steps.append(None if every else int(index) if index else json.loads(quoted) if quoted else name)
        at = step.end()
    if text[at : at + 1] in (".", "["):
        raise ValueError(_wrong(text, f'{text[at:]!r} does not begin with .name, ["name"], [0] or [*]'))
    return steps, text[at:]


def _found(document: Any, steps: list[_Step], at: int = 0) -> Iterator[Any]:
    """What the path leads to: nothing, one value, or several with [*]."""
    if at == len(steps):
        yield document
        return
    step = steps[at]
    if step is None:
        if isinstance(document, list | dict):
            for each in document.values() if isinstance(document, dict) else document:
                yield from _found(each, steps, at + 1)
    elif isinstance(step, str):
        if isinstance(document, dict) and step in document:
            yield from _found(document[step], steps, at + 1)
    elif isinstance(document, list) and -len(document) <= step < len(document):
        yield from _found(document[step], steps, at + 1)


def _comparison(sign: str, value: str, text: str) -> Condition:
    try:
        wanted = json.loads(value)
    except ValueError:
        wanted = value
    if sign == "=~":
        try:
            search = re.compile(wanted if isinstance(wanted, str) else value).search
        except re.error as wrong:
            raise ValueError(_wrong(text, f"{value} is not a regular expression ({wrong})")) from None
        return lambda found: isinstance(found, str) and search(found) is not None
    kind = _kind(wanted)
    if sign == "==":
        return lambda found: _kind(found) is kind and bool(found == wanted)
    if sign == "!=":
        return lambda found: _kind(found) is not kind or bool(found != wanted)
    if kind not in (float, str):
        raise ValueError(_wrong(text, f"only numbers and text are smaller or larger, not {value}"))
    holds = _ORDERED[sign]
    return lambda found: _kind(found) is kind and holds(found, wanted)


def _kind(value: Any) -> type:
    """One type for all numbers; true is none of them."""
    return float if type(value) in (int, float) else type(value)
