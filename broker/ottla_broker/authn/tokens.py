"""Checks JSON Web Tokens: signature by a key of the JWKS, then the claims (`bearer.py`). [A]

PyJWT checks signatures: it is the most used library for this, maintained, and leaves RSA and curves to `cryptography`.
A check takes about 0.1 ms, so it stays on the event loop; reading keys does not. Tokens that were valid are
remembered until they expire or the keys change, because gRPC clients send theirs with each call.

Only signatures with public keys are accepted: "none" and HMAC would let a client sign with what everybody knows.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import Any, Protocol

import jwt

from ottla_broker.authn.bearer import Identity, TokenRules, identity_of
from ottla_broker.authn.failure import LoginFailed
from ottla_core.ports.clock import Clock

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
#: As much as a request before the login, or the headers of a call, may have.
_TOKEN_CHARS_MAX = 16 * 1024
_REMEMBERED_MAX = 10_000
#: Clients log in again at some nine tenths of a session, and at most once a second.
_SESSION_MS_MIN = 2000


class Keys(Protocol):
    async def find(self, key_id: str | None) -> dict[str, Any]: ...


class Tokens:
    def __init__(self, keys: Keys, rules: TokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock
        self._checker = jwt.PyJWS(algorithms=list(_ALGORITHMS))
        self._remembered: OrderedDict[bytes, Identity] = OrderedDict()

    def forget(self) -> None:
        """The keys have changed."""
        self._remembered.clear()

    def remembered(self, token: str) -> Identity | None:
        """Whose token it is, if it was checked and is still valid."""
        found = self._remembered.get(_digest(token))
        if found is None or self._now() >= found.expires_at + self._rules.skew_s:
            return None
        return found

    async def check(self, token: str) -> Identity:
        """LoginFailed if it is not valid."""
        found = self.remembered(token)
        if found is not None:
            return found
        algorithm, key_id = self._header(token)
        key = await self._keys.find(key_id)
        found = identity_of(self._claims(token, algorithm, key), self._rules, self._now())
        self._remembered[_digest(token)] = found
        while len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return found

    def lifetime_ms(self, identity: Identity) -> int:
        """How long a session with it may last. Within the clock skew it is the minimum: time to log in again."""
        return max(_SESSION_MS_MIN, int((identity.expires_at - self._now()) * 1000))

    def _now(self) -> float:
        return self._clock.wall_ms() / 1000

    def _header(self, token: str) -> tuple[str, str | None]:
        if len(token) > _TOKEN_CHARS_MAX:
            raise _refused("the token is too long")
        try:
            header = self._checker.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise LoginFailed(
                "it is not a JSON Web Token", client_reason="the token is not a JSON Web Token"
            ) from None
        algorithm = header.get("alg")
        if algorithm not in _ALGORITHMS:
            reason = (
                f"the token is signed with {str(algorithm)[:20]!r}, not with one of {', '.join(_ALGORITHMS)}"
            )
            raise _refused(reason)
        key_id = header.get("kid")
        return algorithm, key_id if isinstance(key_id, str) else None

    def _claims(self, token: str, algorithm: str, key: dict[str, Any]) -> dict[str, Any]:
        try:
            if key.get("alg", algorithm) != algorithm:
                raise jwt.InvalidKeyError
            made = jwt.PyJWK(key, algorithm)
            claims = json.loads(self._checker.decode(token, made.key, algorithms=[algorithm]))
        except (jwt.InvalidKeyError, jwt.PyJWKError, TypeError):
            raise _refused(f"the key of the token is not one for {algorithm}") from None
        except (jwt.PyJWTError, ValueError):
            raise _refused("the signature of the token is not valid") from None
        if not isinstance(claims, dict):
            raise _refused("the token has no claims")
        return claims


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=32).digest()


def _refused(reason: str) -> LoginFailed:
    return LoginFailed(reason, client_reason=reason)
