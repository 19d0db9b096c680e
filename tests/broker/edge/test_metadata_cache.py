"""Who is named in a Metadata answer, and for how long after it is gone."""

from __future__ import annotations

from uuid import UUID

from ottla_broker.edge.kafka.metadata_cache import GONE_NAMED_S, MetadataCache
from ottla_broker.metadata.image import BrokerImage, ClusterImage, Endpoint


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def image(*ids: int) -> ClusterImage:
    brokers = {i: BrokerImage(i, UUID(int=i), (Endpoint("PLAIN", "kafka", f"host-{i}", 9092),)) for i in ids}
    return ClusterImage("c", controller=ids[0], brokers=brokers)


def named(cache: MetadataCache, seen: ClusterImage) -> list[int]:
    head = cache.head(seen, 1)
    return [i for i in range(5) if f"host-{i}".encode() in head]


def test_a_broker_that_is_gone_is_named_a_little_longer() -> None:
    time = Time()
    cache, before, after = MetadataCache("PLAIN", time), image(1, 2, 3), image(2, 3)
    assert named(cache, before) == [1, 2, 3]
    cache.on_image(before, after)
    assert named(cache, after) == [1, 2, 3]
    time.now += GONE_NAMED_S - 0.1
    assert named(cache, after) == [1, 2, 3]
    time.now += 0.2
    assert named(cache, after) == [2, 3]


def test_a_broker_that_came_back_is_named_once_and_as_it_is_now() -> None:
    time = Time()
    cache, before, without, back = MetadataCache("PLAIN", time), image(1, 2), image(2), image(1, 2)
    cache.on_image(before, without)
    assert named(cache, without) == [1, 2]
    cache.on_image(without, back)
    assert cache.head(back, 1).count(b"host-1") == 1
    time.now += 2 * GONE_NAMED_S
    assert named(cache, back) == [1, 2]


def test_a_broker_that_was_offline_before_is_not_listed() -> None:
    cache = MetadataCache("PLAIN", Time())
    cache.on_image(image(2, 3), image(2, 3))
    assert named(cache, image(2, 3)) == [2, 3]


def test_a_response_that_was_begun_before_a_loss_names_each_broker_once() -> None:
    cache, before, after = MetadataCache("PLAIN", Time()), image(1, 2, 3), image(2, 3)
    cache.on_image(before, after)
    assert cache.head(before, 1).count(b"host-1") == 1
