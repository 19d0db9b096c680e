"""Whether the pins of a ConsumerGroup are honoured: the condition PinsApplied. [P]

The coordinator of a broker-side group honours pins as far as it can, and leaves no partition unread. This module says
what it could not do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla_operator.group_plan import Partition, SeenGroup, SeenMember
from ottla_operator.specs import GroupSpec
from ottla_operator.status import Condition

PINNED = "PinsApplied"
#: Pins named in a message; the rest are counted.
_NAMED_MAX = 5


def condition_of(spec: GroupSpec, seen: SeenGroup) -> Condition | None:
    if not spec.pins:
        return None
    missing = list(_missing(spec, seen))
    if missing:
        message = f"{_listed(missing)}; correct or remove the pins."
        return Condition(PINNED, False, "NoSuchPartition", message)
    if not seen.members:
        return Condition(PINNED, None, "NoMembers", "The pins apply when members join.")
    if not seen.is_broker_side:
        message = "The members use the classic protocol, in which one of them assigns, without pins."
        return Condition(PINNED, False, "ClassicGroup", f"{message} Start them with group.protocol=consumer.")
    return _assigned(spec, seen)


def _missing(spec: GroupSpec, seen: SeenGroup) -> Iterator[str]:
    counts: dict[str, int] = {}
    for topic, partition in seen.ends:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    for topic, partition in sorted(spec.pins):
        if topic not in counts:
            yield f"topic {topic} does not exist"
        elif partition >= counts[topic]:
            yield f"{topic} has {counts[topic]} partitions and no partition {partition}"


def _assigned(spec: GroupSpec, seen: SeenGroup) -> Condition:
    members = {each.instance_id: each for each in seen.members if each.instance_id}
    absent = sorted({instance for instance in spec.pins.values() if instance not in members})
    if absent:
        message = (
            f"No member has the group.instance.id {_listed(absent)}; until it joins, other members read its "
            "partitions."
        )
        return Condition(PINNED, False, "MemberAbsent", message)
    strangers = [
        f"{who} does not subscribe to {tp[0]}"
        for tp, who in sorted(spec.pins.items())
        if not _may_read(members[who], tp)
    ]
    if strangers:
        return Condition(PINNED, False, "NotSubscribed", f"{_listed(dict.fromkeys(strangers))}.")
    moving = [
        f"{topic}-{partition} to {who}"
        for (topic, partition), who in sorted(spec.pins.items())
        if (topic, partition) not in members[who].partitions
    ]
    if moving:
        return Condition(PINNED, None, "Moving", f"Partitions are moving: {_listed(moving)}.")
    return Condition(
        PINNED, True, "Assigned", f"All {len(spec.pins)} pinned partitions are with their members."
    )


def _may_read(member: SeenMember, tp: Partition) -> bool:
    return member.is_by_regex or tp[0] in member.topics or tp in member.partitions


def _listed(each: Iterable[str]) -> str:
    texts = list(each)
    more = len(texts) - _NAMED_MAX
    return ", ".join(texts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
