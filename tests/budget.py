"""How much the tests of every area try: a part of it in `make check`, all of it in `make test`.

`make check` runs with `--hypothesis-profile=quick` (see `conftest.py`), and everything else follows that one switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

#: What hypothesis tries by default, and in the quick profile.
FULL, QUICK = 100, 20


def examples(full: int) -> int:
    """`full` tries, or their part of it in a quick run."""
    return max(1, full * settings.default.max_examples // FULL)


def some(every: Sequence[T]) -> Sequence[T]:
    """All of them, or evenly spread ones in a quick run."""
    return every[:: max(1, FULL // settings.default.max_examples)]
