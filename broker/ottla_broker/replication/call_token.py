"""Tokens of broker-to-broker calls: caller and target, signed with the cluster secret. [P]

A call carries a token, its answer carries a proof:

    token = HMAC(secret, cluster id, method, caller, caller incarnation, target, target incarnation, number)
    proof = HMAC(secret, the token's HMAC, answering broker, its incarnation)

The secret itself never travels. The target's incarnation is the challenge: it is random, new with each process start,
and every broker reads it from the metadata image. So a token is not valid for another broker, for a later
incarnation of the same broker or for another method, and no clock is needed. Within one incarnation the number makes
it valid once (`ReplayWindow`). The proof covers the token, so it cannot be recorded and used again either.

This authenticates both ends of a call. It does not encrypt, and it does not protect a connection against an attacker
who can change packets on the network between the brokers: that takes TLS.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

VERSION = 1
#: Size of an HMAC-SHA256.
MAC_BYTES = 32

_TOKEN = struct.Struct(">Bi16si16sQ")
_PROOF = struct.Struct(">i16s")
TOKEN_BYTES = _TOKEN.size + MAC_BYTES
PROOF_BYTES = _PROOF.size + MAC_BYTES

#: First bytes of the signed text, so that a token is never accepted as a proof, or the other way round.
_CALL = b"ottla call\x00"
_ANSWER = b"ottla answer\x00"

#: How far below the highest number a new one may be: calls overtake each other.
WINDOW = 4096


class BadToken(ValueError):
    """A token or proof that is missing, malformed or not made with a secret of this cluster."""


class Claim(NamedTuple):
    """Contents of a token."""

    caller: int
    caller_incarnation: UUID
    target: int
    target_incarnation: UUID
    #: Counts the calls of the caller's incarnation.
    number: int


class Verified(NamedTuple):
    claim: Claim
    mac: bytes
    #: The secret that made the token, and so makes the proof.
    secret: bytes


def make_token(secret: bytes, cluster_id: str, method: str, claim: Claim) -> bytes:
    fields = _pack(claim)
    return fields + _mac(secret, cluster_id, method, fields)


def mac_of(token: bytes) -> bytes:
    return token[-MAC_BYTES:]


def verify_token(secrets: Sequence[bytes], cluster_id: str, method: str, token: bytes) -> Verified:
    """Contents of the token, if one of `secrets` signed it for this cluster and method; else BadToken."""
    if len(token) != TOKEN_BYTES or token[0] != VERSION:
        raise BadToken("The token has another format.")
    fields, mac = token[: _TOKEN.size], mac_of(token)
    # All are compared, so that the time does not reveal which one matched.
    found = [s for s in secrets if hmac.compare_digest(_mac(s, cluster_id, method, fields), mac)]
    if not found:
        raise BadToken("The token was signed with another secret, or for another cluster or method.")
    _, caller, caller_incarnation, target, target_incarnation, number = _TOKEN.unpack(fields)
    claim = Claim(caller, UUID(bytes=caller_incarnation), target, UUID(bytes=target_incarnation), number)
    return Verified(claim, mac, found[0])


def make_proof(secret: bytes, token_mac: bytes, broker_id: int, incarnation: UUID) -> bytes:
    fields = _PROOF.pack(broker_id, incarnation.bytes)
    return fields + _proof_mac(secret, token_mac, fields)


def verify_proof(secret: bytes, token_mac: bytes, broker_id: int, proof: bytes) -> UUID:
    """The incarnation that answered, if it is broker `broker_id` and knows the secret; else BadToken."""
    if len(proof) != PROOF_BYTES:
        raise BadToken("The response has no proof.")
    fields, mac = proof[: _PROOF.size], proof[-MAC_BYTES:]
    if not hmac.compare_digest(_proof_mac(secret, token_mac, fields), mac):
        raise BadToken("The response was signed with another secret.")
    answering, incarnation = _PROOF.unpack(fields)
    if answering != broker_id:
        raise BadToken(f"Broker {answering} answered in place of broker {broker_id}.")
    return UUID(bytes=incarnation)


def _pack(claim: Claim) -> bytes:
    return _TOKEN.pack(
        VERSION,
        claim.caller,
        claim.caller_incarnation.bytes,
        claim.target,
        claim.target_incarnation.bytes,
        claim.number,
    )


def _mac(secret: bytes, cluster_id: str, method: str, fields: bytes) -> bytes:
    # The fields have a fixed length and neither text has a zero byte, so no two calls sign the same bytes.
    signed = b"".join((_CALL, fields, cluster_id.encode(), b"\x00", method.encode()))
    return hmac.digest(secret, signed, "sha256")


def _proof_mac(secret: bytes, token_mac: bytes, fields: bytes) -> bytes:
    return hmac.digest(secret, b"".join((_ANSWER, token_mac, fields)), "sha256")


class ReplayWindow:
    """Accepts each number once. Numbers more than `WINDOW` below the highest are refused."""

    __slots__ = ("_highest", "_taken")

    def __init__(self) -> None:
        self._highest = -1
        #: Bit i: the number `_highest - i` was used.
        self._taken = 0

    def take(self, number: int) -> bool:
        """Whether `number` is new."""
        ahead = number - self._highest
        if ahead > 0:
            self._taken = ((self._taken << ahead) | 1) & _MASK if ahead < WINDOW else 1
            self._highest = number
            return True
        if -ahead >= WINDOW or self._taken >> -ahead & 1:
            return False
        self._taken |= 1 << -ahead
        return True


_MASK = (1 << WINDOW) - 1
