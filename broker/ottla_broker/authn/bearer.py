"""Bearer tokens: the message of SASL OAUTHBEARER (RFC 7628), HTTP's Bearer scheme, and the claims of a token. [P]

The signature is checked before, by `tokens.py`; here is what its claims must say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla_broker.authn.failure import LoginFailed
from ottla_broker.authn.scram import USER_CHARS_MAX

#: gs2 header with an optional authorization id, key-value pairs, an empty one at the end.
_FIRST = re.compile(rb"n,(?:a=([^,]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)+)\x01")
_AUTH = b"auth="
_BEARER = "bearer "


class Asked(NamedTuple):
    token: str
    #: Requested authorization id; empty: the token's subject.
    user: str = ""

    def __repr__(self) -> str:
        return "<a token>"


def parse_oauthbearer(message: bytes) -> Asked:
    """LoginFailed if it is not that message."""
    found = _FIRST.fullmatch(message)
    if found is None:
        raise LoginFailed("the message is not OAUTHBEARER's")
    try:
        user = (found[1] or b"").decode()
        auth = [pair[len(_AUTH) :].decode() for pair in found[2].split(b"\x01") if pair.startswith(_AUTH)]
    except UnicodeDecodeError:
        raise LoginFailed("the message is not UTF-8") from None
    if len(auth) != 1:
        raise LoginFailed("the message has no token")
    return Asked(parse_bearer(auth[0]), user.replace("=2C", ",").replace("=3D", "="))


def is_bearer(header: str) -> bool:
    return header[: len(_BEARER)].lower() == _BEARER


def parse_bearer(header: str) -> str:
    """`Bearer <token>`. LoginFailed if it is not that."""
    token = header[len(_BEARER) :].strip()
    if not is_bearer(header) or not token:
        raise LoginFailed("the authorization is not a bearer token")
    return token


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What is expected of tokens; empty for anything."""

    audiences: tuple[str, ...] = ()
    issuer: str = ""
    user_claim: str = "sub"
    skew_s: int = 30


class Identity(NamedTuple):
    user: str
    #: Seconds since 1970.
    expires_at: float


def identity_of(claims: Mapping[str, Any], rules: TokenRules, now: float) -> Identity:
    """Of a token with a valid signature. LoginFailed, with the reason, if its claims are not as expected."""
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not 0 < len(user) <= USER_CHARS_MAX:
        raise _refused(f"the token has no usable claim {rules.user_claim!r}")
    expires_at = _time(claims, "exp", user)
    if expires_at is None:
        raise _refused("the token has no expiry (exp)", user)
    if now >= expires_at + rules.skew_s:
        raise _refused(f"the token expired {now - expires_at:.0f} s ago", user)
    begins_at = max(_time(claims, "nbf", user) or 0.0, _time(claims, "iat", user) or 0.0)
    if begins_at > now + rules.skew_s:
        raise _refused(f"the token is valid in {begins_at - now:.0f} s only; compare the clocks", user)
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise _refused(f"the token's issuer is {_shown(claims.get('iss'))}, not {rules.issuer!r}", user)
    if rules.audiences:
        given = claims.get("aud")
        audiences = given if isinstance(given, list) else [given]
        if not any(each in audiences for each in rules.audiences):
            raise _refused(
                f"the token's audience is {_shown(given)}, not {' or '.join(map(repr, rules.audiences))}",
                user,
            )
    return Identity(user, expires_at)


def _refused(reason: str, user: str = "") -> LoginFailed:
    return LoginFailed(reason, user, client_reason=reason)


def _time(claims: Mapping[str, Any], name: str, user: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise _refused(f"the token's claim {name!r} is not a time", user)
    return float(value)


def _shown(value: object) -> str:
    return repr(value)[:100]
