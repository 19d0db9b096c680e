"""What the operator refuses is what brokers refuse: its table against their own reading of settings."""

from __future__ import annotations

import pytest

from ottla_broker.config import SETTINGS, TOPIC_DEFAULT_NAMES, BrokerConfig
from ottla_broker.setting import ConfigError
from ottla_operator.broker_settings import check_settings
from ottla_operator.broker_settings_table import TABLE
from ottla_operator.cluster_spec import RESERVED_SETTINGS
from ottla_operator.specs import InvalidSpec

VALUES = (
    "", "-2", "-1", "0", "1", "2", "9", "17", "100", "70000", "2147483647", "2147483648", "9223372036854775808",
    "0.5", "1.5", "nan", "many", "true", "TRUE", "yes", "json", "compact", "compact,delete", "compact,", "gzip",
)  # fmt: skip
#: Checked by the broker in ways that the table does not know: a gap in a range, the alphabet of a word, a URL, pairs.
LOOSER = {
    "super.users": set(VALUES) - {""},
    "max.connections.per.ip.overrides": set(VALUES) - {""},
    "sasl.oauthbearer.jwks.endpoint.url": set(VALUES) - {""},
    "compression.gzip.level": {"0"},
    "broker.rack": {"compact,delete", "compact,"},
}


def test_the_table_names_every_setting() -> None:
    assert set(TABLE) == {*SETTINGS, *TOPIC_DEFAULT_NAMES}


@pytest.mark.parametrize("name", sorted({*SETTINGS, *TOPIC_DEFAULT_NAMES} - set(RESERVED_SETTINGS)))
def test_brokers_and_operator_agree(name: str) -> None:
    for value in VALUES:
        settings = {"default.replication.factor": "100", name: value}
        if name == "default.replication.factor":
            settings["min.insync.replicas"] = "1"
        assert _broker_takes(settings) == _operator_takes(settings) or value in LOOSER.get(name, ()), value


def _broker_takes(settings: dict[str, str]) -> bool:
    try:
        BrokerConfig.of(settings)
    except ConfigError:
        return False
    return True


def _operator_takes(settings: dict[str, str]) -> bool:
    try:
        check_settings(settings)
    except InvalidSpec as refused:
        # Brokers lower it to the number of replicas instead; see plan.py.
        return "min.insync.replicas" in str(refused) and "at least" in str(refused)
    return True
