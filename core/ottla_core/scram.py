"""SCRAM credentials (RFC 5802, RFC 7677): the keys that stand for a password where it is checked. [P]

Kafka's two mechanisms. Clients derive a salted password from the text, which is slow on purpose; brokers keep two keys
of it, from which neither the text nor the salted password can be computed.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NamedTuple


class Mechanism(NamedTuple):
    #: As SASL and Kafka's settings call it.
    name: str
    #: Kafka's ScramMechanism on the wire.
    number: int
    #: As `hashlib` calls it.
    hash: str


MECHANISMS = {
    each.name: each
    for each in (Mechanism("SCRAM-SHA-256", 1, "sha256"), Mechanism("SCRAM-SHA-512", 2, "sha512"))
}
MECHANISMS_BY_NUMBER = {each.number: each for each in MECHANISMS.values()}
#: Kafka's bounds. A login repeats the iterations, so the upper one bounds what a login costs: 20 ms.
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
#: Of credentials that we make: as random as 26 characters, like those that Kafka's tools make.
SALT_BYTES = 16
SALT_BYTES_MAX = 128


@dataclass(frozen=True, slots=True)
class Credential:
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"<credential, {self.iterations} iterations>"


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes 2 to 20 ms, so brokers call it on a thread. Like Kafka, it takes the text as it is, without SASLprep."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def credential_of(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    stored = hashlib.new(mechanism.hash, client_key(mechanism, salted)).digest()
    return Credential(salt, iterations, stored, hmac.digest(salted, b"Server Key", mechanism.hash))


def client_key(mechanism: Mechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", mechanism.hash)


def is_password(mechanism: Mechanism, credential: Credential, password: str) -> bool:
    """As slow as `salted_password`."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    found = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)
