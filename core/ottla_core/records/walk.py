"""Where each record of an uncompressed batch begins. [P]

For readers that convert many records at once. Each record says where the next begins, so this loop cannot be
vectorised; it is compiled instead (decision 0015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64


def record_starts(data: bytes, at: i64, end: i64, starts: list[int]) -> bool:
    """Append the position of each record in `data[at:end]`; False if their lengths do not add up to `end`.

    A wrong length leads to wrong positions, but never outside of [at, end]. Lengths below 1 MiB are followed, and
    others refused. IndexError if the data ends within a length.
    """
    while at < end:
        starts.append(at)
        low: i64 = data[at]
        if low < 0x80:
            at += 1 + (low >> 1)
            continue
        middle: i64 = data[at + 1]
        if middle < 0x80:
            at += 2 + ((low & 0x7F | middle << 7) >> 1)
            continue
        high: i64 = data[at + 2]
        if high >= 0x80:
            return False
        at += 3 + ((low & 0x7F | (middle & 0x7F) << 7 | high << 14) >> 1)
    return at == end
