"""The memory of all members is bounded: new members are refused, those that rejoin are not.

`GroupDriver` checks after each step that it is counted exactly.
"""

from __future__ import annotations

import pytest

from broker.group.group_driver import GroupDriver
from ottla_broker.group.messages import JoinGroup, Protocol
from ottla_core.errors import GroupMaxSizeReached

MIB = 1 << 20


def join(member_id: str, size: int, name: str) -> JoinGroup:
    """A member in a group of its own."""
    protocols = (Protocol("range", bytes(size)),)
    return JoinGroup(
        name, member_id, name, None, "me", "/1", "consumer", protocols, 10_000, 60_000, False, True
    )


def full() -> GroupDriver:
    driver = GroupDriver(group_members_max_bytes=str(MIB))
    for number in range(10):
        driver.ask(join("", 95_000, f"m{number}"))
    return driver


def test_a_new_member_is_refused_beyond_the_bound() -> None:
    driver = full()
    with pytest.raises(GroupMaxSizeReached, match=r"group\.members\.max\.bytes is 1048576"):
        driver.ask(join("", 95_000, "another"))
    assert "another" not in driver.shard.groups
    driver.ask(join("", 1_000, "small"))


def test_a_member_may_rejoin_but_not_with_more() -> None:
    driver = full()
    driver.ask(join("", 85_000, "last"))
    driver.ask(join("m1", 95_000, "m1"))
    driver.ask(join("m1", 94_000, "m1"))
    with pytest.raises(GroupMaxSizeReached):
        driver.ask(join("m1", 100_000 - 100, "m1"))
    assert driver.shard.groups["m1"].members, "it is still a member"


def test_members_known_from_the_log_may_rejoin() -> None:
    """Of them only the protocol in use is known; without the others they could not go on."""
    driver = GroupDriver(group_members_max_bytes=str(MIB))
    (member,) = driver.stable()
    driver.reload()
    driver.shard.memory._held_everywhere = lambda: 2 * MIB  # Other shards of the broker.
    with pytest.raises(GroupMaxSizeReached):
        driver.ask(driver.join_request())
    driver.ask(driver.join_request(member, protocols=(Protocol("range", bytes(5_000)),)))
    assert driver.group.members[member].held_bytes > 5_000


def test_members_that_leave_make_room() -> None:
    driver = full()
    driver.pass_time(700_000)
    assert driver.shard.memory.bytes < MIB // 10
    driver.ask(join("", 95_000, "late"))
