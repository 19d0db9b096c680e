"""Quotas of clients: whom they concern, which one applies to a client, and how long a client that exceeds it waits. [P]

* Q1: quotas have Kafka's precedence (`matching`): the most specific one applies, and no other of its kind.
* Q2: a quota is a rate per broker, shared by all connections that it was matched for: with a default quota each user,
  client id, or address has a rate of its own.
* Q3: a `Rate` is a balance of units that grows by the quota each second, up to a burst of some seconds' worth. A
  request is charged after it was served; whoever is overdrawn then waits until the balance is zero again. So the rate
  over any longer time is the quota, however large the requests are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from ottla_core.errors import InvalidRequest

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
#: Quotas of users and client ids, with what they count.
UNITS = {
    PRODUCER_BYTE_RATE: "bytes per second",
    CONSUMER_BYTE_RATE: "bytes per second",
    REQUEST_PERCENTAGE: "percent of the event loop's time",
    CONTROLLER_MUTATION_RATE: "partitions per second",
}

#: What a client may use at once after it was idle.
BURST_S = 1.0
#: The same for partitions created and deleted, as Kafka's controller.quota.window.num: such work comes in bursts.
_MUTATIONS_BURST_S = 11.0
#: The longest wait that one response announces, as Kafka's window; what is overdrawn beyond it stays so.
WAIT_S_MAX = 11.0
#: The same for request_percentage, as in Kafka: a long wait for one slow request would be no use to others.
_REQUEST_WAIT_S_MAX = 1.0
#: Names are parts of keys that every broker keeps in memory.
_NAME_CHARS_MAX = 1_000

#: In an entity: the default for those that have no quota of their own.
DEFAULT = ""


class Entity(NamedTuple):
    """What a quota applies to: a user, a client id, both, or an address. None: not part of the entity; `DEFAULT`: all
    without a quota of their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def check(self) -> None:
        names = [name for name in self if name is not None]
        if not names or (self.ip is not None and len(names) > 1):
            raise InvalidRequest("A quota is that of a user, a client id, both, or an ip.")
        if max(map(len, names)) > _NAME_CHARS_MAX:
            raise InvalidRequest(f"Names in quotas have at most {_NAME_CHARS_MAX} characters.")
        if self.ip and normal_ip(self.ip) != self.ip:
            raise InvalidRequest(f"{self.ip!r} is not an IP address in its usual form, such as 10.0.0.7.")


def normal_ip(address: str) -> str:
    """The one spelling of an address; empty if it is none. An IPv4 address within IPv6 is that IPv4 address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


def check_value(entity: Entity, name: str, value: float) -> None:
    if entity.ip is not None:
        if name != CONNECTION_CREATION_RATE:
            raise InvalidRequest(f"{name} is not a quota of addresses; theirs is {CONNECTION_CREATION_RATE}.")
        if not (1 <= value < float("inf") and value == int(value)):
            raise InvalidRequest(f"{name} must be a whole number of connections per second, not {value:g}.")
        return
    if name == CONNECTION_CREATION_RATE:
        raise InvalidRequest(f"{name} is a quota of addresses (entity type ip), not of users and client ids.")
    if name not in UNITS:
        raise InvalidRequest(f"There is no quota {name!r}; quotas are {', '.join(UNITS)}.")
    if not 0 < value < float("inf"):
        raise InvalidRequest(f"{name} must be a positive number of {UNITS[name]}, not {value:g}.")


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


def match_address(quotas: Mapping[Entity, Mapping[str, float]], address: str) -> Match | None:
    for entity in (Entity(ip=address), Entity(ip=DEFAULT)):
        limit = quotas.get(entity, {}).get(CONNECTION_CREATION_RATE)
        if limit is not None:
            return Match(limit, Entity(ip=address))
    return None


class Rate:
    """Q3. Times are monotonic seconds."""

    __slots__ = ("_at", "_balance", "_burst", "_wait_s_max", "limit")

    def __init__(
        self, limit: float, now: float, *, burst_s: float = BURST_S, wait_s_max: float = WAIT_S_MAX
    ) -> None:
        self.limit = limit
        self._burst = self._balance = limit * burst_s
        self._wait_s_max = wait_s_max
        self._at = now

    def charge(self, amount: float, now: float) -> float:
        """The seconds to wait, zero within the quota."""
        self._grow(now)
        self._balance -= amount
        return min(-self._balance / self.limit, self._wait_s_max) if self._balance < 0 else 0.0

    @property
    def burst(self) -> float:
        return self._burst

    def until_room(self, amount: float, now: float) -> float:
        """The seconds until this amount is within the quota; what exceeds the burst waits for all of it."""
        self._grow(now)
        missing = min(amount, self._burst) - self._balance
        # Rounding must not leave a client a nanosecond short of the burst.
        return min(missing / self.limit, self._wait_s_max) if missing > 1e-9 * self._burst else 0.0

    def until_full(self, now: float) -> float:
        """The seconds until it is as if it was never charged."""
        self._grow(now)
        return (self._burst - self._balance) / self.limit

    def _grow(self, now: float) -> None:
        self._balance = min(self._balance + max(0.0, now - self._at) * self.limit, self._burst)
        self._at = now


def rate_of(name: str, limit: float, now: float) -> Rate:
    """The rate of one quota, in its units: `request_percentage` counts seconds."""
    if name == REQUEST_PERCENTAGE:
        return Rate(limit / 100, now, wait_s_max=_REQUEST_WAIT_S_MAX)
    if name == CONTROLLER_MUTATION_RATE:
        return Rate(limit, now, burst_s=_MUTATIONS_BURST_S)
    return Rate(limit, now)
