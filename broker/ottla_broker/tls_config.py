"""Settings of TLS listeners: a part of `config.py`, which has the others. [P]"""

# ruff: noqa: RUF009  (`setting` makes a dataclass field; its defaults are immutable)
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla_broker.principal_rules import PrincipalRules
from ottla_broker.setting import FILE, ConfigError, Kind, choice, optional, setting


@dataclass(frozen=True)
class TlsConfig:
    """Certificates of the listeners with security protocol SSL. PEM files, with Kafka's names."""

    certificate_file: str | None = setting(
        "ssl.keystore.location",
        "",
        optional(FILE),
        "PEM file of the broker's certificate and its chain, with the private key unless ssl.key.location is set.",
    )
    key_file: str | None = setting(
        "ssl.key.location", "", optional(FILE), "PEM file of the private key, if it is a separate file."
    )
    ca_file: str | None = setting(
        "ssl.truststore.location",
        "",
        optional(FILE),
        "PEM file of CAs whose client certificates are accepted.",
    )
    client_auth: str = setting(
        "ssl.client.auth",
        "none",
        choice("none", "requested", "required"),
        "Whether clients must have a certificate; on gRPC listeners, requested is the same as none.",
    )
    principal_rules: PrincipalRules = setting(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        Kind("list", "RULE:pattern/replacement/[LU] or DEFAULT, separated by commas", PrincipalRules),
        "Rules that turn the subject of a client certificate into a principal; the first match applies.",
    )


def check_tls(tls: TlsConfig, secured: Sequence[str]) -> None:
    """`secured` are the names of the listeners that speak TLS. ConfigError if a setting is missing."""
    if secured and tls.certificate_file is None:
        raise ConfigError(
            f"Listener {secured[0]} needs a certificate: set ssl.keystore.location to a PEM file."
        )
    if tls.client_auth != "none" and tls.ca_file is None:
        raise ConfigError(
            f"ssl.client.auth={tls.client_auth} needs ssl.truststore.location, a PEM file of CAs."
        )
