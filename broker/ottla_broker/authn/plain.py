"""The message of SASL PLAIN (RFC 4616) and of HTTP's Basic scheme: user and password. [P]"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import NamedTuple

from ottla_broker.authn.failure import LoginFailed
from ottla_broker.authn.scram import USER_CHARS_MAX

#: Nobody types a longer one, and each character is hashed.
_PASSWORD_CHARS_MAX = 1024
_BASIC = "basic "


class UserPassword(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"<user {self.user!r}>"


def parse_plain(message: bytes) -> UserPassword:
    """`[authorization id] NUL user NUL password`. LoginFailed if it is not that."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise LoginFailed("the message is not UTF-8") from None
    if len(parts) != 3:
        raise LoginFailed("the message is not PLAIN's")
    asked, user, password = parts
    found = _checked(user, password)
    if asked not in ("", user):
        raise LoginFailed("the authorization id is another user", user)
    return found


def parse_basic(header: str) -> UserPassword:
    """`Basic <base64 of user:password>`. LoginFailed if it is not that."""
    if header[: len(_BASIC)].lower() != _BASIC:
        raise LoginFailed("the authorization is not Basic")
    try:
        user, colon, password = b64decode(header[len(_BASIC) :], validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise LoginFailed("the authorization is not base64 of UTF-8") from None
    if not colon:
        raise LoginFailed("the authorization has no password")
    return _checked(user, password)


def _checked(user: str, password: str) -> UserPassword:
    if not 0 < len(user) <= USER_CHARS_MAX or not 0 < len(password) <= _PASSWORD_CHARS_MAX:
        raise LoginFailed("user or password is empty or too long")
    return UserPassword(user, password)
