"""What is set for a group counts before what its members ask for."""

from __future__ import annotations

from typing import Any

import pytest

from broker.group.group_driver import SESSION_MS, GroupDriver, subscription
from ottla_broker.group.messages import DescribeGroup, HeartbeatReply, State
from ottla_broker.group_config import GroupSettings
from ottla_broker.metadata.image import ClusterImage
from ottla_core.errors import RebalanceInProgress, UnknownMemberId

T = subscription("t")
BOTH = (("range", T), ("roundrobin", T))
OTHER_WAY = (("roundrobin", T), ("range", T))


def with_settings(driver: GroupDriver, **settings: Any) -> GroupDriver:
    driver.group_settings["g"] = GroupSettings(**settings)
    return driver


def review(driver: GroupDriver) -> bool:
    """Show the shard that the settings of the group were changed; True if a rebalance began."""
    before = driver.probe.rebalances
    changed = ClusterImage(cluster_id="", group_configs={"g": {"set": "now"}, "other": {}})
    driver.see(changed, ClusterImage(cluster_id=""))
    return driver.probe.rebalances > before


def protocol_after_rejoin(driver: GroupDriver, ids: list[str], protocols: Any = BOTH) -> str:
    tickets = [driver.join(each, protocols=protocols) for each in ids]
    chosen = driver.joined(tickets[-1]).protocol
    assert chosen is not None
    return chosen


# ---------------------------------------------------------------------- assignor


def test_the_assignor_that_is_set_wins_over_the_vote() -> None:
    driver = with_settings(GroupDriver(), assignor="roundrobin")
    driver.stable(3, protocols=BOTH)
    assert driver.group.protocol == "roundrobin"


def test_without_a_setting_the_vote_decides() -> None:
    driver = GroupDriver()
    driver.stable(3, protocols=BOTH)
    assert driver.group.protocol == "range"


def test_an_assignor_that_one_member_does_not_know_leaves_it_to_the_vote() -> None:
    driver = with_settings(GroupDriver(), assignor="roundrobin")
    (first,) = driver.stable(1, protocols=BOTH)
    ticket = driver.join(protocols=(("range", T),))
    driver.join(first, protocols=BOTH)
    assert driver.joined(ticket).protocol == "range"


def test_a_new_setting_moves_a_stable_group_once() -> None:
    driver = GroupDriver()
    ids = driver.stable(2, protocols=BOTH)
    assert not review(driver), "nothing is set"
    with_settings(driver, assignor="roundrobin")
    assert review(driver)
    assert driver.state is State.PREPARING
    with pytest.raises(RebalanceInProgress):
        driver.beat(ids[0], driver.group.generation)
    assert not review(driver), "it is under way already"
    assert protocol_after_rejoin(driver, ids) == "roundrobin"


@pytest.mark.parametrize("assignor", ["range", "sticky", None])
def test_a_setting_without_effect_starts_no_rebalance(assignor: str | None) -> None:
    """It is in use already, or a member does not know it, or it was taken back."""
    driver = GroupDriver()
    (only,) = driver.stable(1, protocols=BOTH)
    with_settings(driver, assignor=assignor)
    assert not review(driver)
    assert driver.beat(only, 1) == HeartbeatReply()


def test_members_known_from_a_record_are_asked_what_they_know() -> None:
    """After a change of coordinator only the protocol in use is known."""
    driver = GroupDriver()
    ids = driver.stable(2, protocols=BOTH)
    driver.reload()
    described = driver.ask(DescribeGroup("g"))
    assert [m.protocols for m in described.members] == [(), ()]
    with_settings(driver, assignor="roundrobin")
    assert review(driver)
    assert protocol_after_rejoin(driver, ids) == "roundrobin"
    described = driver.ask(DescribeGroup("g"))
    assert [m.protocols for m in described.members] == [("range", "roundrobin")] * 2


def test_a_coordinator_change_alone_starts_no_rebalance() -> None:
    driver = with_settings(GroupDriver(), assignor="sticky")
    (only,) = driver.stable(1, protocols=BOTH)
    driver.reload()
    assert driver.beat(only, 1) == HeartbeatReply()


def test_a_static_member_that_returns_to_another_assignor_begins_a_rebalance() -> None:
    driver = GroupDriver()
    driver.stable(1, protocols=OTHER_WAY, instance="one")
    assert driver.group.protocol == "roundrobin"
    with_settings(driver, assignor="range")
    back = driver.joined(driver.join(protocols=OTHER_WAY, instance="one"))
    assert (back.generation, back.protocol) == (2, "range")


def test_a_group_that_is_not_there_has_nothing_to_review() -> None:
    assert not review(with_settings(GroupDriver(), assignor="range"))


# ---------------------------------------------------------------------- timeouts


@pytest.mark.parametrize("session_ms", [SESSION_MS // 2, SESSION_MS * 3])
def test_the_session_timeout_that_is_set_counts(session_ms: int) -> None:
    driver = with_settings(GroupDriver(), session_timeout_ms=session_ms)
    (only,) = driver.stable()
    driver.pass_time(session_ms - 1)
    assert driver.beat(only, 1) == HeartbeatReply()
    driver.pass_time(session_ms)
    with pytest.raises(UnknownMemberId):
        driver.beat(only, 1)


def test_a_new_session_timeout_counts_from_the_next_sign_of_life() -> None:
    driver = GroupDriver()
    (only,) = driver.stable()
    with_settings(driver, session_timeout_ms=SESSION_MS * 10)
    assert not review(driver)
    driver.beat(only, 1)
    driver.pass_time(SESSION_MS * 10 - 1)
    assert driver.beat(only, 1) == HeartbeatReply()


def test_the_rebalance_timeout_that_is_set_counts() -> None:
    driver = with_settings(GroupDriver(), rebalance_timeout_ms=2_000)
    (silent,) = driver.stable()
    ticket = driver.join()
    driver.pass_time(1_999)
    assert ticket not in driver.replies
    driver.pass_time(1)
    assert driver.joined(ticket).generation == 2
    assert silent not in driver.group.members


def test_describing_shows_what_is_in_force() -> None:
    driver = GroupDriver()
    driver.stable(protocols=OTHER_WAY)
    (shown,) = driver.ask(DescribeGroup("g")).members
    assert (shown.session_timeout_ms, shown.rebalance_timeout_ms) == (SESSION_MS, 60_000)
    assert shown.protocols == ("roundrobin", "range")
    with_settings(driver, session_timeout_ms=7_000, rebalance_timeout_ms=8_000)
    (shown,) = driver.ask(DescribeGroup("g")).members
    assert (shown.session_timeout_ms, shown.rebalance_timeout_ms) == (7_000, 8_000)
