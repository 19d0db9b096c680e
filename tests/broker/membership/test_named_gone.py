"""Whether an image still names dead leaders is asked by every waiting client, and looked up once."""

from __future__ import annotations

from collections.abc import ValuesView
from dataclasses import replace
from uuid import UUID

from ottla_broker.membership.failure_detector import OfflineLeaders
from ottla_broker.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla_core.ids import NO_BROKER


class _Counted(dict[str, TopicImage]):
    looks = 0

    def values(self) -> ValuesView[TopicImage]:
        self.looks += 1
        return super().values()


def _image(*leaders: int) -> ClusterImage:
    partitions = tuple(PartitionImage((1, 2), leader) for leader in leaders)
    topics = _Counted(t=TopicImage("t", UUID(int=1), {}, partitions))
    return ClusterImage("c", topics=topics, brokers={1: BrokerImage(1, UUID(int=2), ())})


def test_only_offline_leaders_count() -> None:
    gone = OfflineLeaders()
    assert not gone.are_named_by(_image(1, NO_BROKER))
    assert gone.are_named_by(_image(1, 2))
    assert not gone.are_named_by(_image(1, 1))


def test_each_image_is_looked_through_once() -> None:
    gone, image = OfflineLeaders(), _image(1, 2)
    assert all(gone.are_named_by(image) for _ in range(100))
    assert isinstance(image.topics, _Counted) and image.topics.looks == 1
    back = {**image.brokers, 2: BrokerImage(2, UUID(int=3), ())}
    assert not gone.are_named_by(replace(image, brokers=back))
    assert image.topics.looks == 2
