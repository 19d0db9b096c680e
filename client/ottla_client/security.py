"""How a client connects: plaintext or TLS, with or without a login. Kafka's option names. [P]

Passed to producers, consumers and admins as `security`. User and password, or a token, go with each call, in a header,
so over plaintext whoever reads the network has them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PLAIN = "PLAIN"
_OAUTHBEARER = "OAUTHBEARER"
_MECHANISMS = (_PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", _OAUTHBEARER)
_TOKEN_FILE, _TOKEN_URL = "sasl.oauthbearer.token.file", "sasl.oauthbearer.token.endpoint.url"
_CLIENT = "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"


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
    #: Of OAUTHBEARER: a file with a token, which is read again and again, or where tokens are got with client
    #: credentials.
    sasl_oauthbearer_token_file: str | None = None
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauthbearer_client_id: str | None = None
    sasl_oauthbearer_client_secret: str | None = field(default=None, repr=False)
    sasl_oauthbearer_scope: str | None = None
    #: Returns a token; called again before it expires, on another thread. Not an option by name.
    token_provider: Callable[[], str] | None = field(default=None, repr=False)

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
        self._check_login()

    def _check_login(self) -> None:
        from_url = self.sasl_oauthbearer_token_endpoint_url
        sources = [self.sasl_oauthbearer_token_file, from_url, self.token_provider]
        given = sum(each is not None for each in sources)
        if self.takes_token:
            if given != 1:
                raise ValueError(
                    f"sasl.mechanism=OAUTHBEARER needs one of {_TOKEN_FILE}, {_TOKEN_URL} and token_provider."
                )
            if self.sasl_username or self.sasl_password:
                raise ValueError("sasl.mechanism=OAUTHBEARER takes no sasl.username and sasl.password.")
            if from_url and not from_url.startswith(("https://", "http://")):
                raise ValueError(f"{_TOKEN_URL}={from_url!r} is not an https or http URL.")
            if (from_url is None) != (self.sasl_oauthbearer_client_id is None) or (from_url is None) != (
                self.sasl_oauthbearer_client_secret is None
            ):
                raise ValueError(f"{_TOKEN_URL} goes together with {_CLIENT}.")
            return
        if given:
            raise ValueError(
                "Tokens need a login with sasl.mechanism=OAUTHBEARER and security.protocol=SASL_SSL."
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
        if self.security_protocol == "SASL_PLAINTEXT" and self.sasl_mechanism not in (_PLAIN, _OAUTHBEARER):
            raise ValueError(
                f"sasl.mechanism={self.sasl_mechanism} needs SASL_SSL: the native protocol sends the password itself, "
                "which the network would see. Set sasl.mechanism=PLAIN if it may."
            )

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Security:
        """From Kafka's names (`security.protocol`, `sasl.username`, …). ValueError for others."""
        known = {name: name.replace(".", "_") for name in OPTIONS}
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"There is no option {unknown[0]!r}; there are {', '.join(known)}.")
        chosen: dict[str, Any] = {known[name]: value for name, value in options.items()}
        return cls(**chosen)

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def has_login(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def takes_token(self) -> bool:
        return self.has_login and self.sasl_mechanism == _OAUTHBEARER

    def headers(self, token: str = "") -> tuple[tuple[str, str], ...]:
        """Of each call; with a token, if it takes one."""
        if not self.has_login:
            return ()
        if self.takes_token:
            return (("authorization", f"Bearer {token}"),)
        both = f"{self.sasl_username}:{self.sasl_password}".encode()
        return (("authorization", "Basic " + b64encode(both).decode()),)


#: Nothing is encrypted, and nobody logs in.
PLAINTEXT = Security()
OPTIONS = tuple(each.name.replace("_", ".") for each in fields(Security) if each.name != "token_provider")


def name_of(attribute: str) -> str:
    return attribute.replace("_", ".")


def security_of(given: Security | Mapping[str, str] | None) -> Security:
    if given is None:
        return PLAINTEXT
    return given if isinstance(given, Security) else Security.of(given)
