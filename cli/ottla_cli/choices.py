"""Words that an option takes, as a text that wraps between them. [P]

Typer lists them in a narrow column and breaks them in the middle; so commands give such options a metavar, and list the
words in their help text.
"""

from __future__ import annotations

from enum import StrEnum


def listed(words: type[StrEnum]) -> str:
    return ", ".join(map(str, words))
