"""Worlds that are told, not drawn: the shortest stories of what a campaign has found, or could."""

from __future__ import annotations

import pytest

from ottla_broker.metadata.image import PartitionImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_core.ids import NO_BROKER, TopicPartition
from sim.__main__ import told
from sim.campaign import Campaign, Script
from sim.planted import rule_7_whom_an_election_drops_is_forgotten

ONE = TopicPartition("one", 0)


def play(script: Script, *, flushed: bool = False) -> None:
    campaign = Campaign(1, script=script)
    campaign.world.is_strict, campaign.world.is_flushed = False, flushed
    verdict = campaign.run()
    assert verdict.failure is None, told(verdict)
    assert verdict.acknowledged > 10


def state(campaign: Campaign) -> PartitionImage:
    (found,) = (state for spot, state in campaign.world.states().items() if spot.tp == ONE)
    return found


def end_lease(campaign: Campaign, broker_id: int) -> None:
    entry = campaign.world.etcd.entries[BROKERS.key(broker_id)]
    campaign.world.etcd.end_lease(entry.lease)


async def _roles(campaign: Campaign) -> tuple[int, int, int]:
    """Controller, leader and follower of the partition: three brokers, all in sync."""
    world = campaign.world

    def controller() -> int:
        entry = world.etcd.entries.get(CONTROLLER.key)
        return NO_BROKER if entry is None else CONTROLLER.decode(entry).broker_id

    def is_settled() -> bool:
        return controller() != NO_BROKER and len(state(campaign).isr) == len(world.machines)

    await campaign.until(is_settled, 20, "all in sync")
    while controller() == state(campaign).leader:
        end_lease(campaign, controller())
        await world.clock.sleep(0.5)
        await campaign.until(is_settled, 20, "all in sync")
    roles = controller(), state(campaign).leader
    (follower,) = (i for i in world.machines if i not in roles)
    return *roles, follower


def _cut_off_from_the_other_two(campaign: Campaign, broker_id: int, is_cut: bool) -> None:
    net = campaign.world.net
    for other in campaign.world.machines:
        if other != broker_id:
            for way in ((broker_id, other), (other, broker_id)):
                (net.cut_way if is_cut else net.mend_way)(*way)


async def _in_sync_are(campaign: Campaign, *brokers: int) -> None:
    await campaign.until(lambda: set(state(campaign).isr) == set(brokers), 20, f"{brokers} are in sync")


async def elected_when_dead(campaign: Campaign) -> None:
    """Seed 67 of the first campaign: the last in-sync set is one broker that lost power before it was elected."""
    world = campaign.world
    controller, leader, follower = await _roles(campaign)
    _cut_off_from_the_other_two(campaign, controller, True)
    await _in_sync_are(campaign, leader, follower)
    await world.clock.sleep(1.0)
    world.machines[follower].lose_power()
    world.machines[leader].kill()
    end_lease(campaign, leader)
    await _in_sync_are(campaign, follower)
    assert state(campaign).leader == follower and not world.machines[follower].is_host_up
    _cut_off_from_the_other_two(campaign, controller, False)
    world.machines[follower].power_on()
    world.machines[follower].start()
    await world.clock.sleep(6.0)
    world.machines[leader].start()


async def shrunk_around_the_dead(campaign: Campaign) -> None:
    """The same without an election: the controller drops the last whole follower of a leader without power."""
    world = campaign.world
    controller, leader, follower = await _roles(campaign)
    _cut_off_from_the_other_two(campaign, controller, True)
    await _in_sync_are(campaign, leader, follower)
    await world.clock.sleep(1.0)
    world.machines[leader].lose_power()
    world.machines[follower].kill()
    end_lease(campaign, follower)
    await _in_sync_are(campaign, leader)
    _cut_off_from_the_other_two(campaign, controller, False)
    world.machines[leader].power_on()
    world.machines[leader].start()
    await world.clock.sleep(6.0)
    world.machines[follower].start()


async def power_of_one_and_disk_of_the_other(campaign: Campaign) -> None:
    """Torn by the book, the follower leaves the set of a leader whose disk is gone; yet it has all that counts."""
    world = campaign.world
    controller, leader, follower = await _roles(campaign)
    _cut_off_from_the_other_two(campaign, controller, True)
    await _in_sync_are(campaign, leader, follower)
    await world.clock.sleep(1.0)
    world.machines[leader].lose_disk()
    world.machines[follower].lose_power()
    world.machines[follower].power_on()
    world.machines[follower].start()
    await _in_sync_are(campaign, leader)
    _cut_off_from_the_other_two(campaign, controller, False)
    world.machines[leader].power_on()
    world.machines[leader].start()


STORIES = {elected_when_dead: False, shrunk_around_the_dead: False, power_of_one_and_disk_of_the_other: True}


@pytest.mark.parametrize("story", STORIES)
def test_replicas_with_committed_records_stay_eligible(story: Script) -> None:
    play(story, flushed=STORIES[story])


@pytest.mark.parametrize("story", STORIES)
def test_the_stories_see_it(story: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    # I8: a reader may notice the loss before a checker of replicas does, by an offset that is out of range.
    with monkeypatch.context() as patch, pytest.raises(AssertionError, match=r"I[23458] "):
        rule_7_whom_an_election_drops_is_forgotten(patch)
        play(story, flushed=STORIES[story])
