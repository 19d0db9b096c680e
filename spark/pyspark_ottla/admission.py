"""The differences between pyspark versions in streaming sources, in one place. [A]

Admission control (`latestOffset(start, limit)`, read limits, Trigger.AvailableNow) came with pyspark 4.2.
"""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise ImportError("Streaming from Ottla needs pyspark 4.2 or later; this one is older.") from error

__all__ = ["ReadLimit", "SupportsTriggerAvailableNow", "limit_of_rows", "rows_of_limit"]


def limit_of_rows(rows: int | None) -> ReadLimit:
    return ReadAllAvailable() if rows is None else ReadMaxRows(rows)


def rows_of_limit(limit: Any) -> int | None:
    """Maximum rows of a micro-batch, under either attribute name; None for no limit."""
    for name in ("max_rows", "maxRows"):
        rows = getattr(limit, name, None)
        if rows is not None:
            return int(rows)
    return None
