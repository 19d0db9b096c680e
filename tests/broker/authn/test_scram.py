"""SCRAM's messages: the examples of the RFCs, and every way to get them wrong."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.authn.failure import LoginFailed
from ottla_broker.authn.plain import UserPassword, parse_basic, parse_plain
from ottla_broker.authn.scram import ScramLogin
from ottla_core.scram import MECHANISMS, Credential, client_key, credential_of, is_password, salted_password

SHA256 = MECHANISMS["SCRAM-SHA-256"]
SALT, ITERATIONS = b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096


def made(password: str = "pencil", name: str = "SCRAM-SHA-256") -> Credential:
    mechanism = MECHANISMS[name]
    return credential_of(mechanism, salted_password(mechanism, password, SALT, ITERATIONS), SALT, ITERATIONS)


def login(nonce: str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0") -> ScramLogin:
    return ScramLogin(SHA256, lambda _: made(), nonce)


FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="


def test_the_example_of_rfc_7677() -> None:
    server = login()
    assert server.step(FIRST) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert server.step(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.is_done
    assert server.user == "user"
    with pytest.raises(LoginFailed, match="after the last"):
        server.step(FINAL)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"", "not SCRAM"),
        (b"\xff\xfe", "UTF-8"),
        (b"p=tls-unique,,n=user,r=abc", "not SCRAM"),
        (b"n,,m=ext,n=user,r=abc", "not SCRAM"),
        (b"n,,n=,r=abc", "not SCRAM"),
        (b"n,,n=us=er,r=abc", "name"),
        (b"n,,n=" + b"u" * 300 + b",r=abc", "name"),
        (b"n,a=root,n=user,r=abc", "authorization id"),
    ],
)
def test_first_messages_that_are_refused(first: bytes, reason: str) -> None:
    with pytest.raises(LoginFailed, match=reason):
        login().step(first)


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (b"", "not SCRAM"),
        (FINAL.replace(b"c=biws", b"c=eSws"), "channel binding"),
        (FINAL.replace(b"c=biws", b"c=%"), "base64"),
        (FINAL.replace(b"k0,p", b"k1,p"), "nonce"),
        (FINAL.replace(b"p=dHz", b"p=dHa"), "wrong password"),
        (FINAL[:-44] + b"YWJj", "length"),
        (FIRST, "not SCRAM"),
    ],
)
def test_final_messages_that_are_refused(final: bytes, reason: str) -> None:
    server = login()
    server.step(FIRST)
    with pytest.raises(LoginFailed, match=reason) as refused:
        server.step(final)
    assert refused.value.user == "user"
    assert not server.is_done


def answered(password: str, name: str, user: str, credential: Credential, repeated: str = "") -> bool:
    """A login of a client written from the RFC; whether the broker accepts it and proves itself."""
    mechanism = MECHANISMS[name]
    server = ScramLogin(mechanism, lambda _: credential, "SERVER")
    escaped = user.replace("=", "=3D").replace(",", "=2C")
    bare = f"n={escaped},r=CLIENT"
    challenge = server.step(f"n,,{bare}".encode()).decode()
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    salted = salted_password(mechanism, password, b64decode(fields["s"]), int(fields["i"]))
    unproven = f"c=biws,r={repeated}{fields['r']}"
    signed = f"{bare},{challenge},{unproven}".encode()
    ours = credential_of(mechanism, salted, b"", 0)
    signature = hmac.digest(ours.stored_key, signed, mechanism.hash)
    proof = bytes(a ^ b for a, b in zip(client_key(mechanism, salted), signature, strict=True))
    try:
        last = server.step(f"{unproven},p={b64encode(proof).decode()}".encode())
    except LoginFailed:
        return False
    assert last == b"v=" + b64encode(hmac.digest(ours.server_key, signed, mechanism.hash))
    assert server.user == user
    return True


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_the_right_password_and_no_other(name: str) -> None:
    credential = made("größe,=", name)
    assert answered("größe,=", name, "a=b,c", credential)
    assert not answered("größe", name, "a=b,c", credential)
    assert answered("größe,=", name, "a", credential, repeated="CLIENT"), "librdkafka before 2.8"
    assert is_password(MECHANISMS[name], credential, "größe,=")
    assert not is_password(MECHANISMS[name], credential, "")


@given(st.lists(st.one_of(st.binary(max_size=200), st.sampled_from([FIRST, FINAL])), max_size=4))
def test_no_message_does_more_than_fail(messages: list[bytes]) -> None:
    server = login()
    done = 0
    try:
        for message in messages:
            done += len(server.step(message)) > 0
    except LoginFailed:
        pass
    assert server.is_done == (messages[:2] == [FIRST, FINAL])
    assert done <= 2


def test_plain_and_basic() -> None:
    assert parse_plain(b"\0alice\0secret") == UserPassword("alice", "secret")
    assert parse_plain(b"alice\0alice\0s:\xc3\xbc") == UserPassword("alice", "s:ü")
    for wrong in (
        b"",
        b"alice",
        b"bob\0alice\0secret",
        b"\0\0secret",
        b"\0alice\0",
        b"\0a\0b\0c",
        b"\0a\0\xff",
    ):
        with pytest.raises(LoginFailed):
            parse_plain(wrong)
    with pytest.raises(LoginFailed):
        parse_plain(b"\0alice\0" + b"x" * 2000)
    assert parse_basic("Basic " + b64encode(b"alice:a:b").decode()) == UserPassword("alice", "a:b")
    for text in ("", "Bearer abc", "Basic", "Basic %%%", "Basic " + b64encode(b"alice").decode()):
        with pytest.raises(LoginFailed):
            parse_basic(text)
    assert "secret" not in repr(UserPassword("alice", "secret"))
