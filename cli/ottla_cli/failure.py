"""The one exception that ends a command with a sentence instead of a traceback. [P]"""

from __future__ import annotations


class Failure(Exception):
    """`ottla: <sentence>` on standard error, then `exit_code`. Say what to do, not only what went wrong."""

    def __init__(self, sentence: str, *, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
