"""A balanced assignment that moves as little as possible. [P]

Theory of operation. Every member keeps what it claims (of conflicting claims the newest generation wins; in a tie
both lose); unowned partitions go to the members with the fewest; then partitions move from members with more to
members with fewer. If all members read the same topics, this is counting: with P partitions and M members each gets
P // M or one more, and the members with the most claims get one more. Otherwise partitions move
one by one while a move makes two members more equal. Called by the sticky assignors.

Invariants:
S1. Each partition has exactly one member, which subscribes to its topic.
S2. No single move improves the balance: if a member could take a partition of another, that one has at most one more.
S3. If all members read the same topics, no assignment that satisfies S2 moves fewer partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ottla_core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """The subscription of one member, and the partitions it claims to own."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1


def sticky(counts: Mapping[str, int], claims: Mapping[str, Claim]) -> dict[str, list[TopicPartition]]:
    """Partitions by member; the order of `claims` breaks ties."""
    kept, loose = _settle(counts, claims)
    if len({frozenset(topic for topic in c.topics if counts.get(topic)) for c in claims.values()}) <= 1:
        _deal_equally(kept, loose)
    else:
        _deal_by_subscription(kept, loose, claims)
    return {member: sorted(partitions) for member, partitions in kept.items()}


def _settle(
    counts: Mapping[str, int], claims: Mapping[str, Claim]
) -> tuple[dict[str, list[TopicPartition]], deque[TopicPartition]]:
    """Undisputed claims to existing, subscribed partitions; and the partitions without an owner."""
    owner: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, claim in claims.items():
        for tp in dict.fromkeys(claim.owned):
            if tp.topic not in claim.topics or not 0 <= tp.partition < counts.get(tp.topic, 0):
                continue
            newest, _ = owner.get(tp, (claim.generation - 1, None))
            if claim.generation > newest:
                owner[tp] = (claim.generation, member)
            elif claim.generation == newest:
                owner[tp] = (newest, None)
    kept: dict[str, list[TopicPartition]] = {member: [] for member in claims}
    loose: deque[TopicPartition] = deque()
    wanted = {topic for claim in claims.values() for topic in claim.topics}
    for topic in sorted(topic for topic in wanted if counts.get(topic, 0) > 0):
        for partition in range(counts[topic]):
            tp = TopicPartition(topic, partition)
            _, member_or_none = owner.get(tp, (0, None))
            if member_or_none is None:
                loose.append(tp)
            else:
                kept[member_or_none].append(tp)
    return kept, loose


def _deal_equally(kept: dict[str, list[TopicPartition]], loose: deque[TopicPartition]) -> None:
    """All members read the same topics: cut each member to its quota, then fill up."""
    if not kept:
        return
    total = len(loose) + sum(map(len, kept.values()))
    quota, with_one_more = divmod(total, len(kept))
    # Members with the most claims keep one more; sorting is stable, so the member order breaks ties.
    ranked = sorted(kept, key=lambda member: -len(kept[member]))
    quotas = {member: quota + (number < with_one_more) for number, member in enumerate(ranked)}
    for member, partitions in kept.items():
        loose.extend(partitions[quotas[member] :])
        del partitions[quotas[member] :]
    ordered = deque(sorted(loose))
    # One each in turn, so that the partitions of a topic are spread over the members.
    hungry = deque(member for member in kept if len(kept[member]) < quotas[member])
    while ordered:
        member = hungry.popleft()
        kept[member].append(ordered.popleft())
        if len(kept[member]) < quotas[member]:
            hungry.append(member)


def _deal_by_subscription(
    kept: dict[str, list[TopicPartition]], loose: deque[TopicPartition], claims: Mapping[str, Claim]
) -> None:
    """Members read different topics: give to the member with the fewest, then move while that balances."""
    readers: dict[str, list[str]] = {}
    for member, claim in claims.items():
        for topic in claim.topics:
            readers.setdefault(topic, []).append(member)
    # Partitions with few possible readers first: the others can balance later.
    for tp in sorted(loose, key=lambda tp: (len(readers[tp.topic]), tp)):
        kept[min(readers[tp.topic], key=lambda member: len(kept[member]))].append(tp)
    moved = True
    while moved:
        # Terminates: each move lowers the sum of squares of the sizes.
        moved = False
        for giver in sorted(kept, key=lambda member: -len(kept[member])):
            for tp in list(kept[giver]):
                taker = min(readers[tp.topic], key=lambda member: len(kept[member]))
                if len(kept[giver]) > len(kept[taker]) + 1:
                    kept[giver].remove(tp)
                    kept[taker].append(tp)
                    moved = True
