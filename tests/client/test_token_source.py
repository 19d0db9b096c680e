"""Tokens of our client: renewed in time, on another thread, and what is wrong is said without secrets."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from identity_provider import Key
from ottla_client.connection import Connections
from ottla_client.security import Security
from ottla_client.token_source import TokenSource, _Token, source_of
from ottla_core.errors import SaslAuthenticationFailed

KEY = Key("k", "ES256")


class Provider:
    def __init__(self, lifetime_s: float = 100.0) -> None:
        self.now, self.calls, self.fails = 0.0, 0, False
        self.lifetime_s = lifetime_s
        self.source = TokenSource(self.fetch, now=lambda: self.now)

    def fetch(self) -> _Token:
        self.calls += 1
        if self.fails:
            raise OSError("the provider is away")
        return _Token(f"token-{self.calls}", self.lifetime_s)

    def settled(self, calls: int) -> None:
        until = time.monotonic() + 10
        while self.calls < calls or self.source._is_renewing:
            assert time.monotonic() < until
            time.sleep(0.001)


def test_a_token_is_renewed_before_it_expires_while_the_old_one_is_used() -> None:
    provider = Provider()
    assert [provider.source.token() for _ in range(3)] == ["token-1"] * 3
    provider.now = 79.0
    assert provider.source.token() == "token-1" and provider.calls == 1
    provider.now = 81.0
    assert provider.source.token() in ("token-1", "token-2"), "it is not waited for"
    provider.settled(2)
    assert provider.source.token() == "token-2"
    provider.now, provider.fails = 170.0, True
    assert provider.source.token() == "token-2"
    provider.settled(3)
    assert provider.source.token() == "token-2" and provider.calls == 3, "not again at once"
    provider.now = 182.0
    with pytest.raises(SaslAuthenticationFailed, match="the provider is away"):
        provider.source.token()
    provider.fails = False
    assert provider.source.token() == "token-5"


def test_a_file_is_read_again_and_functions_are_called(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(KEY.token() + "\n")
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.file": str(path),
    }
    source = source_of(Security.of(options))
    assert source.token() == path.read_text().strip()
    assert source_of(Security.of(options)) is source, "one for all clients of the process"
    assert source._expires_at - source._renew_at == pytest.approx(60 * 0.2)
    path.write_text("two words")
    source._expires_at = 0.0
    with pytest.raises(SaslAuthenticationFailed, match=r"token\.file=.* has no token"):
        source.token()
    empty = Security("SASL_SSL", sasl_mechanism="OAUTHBEARER", token_provider=lambda: "")
    with pytest.raises(SaslAuthenticationFailed, match="returned no token"):
        source_of(empty).token()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sasl.mechanism": "OAUTHBEARER"}, "needs one of sasl.oauthbearer.token.file"),
        (
            {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://idp/token"},
            "goes together with sasl.oauthbearer.client.id",
        ),
        (
            {"sasl.oauthbearer.token.file": "f", "sasl.username": "a", "sasl.password": "b"},
            "need a login with",
        ),
        (
            {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.file": "f", "sasl.username": "a"},
            "takes no sasl.username",
        ),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Security.of({"security.protocol": "SASL_SSL"} | options)


def test_secrets_are_not_shown() -> None:
    made = Security(
        "SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url="https://idp/token",
        sasl_oauthbearer_client_id="app",
        sasl_oauthbearer_client_secret="s3cret",
    )
    assert "s3cret" not in repr(made)


async def test_the_first_token_is_waited_for_on_a_thread() -> None:
    """A slow provider holds no event loop."""
    threads: list[int] = []

    def provider() -> str:
        threads.append(threading.get_ident())
        return KEY.token()

    security = Security("SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", token_provider=provider)
    await Connections(security).log_in()
    assert source_of(security).token()
    (thread,) = threads
    assert thread != threading.get_ident()
