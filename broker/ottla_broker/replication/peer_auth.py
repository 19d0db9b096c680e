"""Both ends of an authenticated broker-to-broker call: signs outgoing calls, verifies incoming ones. [P]

`PeerAuth` is the interface that the internal listener and `GrpcPeers` use; `SecretAuth` implements it with the
cluster secret and `call_token`. Mutual TLS would be another implementation that reads the names in certificates.

State: this broker's call numbers, and the numbers used by each calling incarnation. Only calls with a
valid token change it, so it grows with restarts of brokers and not with unauthenticated attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla_broker.replication.call_token import (
    BadToken,
    Claim,
    ReplayWindow,
    mac_of,
    make_proof,
    make_token,
    verify_proof,
    verify_token,
)

#: Metadata of a call and of its answer; `-bin` has gRPC carry bytes.
TOKEN_KEY = "ottla-call-token-bin"
PROOF_KEY = "ottla-answer-proof-bin"

#: Incarnations of other brokers whose numbers are remembered, 600 bytes each. The one that called least recently is
#: evicted first; a recorded token of it could be used again then, after 4,096 restarts of other brokers.
_CALLERS_MAX = 4096


class NotAuthenticated(Exception):
    """The other end did not prove that it belongs to this cluster. `reason` is a label for metrics and logs."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class SignedCall(NamedTuple):
    """An outgoing call."""

    token: bytes
    target: int
    secret: bytes

    def check(self, proof: bytes | None) -> UUID:
        """The incarnation that answered. NotAuthenticated if it is not the target, or does not know the secret."""
        try:
            return verify_proof(self.secret, mac_of(self.token), self.target, proof or b"")
        except BadToken as bad:
            raise NotAuthenticated("bad_proof", str(bad)) from None


class Caller(NamedTuple):
    """An authenticated caller, and the proof for the response."""

    id: int
    incarnation: UUID
    #: Whether the call is meant for this incarnation; else the caller may only learn of it.
    means_us: bool
    proof: bytes


class PeerAuth(Protocol):
    def sign(self, method: str, target: int, incarnation: UUID) -> SignedCall:
        """For a call to that incarnation of broker `target`."""

    def verify(self, method: str, metadata: Mapping[str, str | bytes]) -> Caller:
        """The authenticated caller. NotAuthenticated if the token is not valid."""


class SecretAuth:
    def __init__(self, secrets: Sequence[bytes], cluster_id: str, broker_id: int, incarnation: UUID) -> None:
        """`secrets[0]` signs, all of them are accepted: so a secret can be replaced broker by broker."""
        self._secrets = tuple(secrets)
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._number = 0
        self._callers: dict[tuple[int, UUID], ReplayWindow] = {}

    def sign(self, method: str, target: int, incarnation: UUID) -> SignedCall:
        self._number += 1
        claim = Claim(self._broker_id, self._incarnation, target, incarnation, self._number)
        secret = self._secrets[0]
        return SignedCall(make_token(secret, self._cluster_id, method, claim), target, secret)

    def verify(self, method: str, metadata: Mapping[str, str | bytes]) -> Caller:
        token = metadata.get(TOKEN_KEY)
        if not isinstance(token, bytes):
            raise NotAuthenticated("no_token", "This listener is for brokers of the cluster only.")
        try:
            claim, mac, secret = verify_token(self._secrets, self._cluster_id, method, token)
        except BadToken as bad:
            raise NotAuthenticated("bad_token", str(bad)) from None
        if claim.target != self._broker_id:
            raise NotAuthenticated("other_broker", f"The call is meant for broker {claim.target}.")
        if claim.caller == self._broker_id:
            raise NotAuthenticated("same_id", f"The caller has the id of this broker, {claim.caller}.")
        means_us = claim.target_incarnation == self._incarnation
        # A token for an earlier incarnation does not count: the caller's numbers do once it knows this incarnation.
        if means_us and not self._window(claim).take(claim.number):
            raise NotAuthenticated("replayed", "The token was used before.")
        proof = make_proof(secret, mac, self._broker_id, self._incarnation)
        return Caller(claim.caller, claim.caller_incarnation, means_us, proof)

    def _window(self, claim: Claim) -> ReplayWindow:
        key = (claim.caller, claim.caller_incarnation)
        window = self._callers.pop(key, None)
        if window is None:
            window = ReplayWindow()
            if len(self._callers) >= _CALLERS_MAX:
                del self._callers[next(iter(self._callers))]
        self._callers[key] = window  # The last one is the one that called most recently.
        return window
