"""Kafka's rules from certificate subjects to principals."""

from __future__ import annotations

import pytest

from ottla_broker.config import BrokerConfig
from ottla_broker.principal_rules import PrincipalRules
from ottla_broker.setting import ConfigError

NAME = "CN=kafka-user,OU=eng,O=Example,C=DE"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", NAME, f"User:{NAME}"),
        ("RULE:^CN=(.*?),OU=eng.*$/$1/", NAME, "User:kafka-user"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", NAME, "User:KAFKA-USER@ENG"),
        ("RULE:^CN=(.*?),OU=ops.*$/$1/L, RULE:^.*O=(.*?),.*$/$1/L,DEFAULT", NAME, "User:example"),
        ("RULE:^CN=(.*?),OU=ops.*$/$1/,DEFAULT", NAME, f"User:{NAME}"),
        ("RULE:^CN=(.*?),OU=ops.*$/$1/", NAME, None),
        ("RULE:CN=kafka/x/", NAME, None),
    ],
)
def test_the_first_rule_that_matches_applies(rules: str, name: str, principal: str | None) -> None:
    assert PrincipalRules(rules).principal(name) == principal


@pytest.mark.parametrize(
    "text", ["", "RULE:", "RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "default", "RULE:a/b/X"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule|regular|group"):
        PrincipalRules(text)


def test_the_setting_says_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match="RULE:pattern/replacement"):
        BrokerConfig.of({"ssl.principal.mapping.rules": "nonsense"})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"listener.security.protocol.map": "kafka:SSL"}, "needs a certificate"),
        ({"ssl.client.auth": "required"}, "needs ssl.truststore.location"),
        ({"listener.security.protocol.map": "internal:SSL"}, "internal.security.protocol"),
        ({"internal.security.protocol": "SSL"}, "internal.ssl.keystore.location"),
        ({"internal.ssl.keystore.location": "b.pem"}, "internal.ssl.truststore.location"),
    ],
)
def test_incomplete_tls_settings_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BrokerConfig.of(settings)
