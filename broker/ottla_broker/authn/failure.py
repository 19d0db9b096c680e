"""A login that is refused, with the reason for the broker's log. Clients do not learn the reason. [P]

Except for tokens: they cannot be guessed, so the client gets the reason of a refused one (`client_reason`).
"""

from __future__ import annotations


class LoginFailed(Exception):
    def __init__(self, reason: str, user: str = "", *, client_reason: str = "") -> None:
        """`user` is the name that the client gave, if it did; never a password."""
        super().__init__(reason)
        self.reason = reason
        self.user = user
        self.client_reason = client_reason
