"""Bearer tokens: what is accepted, what is refused with which sentence, and how keys are found again."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from typing import Any, cast

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from identity_provider import AUDIENCE, Key
from ottla_broker.authn.bearer import Asked, TokenRules, parse_bearer, parse_oauthbearer
from ottla_broker.authn.failure import LoginFailed
from ottla_broker.authn.jwks import Jwks
from ottla_broker.authn.tokens import Tokens

RULES = TokenRules((AUDIENCE, "other"), "https://idp.test")
RSA, CURVE, STRANGER = Key("rsa", "RS256"), Key("ec", "ES256"), Key("rsa", "RS256")


class World:
    """Time, and a key set that can be read or not."""

    def __init__(self, *keys: Key, rules: TokenRules = RULES) -> None:
        self.now = 100.0
        self.keys: list[Key] = list(keys)
        self.reads = 0
        self.is_broken = False
        self.jwks = Jwks("http://idp/jwks", self, cast(Any, self), refresh_s=60, read=self.read)
        self.tokens = Tokens(self.jwks, rules, self)
        self.jwks.on_change = self.tokens.forget

    def wall_ms(self) -> int:
        return int((time.time() + self.now - 100.0) * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError

    async def run(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return work()

    def read(self, url: str) -> bytes:
        self.reads += 1
        if self.is_broken:
            raise OSError("connection refused")
        return json.dumps({"keys": [key.public for key in self.keys]}).encode()


async def refusal(world: World, token: str) -> str:
    with pytest.raises(LoginFailed) as refused:
        await world.tokens.check(token)
    assert token not in refused.value.reason
    return refused.value.client_reason


async def test_tokens_of_both_kinds_are_accepted_and_remembered() -> None:
    world = World(RSA, CURVE)
    for key in (RSA, CURVE):
        token = key.token("alice", aud=["x", AUDIENCE])
        found = await world.tokens.check(token)
        assert found.user == "alice" and world.tokens.remembered(token) == found
        assert 290_000 < world.tokens.lifetime_ms(found) <= 300_000
        world.now += 331
        assert world.tokens.remembered(token) is None, "it has expired, beyond the skew"
        world.now -= 331
    assert world.reads == 1


async def test_the_reason_is_reported() -> None:
    world = World(RSA, CURVE)
    token = RSA.token()
    cases = {
        STRANGER.token(): "the signature of the token is not valid",
        token[:-6]
        + ("AAAAAA" if token[-6:] != "AAAAAA" else "BBBBBB"): "the signature of the token is not valid",
        Key("other", "RS256").token(): "no key has the id 'other'",
        RSA.token(lifetime_s=-100): "the token expired 100 s ago",
        RSA.token(aud="elsewhere"): "the token's audience is 'elsewhere', not 'ottla' or 'other'",
        RSA.token(aud=None): "the token's audience is None",
        RSA.token(iss="x"): "the token's issuer is 'x', not 'https://idp.test'",
        RSA.token(nbf=time.time() + 100): "compare the clocks",
        RSA.token(exp=None): "the token has no expiry (exp)",
        RSA.token(sub=None): "the token has no usable claim 'sub'",
        "abc": "the token is not a JSON Web Token",
        jwt.encode({"sub": "alice"}, "x" * 32, "HS256", headers={"kid": "rsa"}): "signed with 'HS256'",
        jwt.encode({"sub": "alice"}, None, "none"): "signed with 'none'",
    }
    for wrong, sentence in cases.items():
        assert sentence in await refusal(world, wrong)


async def test_an_hmac_with_the_public_key_is_refused() -> None:
    """The classic confusion of algorithms: the public key is known to everybody."""
    world = World(RSA)

    def part(tree: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(tree).encode()).decode().rstrip("=")

    for algorithm in ("HS256", "ES256", "RS512x"):
        forged = f"{part({'alg': algorithm, 'kid': 'rsa'})}.{part({'sub': 'root', 'exp': 9e9})}.AAAA"
        assert await refusal(world, forged)


async def test_clocks_may_differ_by_the_skew() -> None:
    world = World(RSA)
    found = await world.tokens.check(RSA.token(lifetime_s=-20))
    assert world.tokens.lifetime_ms(found) == 2000
    await world.tokens.check(RSA.token(nbf=time.time() + 20))


async def test_a_new_key_is_found_and_unknown_keys_cost_few_reads() -> None:
    world = World(RSA)
    token = RSA.token()
    await world.tokens.check(token)
    world.keys = [CURVE]
    assert "no key has the id" in await refusal(world, CURVE.token()), "the last read was just now"
    world.now += 5.0
    assert (await world.tokens.check(CURVE.token())).user == "alice"
    assert world.reads == 2 and world.tokens.remembered(token) is None, "its key is gone"
    for _ in range(50):
        await refusal(world, STRANGER.token())
    assert world.reads == 2


async def test_known_keys_stay_while_the_provider_is_away() -> None:
    world = World(RSA)
    world.is_broken = True
    assert "cannot read the keys" in await refusal(world, RSA.token())
    world.now += 5.0
    world.is_broken = False
    await world.tokens.check(RSA.token("bob"))
    world.is_broken = True
    world.now += 61.0
    await world.tokens.check(RSA.token("carol"))
    await asyncio.sleep(0.01)
    assert world.reads == 3, "a refresh that failed, meanwhile"


async def test_many_logins_share_one_read() -> None:
    world = World(RSA)
    found = await asyncio.gather(*(world.tokens.check(RSA.token(f"user-{n}")) for n in range(20)))
    assert len({each.user for each in found}) == 20 and world.reads == 1


def test_messages_of_the_mechanism() -> None:
    assert parse_oauthbearer(b"n,,\x01auth=Bearer a.b.c\x01\x01") == Asked("a.b.c")
    assert parse_oauthbearer(b"n,a=al=2Cice,\x01host=x\x01auth=bearer a\x01port=1\x01\x01") == Asked(
        "a", "al,ice"
    )
    for wrong in (b"", b"n,,\x01\x01", b"n,,\x01host=x\x01\x01", b"n,,\x01auth=Basic a\x01\x01", b"\x01"):
        with pytest.raises(LoginFailed):
            parse_oauthbearer(wrong)
    with pytest.raises(LoginFailed):
        parse_bearer("Bearer ")


@given(st.binary(max_size=200))
def test_any_message_is_parsed_or_refused(message: bytes) -> None:
    try:
        parse_oauthbearer(b"n,," + message)
    except LoginFailed:
        return
