"""Which records `ottla consume` shows: `--grep`, `--where`, `--key`, `--header`. [P]"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from ottla_cli.json_condition import json_condition
from ottla_client.json_text import JsonText, json_line
from ottla_client.record import ConsumerRecord

Filter = Callable[[ConsumerRecord], bool]


def record_filter(
    pattern: str | None, key: str | None, headers: Sequence[str], where: Sequence[str] = ()
) -> Filter | None:
    """None if all records are shown; all conditions hold for a record that is. ValueError with a sentence."""
    checks: list[Filter] = []
    if pattern is not None:
        checks.append(_grep(pattern))
    if key is not None:
        checks.append(_key(key))
    checks.extend(_header(each) for each in headers)
    if where:
        checks.append(_where(where))
    if not checks:
        return None
    return lambda record: all(check(record) for check in checks)


def _grep(pattern: str) -> Filter:
    try:
        search = re.compile(pattern.encode()).search
    except re.error as wrong:
        raise ValueError(f"{pattern!r} is not a regular expression: {wrong}.") from None
    return lambda record: record.value is not None and search(record.value) is not None


def _where(texts: Sequence[str]) -> Filter:
    conditions = [json_condition(each) for each in texts]

    def holds(record: ConsumerRecord) -> bool:
        if record.value is None:
            return False
        try:
            document = json.loads(record.value)
        except (ValueError, RecursionError):  # also of bytes that are not UTF-8, and of deep nesting
            return False
        return all(condition(document) for condition in conditions)

    return holds


def _key(key: str) -> Filter:
    """A decoded key matches as JSON text, or as the string that it is."""
    wanted, quoted = key.encode(), json_line(key)
    return lambda record: record.key == wanted or (isinstance(record.key, JsonText) and record.key == quoted)


def _header(text: str) -> Filter:
    """`name` or `name=value`."""
    name, separator, value = text.partition("=")
    if not name:
        raise ValueError(f"--header takes NAME or NAME=VALUE, not {text!r}.")
    wanted = value.encode()
    if not separator:
        return lambda record: any(each[0] == name for each in record.headers)
    return lambda record: any(each[0] == name and each[1] == wanted for each in record.headers)


def topics_of(patterns: Sequence[str], there: Sequence[str], *, regex: bool) -> list[str]:
    """The topics to read: the names, or all that a regular expression matches completely."""
    if not regex:
        return list(dict.fromkeys(patterns))
    found: dict[str, None] = {}
    for pattern in patterns:
        try:
            matches = re.compile(pattern).fullmatch
        except re.error as wrong:
            raise ValueError(f"{pattern!r} is not a regular expression: {wrong}.") from None
        found |= dict.fromkeys(sorted(name for name in there if matches(name)))
    return list(found)
