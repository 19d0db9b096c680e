"""Numbers as people write and read them: sizes, durations, times, rates. [P]"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?)b?", re.IGNORECASE)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_size(text: str) -> int:
    """`1000`, `16k`, `1.5MB`, `64KiB` in bytes: k is 1000, Ki is 1024. ValueError with a sentence."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write bytes, or for example 16k, 64KiB, 1MB.")
    number, prefix, binary = found.groups()
    power = " kmg".index(prefix.lower() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


def parse_duration_ms(text: str) -> int:
    """`90s`, `1h30m`, `2d`, `250ms`. ValueError with a sentence."""
    position, total = 0, 0.0
    for part in _DURATION_PART.finditer(text):
        if part.start() != position:
            break
        total += float(part[1]) * _UNIT_MS[part[2]]
        position = part.end()
    if not text or position != len(text):
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 15m, 1h30m, 2d.")
    return int(total)


def parse_time_ms(text: str) -> int:
    """An ISO date or time, in UTC unless it names a zone. ValueError with a sentence."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write for example 2026-03-31T14:00:00Z.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def show_time(timestamp_ms: int) -> str:
    """ISO, UTC, milliseconds: what `parse_time_ms` reads back."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # beyond the year 9999
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def show_size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000 or unit == "GB":
            break
        size_bytes /= 1000
    return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"


def show_count(count: float) -> str:
    """A number with thousands separators."""
    return f"{count:,.0f}"


def show_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def show_age(seconds: float) -> str:
    """One short word: `0 s`, `59 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for unit, length in (("d", 86_400), ("h", 3600)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def setting_value(name: str, value: str) -> str:
    """`7d` for a setting in ms, and `1GB` for one in bytes, as the number that brokers expect; others as they are."""
    try:
        if name.endswith(".ms"):
            return str(parse_duration_ms(value))
        if name.endswith(".bytes"):
            return str(parse_size(value))
    except ValueError:
        pass  # the broker's error names the setting and its limits
    return value


def plural(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"{show_count(count)} {noun}{'' if count == 1 else 's'}"
