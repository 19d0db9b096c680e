"""A balanced assignment that moves as little as possible. [P]

Theory of operation. Every member keeps what it claims (of conflicting claims the newest generation wins; in a tie
both lose); unowned partitions go to the members with the fewest; then partitions move from members with more to
members with fewer. If all members read the same topics, this is counting: with P partitions and M members each gets
P // M or one more, and the members with the most claims get one more. Otherwise partitions move
one by one while a move makes two members more equal. Called by the uniform and sticky assignors of broker and client.

Unowned partitions go to members in a rack with a replica (`near`) where that costs no balance, and a member that has to
give up partitions keeps those in its rack. `without` leaves
partitions out; `kept_max` tolerates imbalance: a member keeps that many, and loose partitions go to the others.

Invariants:
S1. Each partition has exactly one member, which subscribes to its topic.
S2. No single move improves the balance: if a member could take a partition of another, that one has at most one more.
S3. If all members read the same topics, no assignment that satisfies S2 moves fewer partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ottla_core.ids import TopicPartition

Near: TypeAlias = Callable[[str, TopicPartition], bool]


@dataclass(frozen=True, slots=True)
class Claim:
    """The subscription of one member, and the partitions it claims to own."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1


def balance(
    counts: Mapping[str, int],
    claims: Mapping[str, Claim],
    *,
    near: Near | None = None,
    without: frozenset[TopicPartition] = frozenset(),
    kept_max: int | None = None,
) -> dict[str, list[TopicPartition]]:
    """Partitions by member; the order of `claims` breaks ties."""
    kept, loose = _settle(counts, claims, without)
    if len({frozenset(topic for topic in c.topics if counts.get(topic)) for c in claims.values()}) <= 1:
        quotas = _quotas(kept, len(loose), kept_max)
        _deal_equally(kept, loose, quotas, near)
    else:
        _deal_by_subscription(kept, loose, claims, near, 1 if kept_max is None else max(kept_max, 1))
    return {member: sorted(partitions) for member, partitions in kept.items()}


def _settle(
    counts: Mapping[str, int], claims: Mapping[str, Claim], without: frozenset[TopicPartition]
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
            if tp in without:
                continue
            _, member_or_none = owner.get(tp, (0, None))
            if member_or_none is None:
                loose.append(tp)
            else:
                kept[member_or_none].append(tp)
    return kept, loose


def _quotas(kept: dict[str, list[TopicPartition]], loose: int, kept_max: int | None) -> dict[str, int]:
    """How many partitions each member gets: equally many, or what it has within `kept_max` and a share of the rest."""
    if not kept:
        return {}
    # Members with the most claims keep one more; sorting is stable, so the member order breaks ties.
    ranked = sorted(kept, key=lambda member: -len(kept[member]))
    total = loose + sum(map(len, kept.values()))
    quotas: dict[str, int] = {}
    for number, member in enumerate(ranked):
        left = len(ranked) - number
        fair = -(-total // left)
        quotas[member] = fair if kept_max is None else max(fair, min(len(kept[member]), kept_max))
        total -= quotas[member]
    return quotas


def _deal_equally(
    kept: dict[str, list[TopicPartition]],
    loose: deque[TopicPartition],
    quotas: Mapping[str, int],
    near: Near | None,
) -> None:
    """All members read the same topics: cut each member to its quota, then fill up."""
    for member, partitions in kept.items():
        if near is not None:
            partitions.sort(
                key=partial(_is_far, near, member)
            )  # What it gives up should be better off elsewhere.
        loose.extend(partitions[quotas[member] :])
        del partitions[quotas[member] :]
    ordered = deque(sorted(loose))
    # One each in turn, so that the partitions of a topic are spread over the members.
    hungry = deque(member for member in kept if len(kept[member]) < quotas[member])
    if near is not None:
        ordered = _deal_nearby(kept, ordered, hungry, quotas, near)
        hungry = deque(member for member in hungry if len(kept[member]) < quotas[member])
    while ordered and hungry:
        member = hungry.popleft()
        kept[member].append(ordered.popleft())
        if len(kept[member]) < quotas[member]:
            hungry.append(member)


def _is_far(near: Near, member: str, tp: TopicPartition) -> bool:
    return not near(member, tp)


def _deal_nearby(
    kept: dict[str, list[TopicPartition]],
    loose: deque[TopicPartition],
    hungry: deque[str],
    quotas: Mapping[str, int],
    near: Near,
) -> deque[TopicPartition]:
    """Give partitions to members in a rack with a replica, within the quotas; return those that are left."""
    left: deque[TopicPartition] = deque()
    for tp in loose:
        takers = [m for m in hungry if len(kept[m]) < quotas[m] and near(m, tp)]
        if takers:
            kept[min(takers, key=lambda member: len(kept[member]))].append(tp)
        else:
            left.append(tp)
    return left


def _deal_by_subscription(
    kept: dict[str, list[TopicPartition]],
    loose: deque[TopicPartition],
    claims: Mapping[str, Claim],
    near: Near | None,
    kept_min: int,
) -> None:
    """Members read different topics: give to the member with the fewest, then move while that balances.

    Nothing moves away from a member with at most `kept_min` partitions.
    """
    readers: dict[str, list[str]] = {}
    for member, claim in claims.items():
        for topic in claim.topics:
            readers.setdefault(topic, []).append(member)
    # Partitions with few possible readers first: the others can balance later.
    for tp in sorted(loose, key=lambda tp: (len(readers[tp.topic]), tp)):
        kept[_emptiest(readers[tp.topic], kept, tp, near)].append(tp)
    moved = True
    while moved:
        # Terminates: each move lowers the sum of squares of the sizes.
        moved = False
        for giver in sorted(kept, key=lambda member: -len(kept[member])):
            giving = list(kept[giver])
            if near is not None:
                giving.sort(key=partial(_is_far, near, giver), reverse=True)
            for tp in giving:
                taker = min(readers[tp.topic], key=lambda member: len(kept[member]))
                if len(kept[giver]) > max(len(kept[taker]) + 1, kept_min):
                    kept[giver].remove(tp)
                    kept[taker].append(tp)
                    moved = True


def _emptiest(
    readers: list[str], kept: dict[str, list[TopicPartition]], tp: TopicPartition, near: Near | None
) -> str:
    if near is None:
        return min(readers, key=lambda member: len(kept[member]))
    return min(readers, key=lambda member: (len(kept[member]), not near(member, tp)))
