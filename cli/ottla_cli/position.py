"""Positions in a partition: `earliest`, `latest`, an offset, a time. [P]

Parses `--from` and `--to` of consume, and `--at` of offsets. A plain number below a trillion is an offset, a
larger one is milliseconds since 1970: a trillion is the year 2001 in milliseconds, and more records than a
partition ever has. A leading `@` makes any number a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_cli.quantities import parse_duration_ms, parse_time_ms

_FIRST_TIME_MS = 10**12
_EARLIEST = ("earliest", "beginning", "start")
_LATEST = ("latest", "end")

POSITION_HELP = (
    "earliest, latest, an offset, -N (the last N), a time (2026-03-31T14:00Z, ms) or an age (7d, -1h)"
)


@dataclass(frozen=True, slots=True)
class Position:
    """`kind` is earliest, latest, offset, tail or time; `value` an offset, a count or milliseconds."""

    kind: str
    value: int = 0


def parse_position(text: str, now_ms: int) -> Position:
    """Parse a position; ValueError with a sentence if it is not valid."""
    word = text.strip().lower()
    if word in _EARLIEST:
        return Position("earliest")
    if word in _LATEST:
        return Position("latest")
    if word.startswith("@") and _is_number(word[1:]):
        return Position("time", int(word[1:]))
    if _is_number(word):
        return Position("time" if int(word) >= _FIRST_TIME_MS else "offset", int(word))
    try:
        if word.startswith("-"):
            if _is_number(word[1:]):
                return Position("tail", int(word[1:]))
            return Position("time", max(0, now_ms - parse_duration_ms(word[1:])))
        if _is_age(word):
            return Position("time", max(0, now_ms - parse_duration_ms(word)))
        return Position("time", parse_time_ms(text.strip().removeprefix("@")))
    except ValueError:
        raise ValueError(f"{text!r} is not a position; write one of: {POSITION_HELP}.") from None


def _is_age(text: str) -> bool:
    """`7d` means the same as `-7d`."""
    return text[:1].isdecimal() and text[-1:] in "smhdw"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
