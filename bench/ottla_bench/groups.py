"""`make bench-groups`: ten members share 900 partitions, an eleventh joins, on three brokers of each side. [A]

python -m ottla_bench.groups [--runs 5] [--only classic,broker-side] [--quick] [--json FILE] [--write PAGE]

A producer writes to all partitions all the time. Measured are the time until all members hold their share, once for the
ten and once for the eleventh, and the longest time that one of the ten is without a record while the eleventh joins.
The members are stock librdkafka consumers with the client's defaults, for both group protocols.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import confluent_kafka

from ottla_bench import load_client
from ottla_bench.comparison import Comparison, Say, compare
from ottla_bench.group_member import MemberJob, Members, Seen
from ottla_bench.load_client import Job
from ottla_bench.rows import Row
from ottla_bench.trios import Trio, running_trio, until_whole

#: The client's name of each protocol.
PROTOCOLS = {"classic": "classic", "broker-side": "consumer"}

_TOPIC = "bench-groups"
_RECORDS_PER_S = 1000
#: Partitions are written to in steps of this size (the golden ratio of 900, and prime), so that a member with
#: neighbouring ones gets its records evenly and not all at once.
_STRIDE = 557
_LOOK_EVERY_S = 0.2
#: An assignment that does not change for so long is stable: longer than the broker-side protocol's heartbeats.
_STABLE_S = 6.0
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class GroupSizes:
    members: int = 10
    partitions: int = 900


QUICK_SIZES = GroupSizes(4, 90)


def _rows() -> Iterator[Row]:
    for name in PROTOCOLS:
        yield Row(f"all_{name}", f"{name}: ten join, all hold", "s", 1 / 2)
        yield Row(f"join_{name}", f"{name}: an eleventh joins, all hold", "s", 1 / 2, binding=True)
        pause = f"{name}: longest pause of the others"
        if name == "classic":
            yield Row(f"pause_{name}", pause, "ms", 1 / 2, binding=True)
        else:
            yield Row(f"pause_{name}", pause, "ms", ceiling=100.0, binding=True)
        yield Row(f"idle_{name}", f"{name}: longest pause before, in as much time", "ms")


class GroupLife:
    def __init__(self, trio: Trio, sizes: GroupSizes, say: Say) -> None:
        self._trio = trio
        self._sizes = sizes
        self._say = say
        self.sample: dict[str, float] = {}

    def measure(self, wanted: Collection[str]) -> None:
        created = Job("create", self._trio.bootstrap, _TOPIC, partitions=self._sizes.partitions, replicas=1)
        load_client.run(created)
        until_whole(self._trio)
        with _steady_writes(self._trio.bootstrap, self._sizes.partitions):
            for name, protocol in PROTOCOLS.items():
                if name in wanted:
                    self._protocol(name, protocol)

    def _protocol(self, name: str, protocol: str) -> None:
        job = MemberJob(self._trio.bootstrap, f"bench-{name}", _TOPIC, protocol, self._sizes.members)
        with Members(job) as ten:
            self._note(f"all_{name}", self._until_stable([ten]) - ten.began)
            began = time.monotonic()
            ten.phase()
            time.sleep(_STABLE_S)
            self._note(f"idle_{name}", _longest_pause_s(ten.phase()) * 1000)
            one = MemberJob(self._trio.bootstrap, f"bench-{name}", _TOPIC, protocol)
            with Members(one) as eleventh:
                began = eleventh.began
                self._note(f"join_{name}", self._until_stable([ten, eleventh]) - began)
                self._note(f"pause_{name}", _longest_pause_s(ten.phase()) * 1000)

    def _until_stable(self, groups: Sequence[Members]) -> float:
        """When the last member got its share; the sum over time that was waited for in vain without an end."""
        deadline = time.monotonic() + _PATIENCE_S
        held: list[int] = []
        changed = time.monotonic()
        while time.monotonic() < deadline:
            found = [each for group in groups for each in group.held()]
            if found != held:
                held, changed = found, time.monotonic()
            is_whole = sum(held) == self._sizes.partitions and max(held) - min(held) <= 1
            if is_whole and time.monotonic() - changed >= _STABLE_S:
                return changed
            time.sleep(_LOOK_EVERY_S)
        self._say(f"not stable after {_PATIENCE_S:.0f} s: {held}")
        return deadline

    def _note(self, key: str, value: float) -> None:
        self.sample[key] = value
        self._say(f"{key} {value:.2f}")


def _longest_pause_s(seen: Sequence[Seen]) -> float:
    return max(each.longest_pause_s for each in seen)


@contextmanager
def _steady_writes(bootstrap: str, partitions: int) -> Iterator[None]:
    """Small records to all partitions in turn, until the block ends."""
    stop = threading.Event()

    def write() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 3})
        began, sent = time.monotonic(), 0
        while not stop.wait(0.01):
            due = int((time.monotonic() - began) * _RECORDS_PER_S)
            for number in range(sent, due):
                producer.produce(_TOPIC, b"x" * 100, partition=number * _STRIDE % partitions)
            sent = due
            producer.poll(0)
        producer.flush(10)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def _life(name: str, wanted: Collection[str], quick: bool, say: Say) -> list[dict[str, float]]:
    with running_trio(name) as trio:
        life = GroupLife(trio, QUICK_SIZES if quick else GroupSizes(), say)
        life.measure(wanted)
        return [life.sample]


GROUPS = Comparison(
    "groups",
    "ten members, 900 partitions, an eleventh joins: three brokers of Apache Kafka and three of Ottla",
    tuple(PROTOCOLS),
    tuple(_rows()),
    (),
    _life,
)

if __name__ == "__main__":
    sys.exit(compare(GROUPS))
