"""Replicas whose catching up is throttled: the value of `*.replication.throttled.replicas` of a topic. [P]"""

from __future__ import annotations

import re
from typing import NamedTuple

from ottla_core.errors import InvalidConfig

#: Every broker keeps the value in memory. 2,000 partitions with three throttled replicas each take 50 KB.
_CHARACTERS_MAX = 64 * 1024
_PAIR = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)


class ThrottledReplicas(NamedTuple):
    """`*` are all replicas of the topic; else (partition, broker) pairs, as Kafka's tools write them."""

    all: bool = False
    pairs: frozenset[tuple[int, int]] = frozenset()

    def has(self, partition: int, broker_id: int) -> bool:
        return self.all or (bool(self.pairs) and (partition, broker_id) in self.pairs)


NONE = ThrottledReplicas()


def throttled_replicas(name: str, text: str) -> ThrottledReplicas:
    """The parsed value of setting `name`; `InvalidConfig` for what Kafka would refuse too, or if it is too long."""
    if len(text) > _CHARACTERS_MAX:
        raise InvalidConfig(f"{name} has more than {_CHARACTERS_MAX} characters.")
    pairs, is_all = set(), False
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        pair = _PAIR.fullmatch(part)
        if pair is not None:
            pairs.add((int(pair[1]), int(pair[2])))
        elif part == "*":
            is_all = True
        elif part != "none":
            raise InvalidConfig(
                f"{name} must be '*', 'none' or a list of partition:broker, like 0:101,1:102."
            )
    return ThrottledReplicas(is_all, frozenset(pairs))
