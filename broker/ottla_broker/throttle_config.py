"""Rates of throttled replication: run-time settings of a broker under Kafka's names. [P]

They have no value in a broker's file, as in Kafka: a throttle belongs to a move, and is cleared with it
(`kafka-reassign-partitions --throttle`, `ottla topics move --throttle`). Which replicas are throttled is a setting of
their topic (`throttled_replicas`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla_broker.topic_config import LONG_MAX, Definition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def _rate(name: str, documentation: str) -> Definition:
    return Definition(name, "long", str(LONG_MAX), documentation, (), at_least=0)


RATES: Mapping[str, Definition] = {
    LEADER_RATE: _rate(
        LEADER_RATE,
        "Bytes per second that this broker sends, as a leader, to replicas in leader.replication.throttled.replicas "
        "that are not in sync.",
    ),
    FOLLOWER_RATE: _rate(
        FOLLOWER_RATE,
        "Bytes per second that this broker copies into its replicas in follower.replication.throttled.replicas "
        "that are not in sync.",
    ),
    DIR_RATE: _rate(
        DIR_RATE, "Bytes per second that this broker copies from one of its log directories to another."
    ),
}


def check_rates(values: Mapping[str, str]) -> None:
    """`InvalidConfig` for a rate that is not a whole number."""
    for name, setting in RATES.items():
        if name in values:
            setting.parse(values[name])


def rates(values: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(leader's rate, follower's rate) of a broker with these effective settings; None: not throttled."""
    leader, follower = (
        int(RATES[name].parse(values[name])) if name in values else LONG_MAX
        for name in (LEADER_RATE, FOLLOWER_RATE)
    )
    return (None if leader == LONG_MAX else leader, None if follower == LONG_MAX else follower)


def dir_rate(values: Mapping[str, str]) -> float | None:
    """Bytes per second between log directories; None: not throttled. At least one, so that a copy goes on."""
    found = int(RATES[DIR_RATE].parse(values[DIR_RATE])) if DIR_RATE in values else LONG_MAX
    return None if found == LONG_MAX else float(max(1, found))
