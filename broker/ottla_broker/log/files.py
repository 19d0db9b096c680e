"""Names of the files in a partition's folder: Kafka's, to the letter. [P]

A segment is named after its base offset in twenty digits; suffixes behind the kind say that a file is on
its way out (`.deleted`), not finished (`.cleaned`), or finished and about to take the place of others
(`.swap`).
"""

from __future__ import annotations

from typing import NamedTuple

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
#: All that belongs to one segment and goes when it goes.
KINDS = (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

_DIGITS = 20


class FileName(NamedTuple):
    base_offset: int
    kind: str
    suffix: str


def file_name(base_offset: int, kind: str, suffix: str = "") -> str:
    return f"{base_offset:020d}{kind}{suffix}"


def parse_name(name: str) -> FileName | None:
    """What a name in a partition's folder means; None if it is not a segment's file."""
    digits, rest = name[:_DIGITS], name[_DIGITS:]
    if not (digits.isascii() and digits.isdigit()):
        return None
    for suffix in (DELETED, CLEANED, SWAP):
        if rest.endswith(suffix):
            rest = rest[: -len(suffix)]
            # A file can be renamed twice, when a swap is itself deleted.
            return FileName(int(digits), rest, suffix) if rest.removesuffix(SWAP) in KINDS else None
    return FileName(int(digits), rest, "") if rest in KINDS else None
