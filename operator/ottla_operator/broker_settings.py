"""Checks whether brokers would start with a Cluster's settings, before any broker is restarted. [P]

A broker with an unknown setting or an invalid value exits at start-up. The operator must not import broker code, so
`make gen` writes the table of settings into `broker_settings_table.py`. A custom broker image may know more settings
than the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches

from ottla_operator.broker_settings_table import TABLE
from ottla_operator.specs import InvalidSpec

_WIDEST = {"int": 2**31 - 1, "long": 2**63 - 1}
#: (a, n, b): a must be at least n times b.
_AT_LEAST = (
    ("queued.max.request.bytes", 1, "socket.request.max.bytes"),
    ("broker.session.timeout.ms", 2, "broker.heartbeat.interval.ms"),
    ("default.replication.factor", 1, "min.insync.replicas"),
)


def check_settings(settings: Mapping[str, str], *, own_image: bool = False) -> None:
    """InvalidSpec, one sentence, for the first setting that a broker would refuse."""
    for name, value in sorted(settings.items()):
        if name in TABLE:
            _check_value(name, value.strip())
        elif not own_image:
            near = get_close_matches(name, TABLE, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidSpec(
                f"config sets {name}, which is not a broker setting.{hint} Nothing was changed."
            )
    for greater, factor, smaller in _AT_LEAST:
        most, least = (int(settings.get(name, TABLE[name][4])) for name in (greater, smaller))
        if most < factor * least:
            times = "" if factor == 1 else f"{factor} times "
            raise InvalidSpec(
                f"config: {greater} ({most}) must be at least {times}{smaller} ({least}). Nothing was changed."
            )


def _check_value(name: str, value: str) -> None:
    kind, low, high, values, _, may_be_empty = TABLE[name]
    if not value and may_be_empty:
        return
    if kind == "boolean":
        words = values or ("true", "false")
        allowed, fine = " or ".join(words), value.lower() in words
    elif kind in _WIDEST:
        least = -_WIDEST[kind] - 1 if low is None else low
        most = _WIDEST[kind] if high is None else high
        allowed = f"a whole number from {least:.0f} to {most:.0f}"
        fine = _is_whole(value) and least <= int(value) <= most
    elif kind == "double":
        least, most = (-math.inf if low is None else low), (math.inf if high is None else high)
        allowed, fine = (
            f"a number from {least:g} to {most:g}",
            _is_number(value) and least <= float(value) <= most,
        )
    elif values:
        parts = [part.strip() for part in value.split(",")] if kind == "list" else [value]
        allowed, fine = f"one of {', '.join(values)}", all(part in values for part in parts)
    else:
        allowed, fine = "a non-empty text", bool(value)
    if not fine:
        raise InvalidSpec(f"config sets {name} to {value!r}: it must be {allowed}. Nothing was changed.")


def _is_whole(text: str) -> bool:
    digits = text[1:] if text[:1] in ("-", "+") else text
    return digits.isascii() and digits.isdigit() and len(digits) <= 20


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
