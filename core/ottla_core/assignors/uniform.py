"""Uniform, sticky and pinned: balanced assignments that keep what members own; and pins. [P]

All three run `sticky.balance`. Uniform moves partitions until the members have equally many. Sticky moves one only from
a member that exceeds its share by more than `tolerance` (a fraction), so members that join later start
with less. Pinned is uniform under another name.

`pins` give some partitions to members by instance id. These three balance the rest; the assignments of others are
changed afterwards (`with_pins`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from ottla_core.assignors.model import Assignment, Members, Parameters, Topology, ranked
from ottla_core.assignors.sticky import Claim, balance
from ottla_core.ids import TopicPartition

PINS = "pins"
TOLERANCE = "tolerance"
_TOLERANCE_DEFAULT = 0.2


def _claims(members: Members) -> dict[str, Claim]:
    return {member_id: Claim(member.topics, member.owned) for member_id, member in ranked(members).items()}


def nearness(topology: Topology, members: Members) -> Callable[[str, TopicPartition], bool] | None:
    """Whether a member is in a rack with a replica of the partition; None if that distinguishes no members."""
    racks = {member_id: member.rack_id for member_id, member in members.items() if member.rack_id}
    if not racks or not topology.racks:
        return None
    return lambda member_id, tp: racks.get(member_id) in topology.racks.get(tp, ())


def _balanced(
    topology: Topology, members: Members, parameters: Parameters, tolerance: float | None = None
) -> Assignment:
    fixed = pinned(topology, members, parameters)
    kept_max = None
    if tolerance is not None:
        wanted = {topic for member in members.values() for topic in member.topics}
        rest = sum(topology.counts.get(topic, 0) for topic in wanted) - len(fixed)
        kept_max = ceil(rest / max(len(members), 1) * (1 + tolerance))
    made = balance(
        topology.counts,
        _claims(members),
        near=nearness(topology, members),
        without=frozenset(fixed),
        kept_max=kept_max,
    )
    return with_pins(made, fixed)


class UniformAssignor:
    name = "uniform"
    shares_partitions = False

    def assign(self, topology: Topology, members: Members, parameters: Parameters) -> Assignment:
        return _balanced(topology, members, parameters)


class PinnedAssignor(UniformAssignor):
    name = "pinned"


class StickyAssignor:
    name = "sticky"
    shares_partitions = False

    def assign(self, topology: Topology, members: Members, parameters: Parameters) -> Assignment:
        return _balanced(topology, members, parameters, parse_tolerance(parameters))


def pinned(topology: Topology, members: Members, parameters: Parameters) -> dict[TopicPartition, str]:
    """Member id by partition, for pins that can be honoured: a pin to an absent member leaves no partition unread."""
    by_instance = {
        member.instance_id: member_id for member_id, member in members.items() if member.instance_id
    }
    fixed: dict[TopicPartition, str] = {}
    for tp, instance_id in parse_pins(parameters.get(PINS, "")).items():
        member_id = by_instance.get(instance_id)
        exists = 0 <= tp.partition < topology.counts.get(tp.topic, 0)
        if member_id is not None and exists and tp.topic in members[member_id].topics:
            fixed[tp] = member_id
    return fixed


def with_pins(made: Assignment, fixed: Mapping[TopicPartition, str]) -> Assignment:
    """The assignment, with these partitions moved to their members."""
    if not fixed:
        return made
    moved = {member_id: [tp for tp in owned if tp not in fixed] for member_id, owned in made.items()}
    for tp, member_id in fixed.items():
        moved.setdefault(member_id, []).append(tp)
    return {member_id: sorted(owned) for member_id, owned in moved.items()}


def check_parameters(parameters: Parameters) -> None:
    """ValueError with a sentence if a parameter is invalid."""
    parse_pins(parameters.get(PINS, ""))
    parse_tolerance(parameters)


def parse_tolerance(parameters: Parameters) -> float:
    try:
        tolerance = float(parameters.get(TOLERANCE, _TOLERANCE_DEFAULT))
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance <= 1:
        raise ValueError(f"{TOLERANCE} must be a number from 0 to 1.")
    return tolerance


def parse_pins(text: str) -> dict[TopicPartition, str]:
    """`orders:0=worker-a, orders:1=worker-b`: instance id by partition. ValueError with a sentence."""
    found: dict[TopicPartition, str] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        place, _, instance_id = each.partition("=")
        topic, _, index = place.strip().rpartition(":")
        if not (topic and index.isdecimal() and instance_id.strip()):
            raise ValueError(f"{PINS}: write topic:partition=instance-id, not {each!r}.")
        tp = TopicPartition(topic, int(index))
        if tp in found:
            raise ValueError(f"{PINS}: {topic}:{index} is pinned twice.")
        found[tp] = instance_id.strip()
    return found
