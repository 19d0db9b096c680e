"""Settings of SASL listeners: a part of `config.py`, which has the others. [P]"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ottla_broker.setting import FILE, LONG_MAX, ConfigError, Kind, Setting, optional, setting, whole
from ottla_core.scram import MECHANISMS

PLAIN = "PLAIN"
#: What a listener for Kafka clients can offer.
SASL_MECHANISMS = (*MECHANISMS, PLAIN)
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
    for name in sasl.mechanisms_of:
        if name not in names:
            raise ConfigError(
                f"listener.name.{name}.sasl.enabled.mechanisms is set, but no listener for Kafka clients of that name "
                "has security protocol SASL_PLAINTEXT or SASL_SSL."
            )
