"""Tokens and proofs of broker-to-broker calls: valid for exactly what they were made for, and once."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.replication.call_token import (
    PROOF_BYTES,
    TOKEN_BYTES,
    WINDOW,
    BadToken,
    Claim,
    ReplayWindow,
    mac_of,
    make_proof,
    make_token,
    verify_proof,
    verify_token,
)
from ottla_broker.replication.peer_auth import TOKEN_KEY, NotAuthenticated, SecretAuth

SECRETS = st.binary(min_size=16, max_size=64)
IDS = st.integers(0, 2**31 - 1)
UUIDS = st.uuids()
CLAIMS = st.builds(Claim, IDS, UUIDS, IDS, UUIDS, st.integers(0, 2**64 - 1))
#: Kafka's spelling of UUIDs, and gRPC's of methods: neither has a zero byte.
TEXTS = st.text(st.characters(codec="ascii", min_codepoint=32), max_size=30)


@given(SECRETS, TEXTS, TEXTS, CLAIMS)
def test_a_token_says_what_was_signed(secret: bytes, cluster: str, method: str, claim: Claim) -> None:
    token = make_token(secret, cluster, method, claim)
    assert len(token) == TOKEN_BYTES
    assert secret not in token
    verified = verify_token([b"another secret of 32 bytes......", secret], cluster, method, token)
    assert (verified.claim, verified.secret, verified.mac) == (claim, secret, mac_of(token))


@given(st.tuples(SECRETS, TEXTS, TEXTS, CLAIMS), st.tuples(SECRETS, TEXTS, TEXTS))
def test_a_token_is_worthless_for_anything_else(
    made: tuple[bytes, str, str, Claim], other: tuple[bytes, str, str]
) -> None:
    secret, cluster, method, claim = made
    token = make_token(secret, cluster, method, claim)
    if (secret, cluster, method) != other:
        with pytest.raises(BadToken):
            verify_token([other[0]], other[1], other[2], token)


@given(SECRETS, CLAIMS, st.integers(0, TOKEN_BYTES - 1), st.integers(1, 255))
def test_a_changed_token_is_refused(secret: bytes, claim: Claim, at: int, change: int) -> None:
    token = bytearray(make_token(secret, "c", "/m", claim))
    token[at] ^= change
    with pytest.raises(BadToken):
        verify_token([secret], "c", "/m", bytes(token))


@given(SECRETS, st.binary(max_size=2 * TOKEN_BYTES))
def test_a_forged_token_is_refused(secret: bytes, stranger: bytes) -> None:
    with pytest.raises(BadToken):
        verify_token([secret], "c", "/m", stranger)
    with pytest.raises(BadToken):
        verify_proof(secret, b"m" * 32, 1, stranger)


@given(SECRETS, CLAIMS, IDS, UUIDS, st.integers(0, PROOF_BYTES - 1))
def test_a_proof_is_valid_for_its_call_only(
    secret: bytes, claim: Claim, broker_id: int, incarnation: UUID, at: int
) -> None:
    mac = mac_of(make_token(secret, "c", "/m", claim))
    proof = make_proof(secret, mac, broker_id, incarnation)
    assert verify_proof(secret, mac, broker_id, proof) == incarnation
    later = mac_of(make_token(secret, "c", "/m", claim._replace(number=claim.number ^ 1)))
    changed = bytes(byte ^ (i == at) for i, byte in enumerate(proof))
    for bad in (
        lambda: verify_proof(secret, later, broker_id, proof),
        lambda: verify_proof(secret + b"x", mac, broker_id, proof),
        lambda: verify_proof(secret, mac, broker_id ^ 1, proof),
        lambda: verify_proof(secret, mac, broker_id, changed),
    ):
        with pytest.raises(BadToken):
            bad()


@given(st.lists(st.integers(0, 3 * WINDOW) | st.integers(WINDOW - 5, WINDOW + 5), max_size=60))
def test_each_number_is_taken_once(numbers: list[int]) -> None:
    window, taken, highest = ReplayWindow(), set[int](), -1
    for number in numbers:
        expected = number not in taken and number > highest - WINDOW
        assert window.take(number) is expected
        if expected:
            taken.add(number)
            highest = max(highest, number)


# ---------------------------------------------------------------------- both ends together

FIRST, SECOND, LATER = UUID(int=1), UUID(int=2), UUID(int=3)
OLD, NEW = b"the old secret of all", b"the new secret of all"
METHOD = "/ottla.v1.Replication/Ask"


def auth(broker_id: int, incarnation: UUID, *secrets: bytes, cluster: str = "c") -> SecretAuth:
    return SecretAuth(secrets or (OLD,), cluster, broker_id, incarnation)


def test_each_end_learns_the_identity_of_the_other() -> None:
    one, two = auth(1, FIRST), auth(2, SECOND)
    signed = one.sign(METHOD, 2, SECOND)
    caller = two.verify(METHOD, {TOKEN_KEY: signed.token})
    assert (caller.id, caller.incarnation, caller.means_us) == (1, FIRST, True)
    assert signed.check(caller.proof) == SECOND


@pytest.mark.parametrize(
    ("receiver", "method", "reason"),
    [
        (auth(3, SECOND), METHOD, "other_broker"),
        (auth(1, SECOND), METHOD, "other_broker"),
        (auth(2, SECOND, cluster="d"), METHOD, "bad_token"),
        (auth(2, SECOND, NEW), METHOD, "bad_token"),
        (auth(2, SECOND), "/ottla.v1.Replication/Follow", "bad_token"),
    ],
    ids=["another broker", "itself", "another cluster", "another secret", "another method"],
)
def test_a_token_for_something_else_is_refused(receiver: SecretAuth, method: str, reason: str) -> None:
    signed = auth(1, FIRST).sign(METHOD, 2, SECOND)
    with pytest.raises(NotAuthenticated) as refused:
        receiver.verify(method, {TOKEN_KEY: signed.token})
    assert refused.value.reason == reason


@pytest.mark.parametrize("metadata", [{}, {TOKEN_KEY: "text"}, {TOKEN_KEY: b""}, {TOKEN_KEY: b"\x01" * 81}])
def test_a_call_without_a_token_is_refused(metadata: dict[str, str | bytes]) -> None:
    with pytest.raises(NotAuthenticated):
        auth(2, SECOND).verify(METHOD, metadata)


def test_a_token_is_used_once_and_not_by_a_later_life() -> None:
    signed = auth(1, FIRST).sign(METHOD, 2, SECOND)
    two = auth(2, SECOND)
    two.verify(METHOD, {TOKEN_KEY: signed.token})
    with pytest.raises(NotAuthenticated, match="used before"):
        two.verify(METHOD, {TOKEN_KEY: signed.token})
    assert not auth(2, LATER).verify(METHOD, {TOKEN_KEY: signed.token}).means_us


def test_an_answer_of_another_broker_is_refused() -> None:
    one = auth(1, FIRST)
    earlier, signed = one.sign(METHOD, 2, SECOND), one.sign(METHOD, 2, SECOND)
    two = auth(2, SECOND)
    recorded = two.verify(METHOD, {TOKEN_KEY: earlier.token}).proof
    for proof in (None, b"", b"x" * PROOF_BYTES, recorded):
        with pytest.raises(NotAuthenticated):
            signed.check(proof)


def test_a_secret_is_replaced_broker_by_broker() -> None:
    """OLD; then OLD and NEW; then NEW and OLD; then NEW: neighbours in this row understand each other."""
    row = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]
    for ours, theirs in [*zip(row, row, strict=True), *pairwise(row)]:
        for one_has, two_has in ((ours, theirs), (theirs, ours)):
            signed = auth(1, FIRST, *one_has).sign(METHOD, 2, SECOND)
            caller = auth(2, SECOND, *two_has).verify(METHOD, {TOKEN_KEY: signed.token})
            assert signed.check(caller.proof) == SECOND


def test_what_is_remembered_of_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla_broker.replication.peer_auth._CALLERS_MAX", 10)
    two = auth(2, SECOND)
    for life in range(100):
        signed = auth(1, UUID(int=life)).sign(METHOD, 2, SECOND)
        two.verify(METHOD, {TOKEN_KEY: signed.token})
    assert len(two._callers) == 10
