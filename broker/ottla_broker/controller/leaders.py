"""The desired state of a partition, given the live brokers. [P]

Each function takes the state of one partition and returns the desired state, or None when it is the same.
They use the current state only, never past events, so that a controller that was elected in the middle of
another's work simply continues it.

    reconcile        brokers went offline, came back, or are about to stop
    after_return     a registered broker is not admitted yet: its earlier incarnation ends (rules 1 to 3)
    with_preferred   leadership returns to the preferred replica
    on_demand        an administrator asks for the preferred replica, or for an unclean election

Called by the planner, and by the commands that have to explain their refusals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from ottla_broker.controller.election import Position, elect, on_record, safe_replicas, with_sets
from ottla_broker.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla_core.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    RequestError,
)
from ottla_core.ids import NO_BROKER


class LiveBrokers(NamedTuple):
    """Brokers that are admitted, those about to stop, and those that have lost a log directory."""

    alive: frozenset[int]
    stopping: frozenset[int] = frozenset()
    maimed: tuple[BrokerImage, ...] = ()

    @classmethod
    def of(cls, image: ClusterImage) -> LiveBrokers:
        alive = image.admitted()
        return cls(
            frozenset(b.id for b in alive),
            frozenset(b.id for b in alive if b.stopping),
            tuple(b for b in image.brokers.values() if b.offline),
        )

    def for_partition(self, topic_id: UUID, index: int) -> LiveBrokers:
        """Live brokers for this partition: without those whose log directory with it has failed."""
        if not self.maimed:
            return self
        lost = frozenset(b.id for b in self.maimed if b.has_lost(topic_id, index))
        return self._replace(alive=self.alive - lost, stopping=self.stopping - lost) if lost else self


class Policy(NamedTuple):
    """The two settings of a topic that elections depend on."""

    min_insync: int = 1
    unclean: bool = False


def policy_of(topic: TopicImage, defaults: Mapping[str, str]) -> Policy:
    """From the topic's own settings, else from the broker's."""
    names = ("min.insync.replicas", "unclean.leader.election.enable")
    least, unclean = (topic.config.get(name, defaults.get(name, "")) for name in names)
    return Policy(int(least) if least.isascii() and least.isdigit() else 1, unclean.lower() == "true")


def reconcile(
    partition: PartitionImage,
    live: LiveBrokers,
    policy: Policy,
    positions: Mapping[int, Position] | None = None,
) -> PartitionImage | None:
    alive, stopping = live.alive, live.stopping
    leader, isr = partition.leader, partition.isr
    if leader in alive and leader not in stopping:
        if alive.issuperset(isr) and stopping.isdisjoint(isr):
            return None
        return _narrowed(partition, live, policy.min_insync)
    if leader in alive and not any(r in alive and r not in stopping for r in isr):
        # No other replica can lead: it leads until it is offline.
        return _narrowed(partition, live, policy.min_insync)
    if leader == NO_BROKER and not alive.intersection(partition.replicas):
        return None
    wanted = elect(
        partition,
        alive=alive,
        reluctant=stopping,
        min_insync=policy.min_insync,
        unclean=policy.unclean,
        positions=positions,
    )
    if wanted.leader == NO_BROKER:
        return None if leader == NO_BROKER else wanted
    return _narrowed(wanted, live, policy.min_insync) or wanted


def _narrowed(partition: PartitionImage, live: LiveBrokers, min_insync: int) -> PartitionImage | None:
    """The same leader, without ISR members that are offline or, where enough remain, about to stop."""
    leader, isr = partition.leader, partition.isr
    left = tuple(r for r in isr if r in live.alive)
    staying = tuple(r for r in left if r not in live.stopping or r == leader)
    if len(staying) >= min_insync:
        left = staying
    if left == isr:
        return None
    return with_isr(partition, left, min_insync)


def with_isr(
    partition: PartitionImage, isr: tuple[int, ...], min_insync: int, lacking: Collection[int] = ()
) -> PartitionImage:
    """Another ISR under the same leader. Rule 7: replicas that leave an ISR that is now too small go to the ELR.

    `lacking` are known to lack committed records: they leave for good.
    """
    elr: tuple[int, ...] = ()
    if len(isr) < min_insync:
        elr = tuple(r for r in safe_replicas(partition) if r not in isr and r not in lacking)
    return with_sets(partition, isr, elr)


def after_return(
    partition: PartitionImage,
    arriving: Collection[int],
    torn: Collection[int],
    live: LiveBrokers,
    policy: Policy,
) -> PartitionImage | None:
    """`live.alive` includes the arriving brokers; `torn` are those of them whose log is not whole."""
    leader, safe = partition.leader, safe_replicas(partition)
    led_on = leader in live.alive and leader not in arriving
    if led_on:
        if not any(r in torn for r in safe):
            return None
        # Only their replicas no longer count.
        return with_sets(
            partition,
            tuple(r for r in partition.isr if r not in torn),
            tuple(r for r in partition.elr if r not in torn),
        )
    if leader not in arriving and not any(r in arriving for r in partition.replicas):
        return None
    wanted = elect(
        partition,
        alive=live.alive,
        torn=torn,
        reluctant=(*arriving, *live.stopping),
        min_insync=policy.min_insync,
        unclean=policy.unclean,
    )
    unchanged = leader == wanted.leader == NO_BROKER and wanted.torn == partition.torn
    return None if unchanged else wanted


def with_preferred(partition: PartitionImage, live: LiveBrokers) -> PartitionImage | None:
    """Leadership to the preferred replica, if that is in sync and not about to stop."""
    first = partition.replicas[0] if partition.replicas else NO_BROKER
    fit = first in partition.isr and first in live.alive and first not in live.stopping
    if partition.leader in (first, NO_BROKER) or not fit:
        return None
    return replace(partition, leader=first, leader_epoch=partition.leader_epoch + 1)


def on_demand(
    partition: PartitionImage, live: LiveBrokers, policy: Policy, *, unclean: bool
) -> PartitionImage | RequestError:
    """The state with the wanted leader, or the reason why nothing changes. As in Kafka, an unclean election is only
    for partitions without a leader, and takes an in-sync replica if one is online."""
    if not unclean:
        if partition.leader == partition.replicas[0]:
            return ElectionNotNeeded("The preferred replica leads already.")
        preferred = with_preferred(partition, live)
        if preferred is None:
            return PreferredLeaderNotAvailable(
                f"The preferred replica {partition.replicas[0]} is offline, stopping or not in sync."
            )
        return preferred
    if partition.leader in live.alive:
        return ElectionNotNeeded(f"The partition has a leader, broker {partition.leader}.")
    elected = elect(
        partition, alive=live.alive, reluctant=live.stopping, min_insync=policy.min_insync, unclean=True
    )
    if elected.leader == NO_BROKER:
        return EligibleLeadersNotAvailable(f"None of the replicas {list(partition.replicas)} is online.")
    return elected


def waits_for_positions(partition: PartitionImage, alive: Collection[int]) -> tuple[int, ...]:
    """Replicas whose positions are needed to elect a leader (rule 2), if all of them are online; else none."""
    known = on_record(partition)
    if partition.leader != NO_BROKER or len(known) < 2:
        return ()
    torn = all(r in partition.torn for r in safe_replicas(partition))
    return known if torn and all(r in alive for r in known) else ()


def is_handed_over(image: ClusterImage, broker_id: int, defaults: Mapping[str, str]) -> bool:
    """Whether a stopping broker leads no partition and is in no ISR that other brokers could take over."""
    broker, live = image.brokers.get(broker_id), LiveBrokers.of(image)
    if broker is None or not broker.stopping:
        return broker is None  # The controller has not been asked yet.
    return all(
        broker_id not in partition.isr
        or reconcile(partition, live.for_partition(topic.id, index), policy_of(topic, defaults)) is None
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
    )
