"""How patient the controller is with brokers that come back, by the settings."""

from __future__ import annotations

import pytest

from ottla_broker.config import resolve
from ottla_broker.service.configs import care_config


@pytest.mark.parametrize(
    ("settings", "grace_s"),
    [
        ({}, 35),
        ({"broker.session.timeout.ms": "20000"}, 60),
        ({"leader.imbalance.check.interval.seconds": "5"}, 5),
        ({"auto.leader.rebalance.enable": "false"}, 0),
    ],
)
def test_leaderships_go_back_when_clients_surely_reach_the_broker(
    settings: dict[str, str], grace_s: float
) -> None:
    """librdkafka waits 30 s for a connection to an address that did not exist when it tried."""
    assert care_config(resolve(settings, {}, None).config).rebalance_grace_s == grace_s
