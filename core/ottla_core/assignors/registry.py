"""The assignors that come with Ottla, by name. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ottla_core.assignors.broadcast import BroadcastAssignor
from ottla_core.assignors.consistent_hash import ConsistentHashAssignor
from ottla_core.assignors.model import Assignor
from ottla_core.assignors.ranges import RangeAssignor
from ottla_core.assignors.uniform import PinnedAssignor, StickyAssignor, UniformAssignor

#: The first is the default, as in Kafka.
_ALL: tuple[Assignor, ...] = (
    UniformAssignor(),
    RangeAssignor(),
    StickyAssignor(),
    ConsistentHashAssignor(),
    BroadcastAssignor(),
    PinnedAssignor(),
)

BUILT_IN: Mapping[str, Assignor] = MappingProxyType({each.name: each for each in _ALL})
DEFAULT = _ALL[0].name
