"""How a world is built, drawn from its seed: most have three brokers and all copies everywhere, some do not.

Drawn apart from everything else, so that a plain world stays the same whatever is added here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.loop import chance_for

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Shape:
    brokers: int = 3
    #: Copies of each partition.
    replicas: int = 3
    #: Clients delete records, and segments are small, so that files go as well.
    is_trimmed: bool = False
    #: The topic of groups' offsets is compacted all the time.
    is_compacted: bool = False
    #: How far the brokers' clocks may be from the truth; they also jump.
    skew_ms: int = 0
    #: Transactional producers, and readers of what they commit.
    is_transactional: bool = False
    #: Consumer groups with members; with transactions, workers that consume, transform and produce, too.
    has_groups: bool = False


PLAIN = Shape()


#: Of twenty worlds: two with transactions, two with groups, one with both, which takes longest.
_KINDS = {0: (True, False), 1: (True, False), 2: (False, True), 3: (False, True), 4: (True, True)}


def drawn(seed: int) -> Shape:
    is_transactional, has_groups = _KINDS.get(chance_for(seed, "kinds").below(20), (False, False))
    return replace(_built(seed), is_transactional=is_transactional, has_groups=has_groups)


def _built(seed: int) -> Shape:
    chance = chance_for(seed, "shape")
    if chance.below(5) < 3:
        return PLAIN
    brokers = 5 if chance.below(3) == 0 else 3
    return Shape(
        brokers=brokers,
        replicas=2 if chance.below(4) == 0 else 3,
        is_trimmed=chance.below(2) == 0,
        is_compacted=chance.below(2) == 0,
        skew_ms=_HOUR_MS if chance.below(3) == 0 else 0,
    )
