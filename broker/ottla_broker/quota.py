"""Quotas of clients: whom they concern, which one applies to a client, and how long a client that exceeds it waits. [P]

* Q1: quotas have Kafka's precedence (`matching`): the most specific one applies, and no other of its kind.
* Q2: a quota is a rate per broker, shared by all connections that it was matched for: with a default quota each user,
  or client id, has a rate of its own.
* Q3: a `Rate` is a balance of units that grows by the quota each second, up to `BURST_S` seconds' worth. A request is
  charged after it was served; whoever is overdrawn then waits until the balance is zero again. So the rate over any
  longer time is the quota, however large the requests are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ottla_core.errors import InvalidRequest

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
#: The quotas that are enforced.
QUOTAS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
#: Kafka's others.
_NOT_SUPPORTED = ("request_percentage", "controller_mutation_rate", "connection_creation_rate")

#: What a client may use at once after it was idle.
BURST_S = 1.0
#: The longest wait that one response announces, as Kafka's window; what is overdrawn beyond it stays so.
WAIT_S_MAX = 11.0
#: Names are parts of keys that every broker keeps in memory.
_NAME_CHARS_MAX = 1_000

#: In an entity: the default for those that have no quota of their own.
DEFAULT = ""


class Entity(NamedTuple):
    """Whom a quota concerns: a user, a client id or both. None: whatever it is; `DEFAULT`: all without their own."""

    user: str | None = None
    client_id: str | None = None

    def check(self) -> None:
        if self.user is None and self.client_id is None:
            raise InvalidRequest("A quota needs a user, a client id, or both.")
        if max(len(self.user or ""), len(self.client_id or "")) > _NAME_CHARS_MAX:
            raise InvalidRequest(f"Names in quotas have at most {_NAME_CHARS_MAX} characters.")


def check_value(name: str, value: float) -> None:
    if name in _NOT_SUPPORTED:
        raise InvalidRequest(f"{name} is not supported yet; quotas are {' and '.join(QUOTAS)}.")
    if name not in QUOTAS:
        raise InvalidRequest(f"There is no quota {name!r}; quotas are {' and '.join(QUOTAS)}.")
    if not 0 < value < float("inf"):
        raise InvalidRequest(f"{name} must be a positive number of bytes per second, not {value:g}.")


def matching(user: str, client_id: str) -> Iterator[Entity]:
    """The entities whose quotas apply to a client, in Kafka's precedence."""
    yield Entity(user, client_id)
    yield Entity(user, DEFAULT)
    yield Entity(user)
    yield Entity(DEFAULT, client_id)
    yield Entity(DEFAULT, DEFAULT)
    yield Entity(DEFAULT)
    yield Entity(None, client_id)
    yield Entity(None, DEFAULT)


class Match(NamedTuple):
    limit: float
    #: Those who share the rate: the names in it, with the client's own in place of defaults.
    shared_by: Entity


def match(quotas: Mapping[Entity, Mapping[str, float]], name: str, user: str, client_id: str) -> Match | None:
    for entity in matching(user, client_id):
        limit = quotas.get(entity, {}).get(name)
        if limit is not None:
            return Match(
                limit,
                Entity(
                    None if entity.user is None else user, None if entity.client_id is None else client_id
                ),
            )
    return None


class Rate:
    """Q3. Times are monotonic seconds."""

    __slots__ = ("_at", "_balance", "limit")

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self._balance = limit * BURST_S
        self._at = now

    def charge(self, amount: float, now: float) -> float:
        """The seconds to wait, zero within the quota."""
        grown = self._balance + max(0.0, now - self._at) * self.limit
        self._balance = min(grown, self.limit * BURST_S) - amount
        self._at = now
        return min(-self._balance / self.limit, WAIT_S_MAX) if self._balance < 0 else 0.0
