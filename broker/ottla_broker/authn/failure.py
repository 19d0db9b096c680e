"""A login that is refused, with the reason for the broker's log. Clients are not told which reason it was. [P]

Except for tokens: they are not guessed, so what is wrong with one is `told`.
"""

from __future__ import annotations


class LoginFailed(Exception):
    def __init__(self, reason: str, user: str = "", *, told: str = "") -> None:
        """`user` is the name that the client gave, if it did; never a password."""
        super().__init__(reason)
        self.reason = reason
        self.user = user
        self.told = told
