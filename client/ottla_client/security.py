"""How a client connects: plaintext or TLS, with or without a login. Kafka's option names. [P]

Passed to producers, consumers and admins as `security`. User and password go with each call, in a header, so over
plaintext whoever reads the network has the password.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PLAIN = "PLAIN"
_MECHANISMS = (_PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Security:
    """ValueError, with a sentence, if options contradict each other.

    >>> Security("SASL_SSL", ssl_ca_location="ca.pem", sasl_username="alice", sasl_password="...")
    """

    security_protocol: str = "PLAINTEXT"
    #: PEM files. Without a CA the system's are trusted.
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    sasl_mechanism: str = _PLAIN
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.security_protocol not in _PROTOCOLS:
            raise ValueError(
                f"security.protocol={self.security_protocol!r}: choose one of {', '.join(_PROTOCOLS)}."
            )
        if self.sasl_mechanism not in _MECHANISMS:
            raise ValueError(
                f"sasl.mechanism={self.sasl_mechanism!r}: choose one of {', '.join(_MECHANISMS)}."
            )
        if not self.has_tls and (self.ssl_ca_location or self.ssl_certificate_location):
            raise ValueError(
                f"ssl.* options need TLS: set security.protocol to {'SASL_SSL' if self.has_login else 'SSL'}."
            )
        if (self.ssl_certificate_location is None) != (self.ssl_key_location is None):
            raise ValueError(
                "ssl.certificate.location and ssl.key.location go together; both may name one file."
            )
        if self.has_login and not (self.sasl_username and self.sasl_password):
            raise ValueError(
                f"security.protocol={self.security_protocol} needs sasl.username and sasl.password."
            )
        if not self.has_login and (self.sasl_username or self.sasl_password):
            raise ValueError(
                "sasl.* options need a login: set security.protocol to "
                f"{'SASL_SSL' if self.has_tls else 'SASL_SSL or SASL_PLAINTEXT'}."
            )
        if self.security_protocol == "SASL_PLAINTEXT" and self.sasl_mechanism != _PLAIN:
            raise ValueError(
                f"sasl.mechanism={self.sasl_mechanism} needs SASL_SSL: the native protocol sends the password itself, "
                "which the network would see. Set sasl.mechanism=PLAIN if it may."
            )

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Security:
        """From Kafka's names (`security.protocol`, `sasl.username`, …). ValueError for others."""
        known = {name_of(each.name): each.name for each in fields(cls)}
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"There is no option {unknown[0]!r}; there are {', '.join(known)}.")
        return cls(**{known[name]: value for name, value in options.items()})

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def has_login(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Of each call."""
        if not self.has_login:
            return ()
        both = f"{self.sasl_username}:{self.sasl_password}".encode()
        return (("authorization", "Basic " + b64encode(both).decode()),)


#: Nothing is encrypted, and nobody logs in.
PLAINTEXT = Security()
OPTIONS = tuple(each.name.replace("_", ".") for each in fields(Security))


def name_of(attribute: str) -> str:
    return attribute.replace("_", ".")


def security_of(given: Security | Mapping[str, str] | None) -> Security:
    if given is None:
        return PLAINTEXT
    return given if isinstance(given, Security) else Security.of(given)
