"""How many files and connections a broker has, by how many descriptors it may have."""

from __future__ import annotations

import pytest

from ottla_broker.config import BrokerConfig
from ottla_broker.descriptors import Shares, share_out


@pytest.mark.parametrize(
    ("limit", "shares"),
    [
        (1 << 20, Shares(4096, 10_000, 10_000, 1024)),
        (20_000, Shares(4096, 7344, 7344, 1024)),
        (1024, Shares(512, 128, 128, 64)),
        (100, Shares(50, 16, 16, 16)),
    ],
)
def test_connections_get_what_files_leave(limit: int, shares: Shares) -> None:
    assert share_out(BrokerConfig(), limit) == shares


@pytest.mark.parametrize(("limit", "is_short"), [(1 << 20, False), (20_000, False), (4096, True)])
def test_a_word_is_said_where_it_is_far_less_than_configured(limit: int, is_short: bool) -> None:
    assert share_out(BrokerConfig(), limit).are_short_for(BrokerConfig()) is is_short


def test_unneeded_descriptors_go_to_the_other_pool() -> None:
    config = BrokerConfig.of({"grpc.connections.max": "20"})
    assert share_out(config, 1024) == Shares(512, 236, 20, 64)
    config = BrokerConfig.of({"max.connections": "20", "log.open.files.max": "100"})
    assert share_out(config, 1024) == Shares(100, 20, 648, 64)


@pytest.mark.parametrize("limit", [600, 1024, 4096, 20_000, 65_536])
def test_all_together_stay_below_the_limit(limit: int) -> None:
    assert sum(share_out(BrokerConfig(), limit)) + 64 <= limit - 100
