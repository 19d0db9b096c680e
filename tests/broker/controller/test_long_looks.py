"""Looking through very many partitions leaves the event loop free in between, also when nothing is to be done."""

from __future__ import annotations

from uuid import UUID

from ottla_broker.controller.caretaker import (
    LOOKED_MAX,
    SLICE_PARTITIONS,
    _differing,
    _leaderless_first,
    _led_by_others,
    _slices,
)
from ottla_broker.metadata.image import BrokerImage, ClusterImage, MemberImage, PartitionImage, TopicImage
from ottla_core.ids import NO_BROKER

_TOPICS, _PARTITIONS = 40, 500


def _image() -> ClusterImage:
    """20,000 partitions led by broker 1, and then ten without a leader."""
    led = (PartitionImage((1, 2), 1, 1, (1, 2)),) * _PARTITIONS
    topics = {f"t{i}": TopicImage(f"t{i}", UUID(int=i), {}, led) for i in range(_TOPICS)}
    lost = (PartitionImage((2, 1), NO_BROKER, 1, (2,)),) * 10
    topics["lost"] = TopicImage("lost", UUID(int=99), {}, lost)
    incarnation = UUID(int=1)
    return ClusterImage(
        "c",
        topics=topics,
        brokers={1: BrokerImage(1, incarnation, ())},
        members={1: MemberImage(1, incarnation)},
    )


def test_a_check_of_all_frees_the_loop_and_misses_none() -> None:
    image = _image()
    slices = list(_slices(_leaderless_first(_differing(None, image), image)))
    pauses = [chosen for chosen in slices if not chosen]
    assert len(pauses) == _TOPICS * _PARTITIONS // LOOKED_MAX
    made = [chosen for chosen in slices if chosen]
    assert next(iter(made[0])) == "lost"
    assert max(sum(map(len, chosen.values())) for chosen in made) == SLICE_PARTITIONS
    found = {(name, index) for chosen in made for name, indexes in chosen.items() for index in indexes}
    assert len(found) == _TOPICS * _PARTITIONS + 10


def test_a_look_for_preferred_leaders_frees_the_loop() -> None:
    slices = list(_slices(_led_by_others(_image(), [1])))
    assert slices == [{}] * (_TOPICS * _PARTITIONS // LOOKED_MAX)
