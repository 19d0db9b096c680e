"""The one exception that ends a command with a sentence instead of a traceback. [P]"""

from __future__ import annotations


class Failure(Exception):
    """Prints `ottla: <sentence>` on standard error and exits with `exit_code`. The sentence says what to do."""

    def __init__(self, sentence: str, *, exit_code: int = 1) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
