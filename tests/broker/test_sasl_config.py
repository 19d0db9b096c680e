"""Settings of logins: mechanisms of single listeners, and the file of the first users."""

from __future__ import annotations

import pytest

from ottla_broker.authn.users_file import parse_users
from ottla_broker.config import BrokerConfig
from ottla_broker.setting import ConfigError

LISTENER = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}


def test_one_listener_can_have_other_mechanisms() -> None:
    sasl = BrokerConfig.of(
        LISTENER
        | {
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        }
    ).sasl
    assert sasl.enabled("SASL_PLAINTEXT") == ("PLAIN",)
    assert sasl.enabled("OTHER") == ("SCRAM-SHA-512",)
    assert BrokerConfig.of(LISTENER).sasl.enabled("SASL_PLAINTEXT") == ("SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "one or more of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN"),
        ({"listener.name.sasl_plaintext.sasl.enabled.mechanisms": "x"}, "one or more of"),
        (
            {"listener.name.inside.sasl.enabled.mechanisms": "PLAIN"},
            "no listener for Kafka clients of that name",
        ),
        ({"listener.name.sasl_plaintext.ssl.client.auth": "none"}, "There is no setting"),
        ({"listeners": "SASL_SSL://127.0.0.1:0"}, "needs a certificate"),
        ({"listener.security.protocol.map": "internal:SASL_SSL"}, "internal.listener"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BrokerConfig.of(LISTENER | settings)


def test_the_file_of_users() -> None:
    assert parse_users("# x\n\nadmin:a:b\n bob:größe \n".encode(), "f") == {"admin": "a:b", "bob": "größe"}
    for wrong in (b"admin", b"admin:", b":secret", b"a:secret\na:other", b"\xff:x"):
        with pytest.raises(ConfigError) as refused:
            parse_users(wrong, "f")
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="at most 50"):
        parse_users(b"".join(b"u%d:p\n" % number for number in range(51)), "f")
