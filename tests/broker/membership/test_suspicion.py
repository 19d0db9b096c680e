"""When a broker may be declared dead: every rule of the verdict on its own."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla_broker.membership.suspicion import RemovalLimit, Verdict, is_proven, verdict
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_core.ports.peers import Presence, Probe

LIFE, OTHER = UUID(int=1, version=4), UUID(int=2, version=4)
REFUSED, SILENT = Probe(Presence.REFUSED), Probe(Presence.SILENT)
HERE, REPLACED = Probe(Presence.HERE, LIFE), Probe(Presence.HERE, OTHER)
DEAD, ALIVE, UNKNOWN = Verdict.DEAD, Verdict.ALIVE, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("probes", "said"),
    [
        ([REFUSED, REFUSED], DEAD),
        ([REFUSED, REPLACED], DEAD),
        ([REPLACED, REPLACED], DEAD),
        ([REFUSED], UNKNOWN),
        ([], UNKNOWN),
        ([REFUSED, SILENT], UNKNOWN),
        ([SILENT, SILENT], UNKNOWN),
        ([REFUSED, HERE], ALIVE),
        ([HERE], ALIVE),
    ],
)
def test_what_one_witness_may_say(probes: list[Probe], said: Verdict) -> None:
    assert verdict(probes, LIFE) is said


@pytest.mark.parametrize(
    ("own", "others", "proven"),
    [
        (DEAD, {}, True),  # only two brokers: nobody else to ask
        (DEAD, {3: DEAD}, True),
        (DEAD, {3: UNKNOWN}, False),
        (DEAD, {3: ALIVE, 4: DEAD}, False),
        (DEAD, {3: UNKNOWN, 4: DEAD}, True),
        (DEAD, {3: None}, True),  # the other one refuses us as well: one witness is all there are
        (DEAD, {3: None, 4: UNKNOWN}, False),
        (UNKNOWN, {3: DEAD, 4: DEAD}, False),
        (ALIVE, {3: DEAD}, False),
    ],
)
def test_two_witnesses_if_there_are_two(
    own: Verdict, others: dict[int, Verdict | None], proven: bool
) -> None:
    assert is_proven(own, others) is proven


def cluster(*ids: int, stopping: tuple[int, ...] = (), revision: int = 5) -> ClusterImage:
    made = {i: BrokerImage(i, LIFE, (), None, revision, stopping=i in stopping) for i in ids}
    return ClusterImage("c", brokers=made)


def test_never_over_half_within_a_lease() -> None:
    limit = RemovalLimit(6.0)
    five = cluster(1, 2, 3, 4, 5)
    assert limit.allows(1, five, 0)
    limit.on_image(five, cluster(2, 3, 4, 5), 0)
    assert limit.allows(2, cluster(2, 3, 4, 5), 1)
    limit.on_image(cluster(2, 3, 4, 5), cluster(3, 4, 5), 1)
    assert not limit.allows(3, cluster(3, 4, 5), 2)
    # The same one twice is still one.
    assert limit.allows(2, cluster(2, 3, 4, 5), 2)
    assert limit.allows(3, cluster(3, 4, 5), 6.5)  # the first is long ago


def test_of_two_brokers_one_may_be_removed_and_of_one_none() -> None:
    limit = RemovalLimit(6.0)
    assert limit.allows(1, cluster(1, 2), 0)
    assert not limit.allows(1, cluster(1), 0)


def test_a_broker_that_stopped_cleanly_does_not_count() -> None:
    limit = RemovalLimit(6.0)
    limit.on_image(cluster(1, 2, 3, stopping=(1,)), cluster(2, 3), 0)
    assert limit.allows(2, cluster(2, 3), 1)
    limit.on_image(cluster(2, 3), cluster(3), 1)
    assert not limit.allows(3, cluster(3), 2)


def test_a_new_registration_of_the_same_id_was_a_death_too() -> None:
    limit = RemovalLimit(6.0)
    limit.on_image(cluster(1, 2, 3), cluster(1, 2, 3, revision=9), 0)
    assert not limit.allows(1, cluster(1, 2, 3), 1)
