from __future__ import annotations

import pytest

from ottla_broker.group_config import GroupSettings, definition, definitions
from ottla_core.errors import InvalidConfig


def test_what_is_set_is_typed_and_the_rest_is_left_to_the_members() -> None:
    assert GroupSettings.of({}) == GroupSettings(None, None, None)
    made = GroupSettings.of(
        {
            "consumer.assignor": "range",
            "consumer.session.timeout.ms": "10000",
            "consumer.rebalance.timeout.ms": "60000",
        }
    )
    assert made == GroupSettings("range", 10_000, 60_000)
    assert [d.name for d in definitions()] == sorted(d.name for d in definitions())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("consumer.session.timeout.ms", "soon", "whole number"),
        ("consumer.session.timeout.ms", "0", "from 1"),
        ("consumer.rebalance.timeout.ms", str(1 << 31), "to 2147483647"),
        ("consumer.assignor", " ", "delete it to let members vote"),
        ("consumer.assignor", "x" * 250, "1 to 249 characters"),
        ("consumer.session.timeout", "1", r"Did you mean consumer\.session\.timeout\.ms"),
        ("consumer.assignment.interval.ms", "1", "as soon as they are due"),
        ("consumer.assignor.pins", "orders", "topic:partition=instance-id"),
        ("consumer.assignor.tolerance", "2", "from 0 to 1"),
        ("share.session.timeout.ms", "1", "share groups are not supported"),
        ("streams.num.standby.replicas", "1", "streams groups"),
        ("retention.ms", "1", "no group setting"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        GroupSettings.of({name: value})


def test_a_session_stays_within_the_brokers_bounds() -> None:
    settings = GroupSettings.of({"consumer.session.timeout.ms": "5000"})
    settings.check_session(5000, 5000)
    with pytest.raises(InvalidConfig, match=r"6000 \(group.min.session.timeout.ms\)"):
        settings.check_session(6000, 9000)
    GroupSettings().check_session(6000, 9000)


def test_what_a_newer_broker_has_set_is_left_out() -> None:
    values = {"consumer.assignor": "range", "consumer.new": "1", "consumer.session.timeout.ms": "never"}
    assert GroupSettings.understood(values) == GroupSettings("range")


def test_a_definition_describes_itself() -> None:
    assert "if all members support it" in definition("consumer.assignor").documentation
