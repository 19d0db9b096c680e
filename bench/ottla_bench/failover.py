"""A leader that dies or stops under steady writers: how long nothing was acknowledged, and what was lost. [A]

Two clients write to the same partition at once, one with librdkafka's defaults and one with short timeouts, so
that one killed broker gives two figures. To a paused broker only the quick one writes: a client with defaults waits
for its own `socket.timeout.ms`, a minute, whichever broker leads meanwhile. The broker is restarted before the next
one is lost, and everything is read back only then: a returning broker must not bring old ends of logs with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla_bench import load_client
from ottla_bench.load_client import Job
from ottla_bench.steady_client import QUICK, Seen, SteadyClient, SteadyJob
from ottla_bench.trios import BROKERS, Trio, partition_led_by, pause, resume, until_whole

#: Enough that every broker leads some.
_PARTITIONS = 2 * BROKERS
#: Writing before the disturbance, so that every connection and cache is there.
_BEFORE_S = 1.0


#: Settings by what is added to the row's key.
_CLIENTS: Mapping[str, Mapping[str, Any]] = {"": {}, "_quick": QUICK}


@dataclass(frozen=True, slots=True)
class Case:
    key: str
    #: Whether the leader is the controller as well, or surely is not.
    is_controller: bool
    pauses: bool = False


CASES = (
    Case("kill_leader", is_controller=False),
    Case("kill_controller", is_controller=True),
    Case("pause_leader", is_controller=False, pauses=True),
)


class Failovers:
    def __init__(self, trio: Trio, say: Callable[[str], None]) -> None:
        self._trio = trio
        self._say = say
        self._disturbed_at = float("-inf")
        self._count = 0
        #: Of all cases together.
        self.lost = 0
        self.failed = 0

    def try_out(self, case: Case) -> dict[str, float]:
        """The longest gaps in seconds, by row."""
        trio = self._trio
        self._count += 1
        topic = f"bench-failover-{self._count}"
        safe = {"min.insync.replicas": "2"}
        load_client.run(
            Job("create", trio.bootstrap, topic, partitions=_PARTITIONS, replicas=BROKERS, config=safe)
        )
        until_whole(trio)
        controller = trio.controller()
        victim = controller if case.is_controller else next(b for b in trio.pids if b != controller)
        time.sleep(max(0.0, self._disturbed_at + trio.lull_s - time.monotonic()))
        partition = partition_led_by(trio, topic, victim)
        seen = self._under_writers(case, topic, partition, victim)
        for name, one in seen.items():
            self._say(
                f"{case.key}{name} {one.longest_gap_s:.2f} s, {one.acknowledged} acknowledged, {one.lost} lost"
            )
            self.lost += one.lost
            self.failed += one.failed
        return {f"{case.key}{name}": one.longest_gap_s for name, one in seen.items()}

    def _under_writers(self, case: Case, topic: str, partition: int, victim: int) -> dict[str, Seen]:
        trio = self._trio
        clients = {
            name: SteadyClient(SteadyJob(trio.bootstrap, topic, partition, f"w{name}", dict(settings)))
            for name, settings in _CLIENTS.items()
            if settings or not case.pauses
        }
        try:
            for client in clients.values():
                client.hear("writing")
            time.sleep(_BEFORE_S)
            lose, mend = (pause, resume) if case.pauses else (_kill, _restart)
            lose(trio, victim)
            try:
                for client in clients.values():
                    client.say("disturbed")
                for client in clients.values():
                    client.hear("calm")
            finally:
                mend(trio, victim)
            until_whole(trio)
            self._disturbed_at = time.monotonic()
            for client in clients.values():
                client.say("read")
            return {name: client.result() for name, client in clients.items()}
        finally:
            for client in clients.values():
                client.end()


def _kill(trio: Trio, broker_id: int) -> None:
    trio.kill(broker_id)


def _restart(trio: Trio, broker_id: int) -> None:
    trio.restart(broker_id)
