"""Where the partitions of `make bench-scale` are, who has to take over from whom, and what the rates amount to. [P]"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_broker.metadata.image import ClusterImage
from ottla_core.ids import NO_BROKER

#: Ids of the simulated brokers; the real ones have those from 0.
SIMULATED = (10, 11, 12, 13, 14)
#: The broker with few leaderships, whose successor then has many.
FEW, MANY = SIMULATED[:2]
FEW_LED, MANY_LED = 2_000, 10_000
TOPIC_PARTITIONS = 100


def placement(partitions: int) -> list[tuple[int, int, int]]:
    """Replicas of each partition, three each, on the simulated brokers.

    FEW leads FEW_LED, and MANY follows all of those; with its own, MANY leads MANY_LED once FEW is gone. The others
    lead the rest, in turn. With fewer partitions than MANY_LED, both lead a fifth and all of what there is.
    """
    few, many, *others = SIMULATED
    led_by_few = min(FEW_LED, partitions // 5)
    led_by_both = min(MANY_LED, partitions)
    first = [(few, many, others[0])] * led_by_few
    second = [(many, others[0], others[1])] * (led_by_both - led_by_few)
    return [*first, *second, *spread_over(others, partitions - led_by_both)]


def spread_over(brokers: Sequence[int], partitions: int) -> list[tuple[int, int, int]]:
    """Three brokers, each of which leads a third."""
    turns = [(brokers[i], brokers[(i + 1) % 3], brokers[(i + 2) % 3]) for i in range(3)]
    return [turns[i % 3] for i in range(partitions)]


def topics(placed: Sequence[tuple[int, int, int]]) -> list[list[list[int]]]:
    """The same in topics of TOPIC_PARTITIONS."""
    return [
        [list(replicas) for replicas in placed[i : i + TOPIC_PARTITIONS]]
        for i in range(0, len(placed), TOPIC_PARTITIONS)
    ]


class Takeover:
    """Partitions that a dead broker led, until another one leads them. Looks only at topics that have changed."""

    def __init__(self, image: ClusterImage, broker_id: int) -> None:
        self._gone = (broker_id, NO_BROKER)
        led = {
            name: {i for i, partition in enumerate(topic.partitions) if partition.leader == broker_id}
            for name, topic in image.topics.items()
        }
        self._left = {name: numbers for name, numbers in led.items() if numbers}
        self.total = self.left = sum(map(len, self._left.values()))

    def note(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topics is new.topics:
            return
        for name in list(self._left):
            topic = new.topics[name]
            if topic is old.topics[name]:
                continue
            numbers = {i for i in self._left[name] if topic.partitions[i].leader in self._gone}
            self.left -= len(self._left[name]) - len(numbers)
            if numbers:
                self._left[name] = numbers
            else:
                del self._left[name]


def partitions_within(target_s: float, per_second: float, brokers: int, detection_s: float) -> int:
    """How many partitions a cluster may have so that one of its brokers is replaced as leader in `target_s`.

    Leaderships are spread evenly, a death is noticed after `detection_s`, and then `per_second` leaders are elected.
    Rounded down to thousands.
    """
    led = max(0.0, target_s - detection_s) * per_second
    return int(led * brokers / 1000) * 1000


def image_limit(budget_mb: float, bytes_per_partition: float) -> int:
    """Partitions whose metadata fit into `budget_mb` of each broker, rounded down to thousands."""
    return int(budget_mb * 1e6 / bytes_per_partition / 1000) * 1000
