"""A login that is refused, with the reason for the broker's log. Clients are not told which reason it was. [P]"""

from __future__ import annotations


class LoginFailed(Exception):
    def __init__(self, reason: str, user: str = "") -> None:
        """`user` is the name that the client gave, if it did; never a password."""
        super().__init__(reason)
        self.reason = reason
        self.user = user
