"""When a broker withholds its readiness because its replicas are behind."""

from __future__ import annotations

from types import MappingProxyType
from uuid import UUID, uuid4

from ottla_broker.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla_broker.readiness import CatchUp, lagging

TOPIC = uuid4()


def image(
    *isrs: tuple[int, ...],
    live: tuple[int, ...] = (0, 1, 2),
    leader: int | None = None,
    offline: dict[UUID, tuple[int, ...]] | None = None,
) -> ClusterImage:
    partitions = tuple(
        PartitionImage((0, 1, 2), isr[0] if leader is None else leader, 1, isr) for isr in isrs
    )
    brokers = {n: BrokerImage(n, uuid4(), (), offline=(offline or {}) if n == 2 else {}) for n in live}
    return ClusterImage(
        "c",
        brokers=MappingProxyType(brokers),
        topics=MappingProxyType({"a": TopicImage("a", TOPIC, {}, partitions)}),
    )


def test_a_restarted_broker_is_ready_when_it_is_back_in_every_isr() -> None:
    catch_up = CatchUp(2, timeout_s=60)
    assert "2 replicas" in (catch_up.reason(image((0, 1), (1, 0)), 0) or "")
    assert "1 replicas" in (catch_up.reason(image((0, 1, 2), (1, 0)), 5) or "")
    assert catch_up.reason(image((0, 1, 2), (1, 0, 2)), 6) is None


def test_one_that_was_in_sync_falls_behind_for_a_while_first() -> None:
    catch_up = CatchUp(2, timeout_s=60, grace_s=10)
    assert catch_up.reason(image((0, 1, 2)), 0) is None
    behind = image((0, 1))
    assert catch_up.reason(behind, 1) is None
    assert catch_up.reason(image((0, 1, 2)), 5) is None, "back again: nothing happened"
    assert catch_up.reason(behind, 6) is None
    assert catch_up.reason(behind, 15.9) is None
    assert catch_up.reason(behind, 16) is not None


def test_it_does_not_wait_for_ever() -> None:
    catch_up = CatchUp(2, timeout_s=60)
    behind = image((0, 1))
    assert catch_up.reason(behind, 0) is not None
    assert catch_up.reason(behind, 59) is not None
    assert catch_up.reason(behind, 60) is None
    assert CatchUp(2, timeout_s=0).reason(behind, 0) is None


def test_one_broker_stays_ready_when_all_lag() -> None:
    """Clients must find a first address; the others are enough to stop a drain."""
    all_behind = image((0,), (1,), (2,))
    reasons = [CatchUp(n, timeout_s=60).reason(all_behind, 0) for n in range(3)]
    assert [reason is None for reason in reasons] == [True, False, False]
    alone = image((0,), live=(0,))
    assert CatchUp(0, timeout_s=60).reason(alone, 0) is None


def test_what_cannot_catch_up_counts_nowhere() -> None:
    assert lagging(image((0, 1), leader=-1)) == {}, "nobody to copy from"
    assert lagging(image((0, 1), live=(0, 1))) == {}, "offline itself"
    assert lagging(image((0, 1), offline={TOPIC: (0,)})) == {}, "its log directory has failed"
    assert lagging(image((0, 1))) == {2: 1}
