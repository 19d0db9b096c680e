"""Options of TLS and logins: Kafka's names, and a sentence for each contradiction."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

from ottla_client import Admin
from ottla_client.security import PLAINTEXT, Security, security_of


def test_kafkas_names() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "a:ü",
    }
    made = Security.of(given)
    assert (
        made
        == security_of(given)
        == Security("SASL_SSL", "ca.pem", None, None, "SCRAM-SHA-512", "alice", "a:ü")
    )
    ((name, value),) = made.headers()
    assert (name, b64decode(value.removeprefix("Basic ")).decode()) == ("authorization", "alice:a:ü")
    assert "a:ü" not in repr(made)
    assert security_of(None) is PLAINTEXT and PLAINTEXT.headers() == ()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"security.protocol": "TLS"}, "choose one of PLAINTEXT, SSL"),
        ({"sasl.jaas.config": "x"}, "There is no option 'sasl.jaas.config'"),
        ({"ssl.ca.location": "ca.pem"}, "set security.protocol to SSL"),
        ({"security.protocol": "SSL", "ssl.certificate.location": "x"}, "go together"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "x"}, "needs sasl.username and sasl.password"),
        ({"sasl.username": "x", "sasl.password": "y"}, "SASL_SSL or SASL_PLAINTEXT"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "choose one of PLAIN"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "x",
                "sasl.password": "y",
            },
            "needs SASL_SSL",
        ),
    ],
)
def test_contradictions(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Security.of(options)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ssl\.ca\.location=.* cannot be read"):
        Admin(security=Security("SSL", ssl_ca_location=str(tmp_path / "none.pem")))
    (tmp_path / "der").write_bytes(b"\x30\x82")
    with pytest.raises(ValueError, match="is not a PEM file"):
        Admin(security={"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "der")})
