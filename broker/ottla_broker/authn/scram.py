"""The broker's side of one SCRAM login (RFC 5802): two messages in, two out. [P]

An unknown user is treated to the end like a known one with another password: `find` returns a decoy for it.
Called by `logins.py`, which passes the credentials and a fresh nonce.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable

from ottla_broker.authn.failure import LoginFailed
from ottla_core.scram import Credential, Mechanism

#: gs2 header with an optional authorization id, reserved extension excluded; user; nonce; extensions.
_FIRST = re.compile(r"((?:n|y),(?:a=([^,]*))?,)(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)", re.DOTALL)
_FINAL = re.compile(r"(c=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[^,]+)*?),p=([^,]+)", re.DOTALL)
_ESCAPES = {"=2C": ",", "=3D": "="}
_ESCAPE = re.compile(r"=(2C|3D)?")
#: Longer ones are not names of users; this one is kept in logs.
USER_CHARS_MAX = 256


class ScramLogin:
    def __init__(self, mechanism: Mechanism, find: Callable[[str], Credential], nonce: str) -> None:
        """`find` returns the credential of a user, or a decoy; `nonce` is random and has no comma."""
        self._mechanism = mechanism
        self._find = find
        self._own_nonce = nonce
        self._credential: Credential | None = None
        self._header = self._signed = ""
        self.user = ""
        self.is_done = False

    def step(self, message: bytes) -> bytes:
        """The answer. LoginFailed if the client is refused, or the message is not SCRAM's."""
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise LoginFailed("the message is not UTF-8") from None
        if self.is_done:
            raise LoginFailed("a message after the last one", self.user)
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise LoginFailed("the first message is not SCRAM's")
        self._header, asked, bare, name, nonce = found.groups()
        self.user = _unescaped(name)
        if asked and _unescaped(asked) != self.user:
            raise LoginFailed("the authorization id is another user", self.user)
        self._credential = credential = self._find(self.user)
        challenge = (
            f"r={nonce}{self._own_nonce},s={b64encode(credential.salt).decode()},i={credential.iterations}"
        )
        self._signed = f"{bare},{challenge}"
        return challenge.encode()

    def _final(self, text: str, credential: Credential) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise LoginFailed("the final message is not SCRAM's", self.user)
        unproven, binding, nonce, proof_text = found.groups()
        # As in Kafka, the end decides: librdkafka before 2.8 repeats its own nonce in front.
        if not nonce.endswith(self._own_nonce):
            raise LoginFailed("the nonce is another one", self.user)
        if _decoded(binding, self.user) != self._header.encode():
            raise LoginFailed("the channel binding is another one", self.user)
        signed = f"{self._signed},{unproven}".encode()
        name = self._mechanism.hash
        signature = hmac.digest(credential.stored_key, signed, name)
        proof = _decoded(proof_text, self.user)
        if len(proof) != len(signature):
            raise LoginFailed("the proof has another length", self.user)
        key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(name, key).digest(), credential.stored_key):
            raise LoginFailed("unknown user or wrong password", self.user)
        self.is_done = True
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, name))


def _unescaped(name: str) -> str:
    if len(name) > USER_CHARS_MAX or any(escape[0] not in _ESCAPES for escape in _ESCAPE.finditer(name)):
        raise LoginFailed("the user's name is not valid")
    return _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], name)


def _decoded(text: str, user: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginFailed("a field is not base64", user) from None
