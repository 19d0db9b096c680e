"""Settings of SASL listeners: a part of `config.py`, which has the others. [P]"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import urlsplit

from ottla_broker.setting import FILE, LONG_MAX, ConfigError, Kind, Setting, optional, setting, whole
from ottla_core.scram import MECHANISMS

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
#: What a listener for Kafka clients can offer.
SASL_MECHANISMS = (*MECHANISMS, PLAIN, OAUTHBEARER)
_ENABLED = "sasl.enabled.mechanisms"
_OF_LISTENER = re.compile(r"listener\.name\.([a-z0-9_-]{1,100})\.sasl\.enabled\.mechanisms")


def _mechanisms(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if len(set(found)) != len(found) or any(name not in SASL_MECHANISMS for name in found):
        raise ValueError
    return found


_MECHANISMS = Kind(
    "list",
    "one or more of " + ", ".join(SASL_MECHANISMS) + ", separated by commas",
    _mechanisms,
    values=SASL_MECHANISMS,
)


def _jwks(text: str) -> str:
    parts = urlsplit(text)
    # Any client that may describe configs can read the value.
    if parts.username or parts.password or len(text) > 2000:
        raise ValueError
    if not (parts.scheme in ("https", "http") and parts.hostname) and not (
        parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc
    ):
        raise ValueError
    return text


_JWKS = Kind("string", "an http, https or file URL without a password, such as file:///etc/jwks.json", _jwks)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in (each.strip() for each in text.split(",")) if part)


def _claim(text: str) -> str:
    if not text or len(text) > 200:
        raise ValueError
    return text


_LIST = Kind("list", "names separated by commas", _list, may_be_empty=True)
_CLAIM = Kind("string", "the name of a claim", _claim)
_TEXT = Kind("string", "a text", str, may_be_empty=True)


@dataclass(frozen=True)
class SaslConfig:
    """Logins of clients on listeners with security protocol SASL_PLAINTEXT or SASL_SSL, with Kafka's names."""

    # Kafka's default is GSSAPI, which is not served. PLAIN shows the password to whoever reads the network.
    mechanisms: tuple[str, ...] = setting(
        _ENABLED,
        "SCRAM-SHA-256,SCRAM-SHA-512",
        _MECHANISMS,
        "Mechanisms that Kafka clients may log in with; listener.name.<name in lower case>.sasl.enabled.mechanisms "
        "replaces it for one listener.",
    )
    # A file, not a value: any client that may describe configs can read a value.
    users_file: str | None = setting(
        "sasl.users.file",
        "",
        optional(FILE),
        "File of users that exist besides those in the metadata store, one user:password per line.",
    )
    # Kafka's default is 512 KiB. 10,000 connections that send no whole message must not use up the memory of requests;
    # a token of an identity provider has a few KiB.
    receive_max_bytes: int = setting(
        "sasl.server.max.receive.size",
        "16384",
        whole(1024, 512 * 1024),
        "Maximum request size before authentication; a longer request closes its connection.",
    )
    reauth_max_ms: int = setting(
        "connections.max.reauth.ms",
        "0",
        whole(0, LONG_MAX),
        "A Kafka client has to log in again within this time, or its connection is closed; 0 means never.",
    )
    failure_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        "100",
        whole(0, 10_000),
        "How long the answer to a failed login is delayed.",
    )
    jwks_url: str | None = setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        "",
        optional(_JWKS),
        "Where the public keys of the identity provider are (a JSON Web Key Set): a URL, or file:///… for a file. "
        "Needed for OAUTHBEARER; with it, gRPC listeners with logins take bearer tokens, too.",
    )
    # A provider announces a new key hours before it signs with it; and an unknown key is looked up at once.
    jwks_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "3600000",
        whole(1000, LONG_MAX),
        "How often the keys are read again.",
    )
    audiences: tuple[str, ...] = setting(
        "sasl.oauthbearer.expected.audience",
        "",
        _LIST,
        "Tokens must be for one of these audiences (claim aud). Empty: for any, also for other services.",
    )
    issuer: str = setting(
        "sasl.oauthbearer.expected.issuer",
        "",
        _TEXT,
        "Tokens must be of this issuer (claim iss); empty: of any.",
    )
    user_claim: str = setting(
        "sasl.oauthbearer.sub.claim.name", "sub", _CLAIM, "The claim that has the user's name."
    )
    # Kafka's default.
    clock_skew_s: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        "30",
        whole(0, 3600),
        "How far the clocks of the identity provider and of the broker may be apart.",
    )
    #: By the listener's name in lower case.
    mechanisms_of: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def enabled(self, listener: str) -> tuple[str, ...]:
        """The mechanisms of a listener for Kafka clients."""
        return self.mechanisms_of.get(listener.lower(), self.mechanisms)


def is_listener_setting(name: str) -> bool:
    """Whether it is the setting of one listener, whose name is a part of the setting's."""
    return _OF_LISTENER.fullmatch(name) is not None


def mechanisms_by_listener(values: Mapping[str, tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    """From name -> (value, source) of the settings of single listeners."""
    found: dict[str, tuple[str, ...]] = {}
    for name, (value, source) in values.items():
        match = _OF_LISTENER.fullmatch(name)
        if match is not None:
            found[match[1]] = Setting(name, _MECHANISMS, "", "").parse(value, source)
    return MappingProxyType(found)


def check_sasl(sasl: SaslConfig, secured: Iterable[str]) -> None:
    """`secured` are the names of the listeners for Kafka clients that have logins. ConfigError for others' settings."""
    names = {name.lower() for name in secured}
    enabled = sasl.mechanisms if names else ()
    if (
        OAUTHBEARER in {*enabled, *(each for found in sasl.mechanisms_of.values() for each in found)}
        and not sasl.jwks_url
    ):
        raise ConfigError(
            "OAUTHBEARER is enabled: set sasl.oauthbearer.jwks.endpoint.url to the keys of the provider."
        )
    for name in sasl.mechanisms_of:
        if name not in names:
            raise ConfigError(
                f"listener.name.{name}.sasl.enabled.mechanisms is set, but no listener for Kafka clients of that name "
                "has security protocol SASL_PLAINTEXT or SASL_SSL."
            )
