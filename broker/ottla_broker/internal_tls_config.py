"""Settings of TLS between brokers: a part of `config.py`, which has the others. [P]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_broker.setting import FILE, WORD, ConfigError, choice, optional, setting


@dataclass(frozen=True)
class InternalTlsConfig:
    """Certificates of the internal listener. They are apart from those for clients: usually another CA signs them."""

    security: str = setting(
        "internal.security.protocol",
        "PLAINTEXT",
        choice("PLAINTEXT", "SSL"),
        "SSL: other brokers connect with TLS, and both ends show a certificate, in addition to the cluster secret.",
    )
    certificate_file: str | None = setting(
        "internal.ssl.keystore.location",
        "",
        optional(FILE),
        "PEM file of the certificate and its chain that this broker shows to other brokers, with the private key "
        "unless internal.ssl.key.location is set.",
    )
    key_file: str | None = setting(
        "internal.ssl.key.location",
        "",
        optional(FILE),
        "PEM file of the private key, if it is a separate file.",
    )
    ca_file: str | None = setting(
        "internal.ssl.truststore.location",
        "",
        optional(FILE),
        "PEM file of CAs that sign the certificates of brokers, and of nothing else.",
    )
    # Brokers are found by pod IP, which no certificate can name in advance.
    server_name: str | None = setting(
        "internal.ssl.server.name",
        "",
        optional(WORD),
        "Name that the certificate of each other broker must have, instead of its address.",
    )


def check_internal_tls(tls: InternalTlsConfig) -> None:
    """ConfigError if a setting is missing."""
    if tls.security == "SSL" and tls.certificate_file is None:
        raise ConfigError(
            "internal.security.protocol=SSL needs a certificate: set internal.ssl.keystore.location to a PEM file."
        )
    if tls.certificate_file is not None and tls.ca_file is None:
        raise ConfigError(
            "internal.ssl.keystore.location needs internal.ssl.truststore.location, a PEM file of the CAs that sign "
            "the certificates of brokers."
        )
