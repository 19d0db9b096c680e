"""Failure detector: finds dead brokers within milliseconds, and removes their registration. [S]

Each broker has one. It keeps a request open with a few others (its successors in the order of ids, and the
controller): an open request costs nothing, but when the process at the other end dies, its
connections break. That, or a broken Follow stream (`suspect`), is only a suspicion. Then:

1. probe the suspect twice, and ask the other brokers to do the same;
2. let `suspicion.py` judge;
3. delete `brokers/<id>` in a transaction that compares its create revision, and the controller's key with it
   if the suspect held that (rules 15 and 16). It also compares this broker's registration, and `removals`, which
   every removal writes: two witnesses cannot remove two brokers without the second knowing of the first.

A broker that was removed by mistake finds its key deleted and registers again; epochs protect the data meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from uuid import UUID

import structlog

from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.membership.registration import Registration
from ottla_broker.membership.suspicion import LOOKS, RemovalLimit, Verdict, is_proven, is_refused, verdict
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.sections.removals import REMOVALS, Removal
from ottla_broker.metadata.values import uuid_from_text, uuid_text
from ottla_broker.metadata.waiting import wait_for_sign
from ottla_broker.metadata.watcher import LostHistory, Metadata
from ottla_core.errors import RequestError
from ottla_core.ids import NO_BROKER
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import Peers, PeerUnavailable, Presence, Probe
from ottla_core.ports.store import (
    Branch,
    CreateRevisionIs,
    Delete,
    MetadataStore,
    ModRevisionIs,
    Put,
    StoreError,
)

_log = structlog.get_logger("ottla.detector")

#: Brokers that each broker watches besides the controller: enough that two notice every death.
WATCHED_MAX = 3
#: An open request is answered after this time, and sent again.
HOLD_S = 20.0
#: Between the two probes of a suspect: long enough to be two events, short beside client timeouts.
LOOK_PAUSE_S = 0.03
#: How often probes without a result are repeated.
LOOKS_MAX = 6
PROBE_TIMEOUT_S = 1.0
#: A witness probes twice, and each probe may take its whole timeout.
WITNESS_TIMEOUT_S = 2.5
#: Maximum number of witnesses; two are enough, and some may be dead.
WITNESSES_MAX = 4
#: Pause before a broken open request is tried again; doubles.
RETRY_S = 0.25
RETRY_LAST_S = 2.0
#: How long a metadata request waits for the first probe of a suspect; longer only after a refused connection.
FIRST_LOOK_S = 0.06
#: Maximum wait of a metadata request for a new leader.
SETTLE_MAX_S = 0.5
#: A client that asks on a connection of this age may know of a death before this broker, by this much.
OLD_CONNECTION_S = 1.0
NEWS_S = 0.02


class FailureDetector:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        metadata: Metadata,
        registration: Registration,
        peers: Peers,
        rpc: BrokerRpc,
        *,
        ttl_s: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._registration = registration
        self._peers = peers
        self._rpc = rpc
        self._limit = RemovalLimit(ttl_s)
        #: Registrations (id, create revision) under investigation.
        self._suspects: dict[tuple[int, int], asyncio.Task[None]] = {}
        #: Start of each investigation; and suspects that refused a connection.
        self._suspected_at = float("-inf")
        self._refusing: dict[int, None] = {}
        self._alarm = asyncio.Event()
        self._vanished_at = float("-inf")
        self._named_gone = OfflineLeaders()
        self._watches: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._ending = asyncio.Event()
        rpc.answered_by("hold", self._hold)
        rpc.answered_by("witness", self._bear_witness)

    async def run(self) -> None:
        """Watch other brokers until cancelled."""
        stop = self._metadata.subscribe(self._on_image)
        self._on_image(self._metadata.image, self._metadata.image)
        try:
            await self._ending.wait()
            await asyncio.Event().wait()  # No broker is watched any more; other brokers may still ask.
        finally:
            stop()
            await self._drop_all()

    def end(self) -> None:
        """This broker is about to stop: answer all open requests, so that no broker suspects it."""
        self._ending.set()

    async def _drop_all(self) -> None:
        tasks = [*self._watches.values(), *self._suspects.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ watching

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.brokers is not new.brokers:
            self._limit.on_image(old, new, self._clock.monotonic())
            if any(broker_id not in new.brokers for broker_id in old.brokers):
                self._vanished_at = self._clock.monotonic()
        if old.brokers is new.brokers and old.controller == new.controller and self._watches:
            return
        wanted = {(b.id, b.revision): b for b in self._to_watch(new)}
        for key in [key for key in self._watches if key not in wanted]:
            self._watches.pop(key).cancel()
        for key, broker in wanted.items():
            if key not in self._watches:
                self._watches[key] = asyncio.ensure_future(self._watch(broker))
                self._watches[key].add_done_callback(_report)

    def _to_watch(self, image: ClusterImage) -> list[BrokerImage]:
        own = self._registration.broker.id
        others = sorted((b for b in image.brokers.values() if b.id != own), key=lambda b: (b.id < own, b.id))
        chosen = {b.id: b for b in others[:WATCHED_MAX]}
        controller = image.brokers.get(image.controller)
        if controller is not None and controller.id != own:
            chosen[controller.id] = controller
        return list(chosen.values())

    async def _watch(self, broker: BrokerImage) -> None:
        """Keep a request open with the broker; ends with its registration."""
        pause_s = RETRY_S
        while not self._ending.is_set():
            try:
                said = await self._rpc.ask(broker.id, "hold", {}, HOLD_S + 5)
                if said == uuid_text(broker.incarnation):
                    pause_s = RETRY_S
                    await self._clock.sleep(pause_s)  # It may be about to stop, and answer at once.
                    continue
            except (PeerUnavailable, RequestError) as error:
                _log.debug("connection to a broker lost", suspect=broker.id, reason=str(error))
            self.suspect(broker.id)
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_LAST_S)

    async def _hold(self, body: Body) -> object:
        await wait_for_sign(self._ending, self._clock, HOLD_S)
        return uuid_text(self._registration.broker.incarnation)

    # ------------------------------------------------------------------ suspecting

    def suspect(self, broker_id: int) -> None:
        """A connection to the broker broke. Returns at once; nothing happens if the broker is alive."""
        broker = self._metadata.image.brokers.get(broker_id)
        if broker is None or broker_id == self._registration.broker.id or self._ending.is_set():
            return
        key = (broker.id, broker.revision)
        if key not in self._suspects:
            task = asyncio.ensure_future(self._investigate(broker))
            self._suspects[key] = task
            self._suspected_at = self._clock.monotonic()
            alarm, self._alarm = self._alarm, asyncio.Event()
            alarm.set()
            task.add_done_callback(lambda ended: self._on_investigated(key))
            task.add_done_callback(_report)

    def _on_investigated(self, key: tuple[int, int]) -> None:
        self._suspects.pop(key, None)
        self._refusing.pop(key[0], None)

    async def _investigate(self, broker: BrokerImage) -> None:
        own = self._registration.broker.id
        others = sorted(i for i in self._metadata.image.brokers if i not in (own, broker.id))
        # All at once, because each takes its time; most are cancelled, because most suspects are alive.
        asked = {i: asyncio.ensure_future(self._witness(i, broker)) for i in others[:WITNESSES_MAX]}
        try:
            found = await self._look(broker.id, broker.incarnation)
            said = {i: await asking for i, asking in asked.items()} if found is Verdict.DEAD else {}
        finally:
            for asking in asked.values():
                asking.cancel()
            await asyncio.gather(*asked.values(), return_exceptions=True)
        if is_proven(found, said):
            await self._remove(broker)
        elif found is Verdict.DEAD:
            _log.info(
                "suspected broker not confirmed dead; waiting for its lease to expire",
                suspect=broker.id,
                witnesses={i: v.value if v else "refused" for i, v in said.items()},
            )

    async def _look(self, broker_id: int, incarnation: UUID) -> Verdict:
        """S2: two equal results. A process that is just ending resets a connection or two before it refuses."""
        refusals: list[Probe] = []
        for turn in range(LOOKS_MAX):
            if turn:
                await self._clock.sleep(LOOK_PAUSE_S)
            began = self._clock.monotonic()
            probe = await self._peers.probe(broker_id, PROBE_TIMEOUT_S)
            if is_refused(probe, incarnation):
                self._refusing[broker_id] = None
                refusals.append(probe)
                if len(refusals) >= LOOKS:
                    break
            elif probe.presence is Presence.HERE:
                return Verdict.ALIVE
            elif self._clock.monotonic() - began > PROBE_TIMEOUT_S / 2:
                return Verdict.UNKNOWN
            else:
                refusals.clear()
        return verdict(refusals, incarnation)

    async def _witness(self, witness: int, suspect: BrokerImage) -> Verdict | None:
        """The verdict of another broker; None if that one refuses connections as well."""
        body = {"broker": suspect.id, "incarnation": uuid_text(suspect.incarnation)}
        try:
            return Verdict(await self._rpc.ask(witness, "witness", body, WITNESS_TIMEOUT_S))
        except PeerUnavailable:
            found = await self._peers.probe(witness, PROBE_TIMEOUT_S)
            return None if found.presence is Presence.REFUSED else Verdict.UNKNOWN
        except (RequestError, ValueError):
            return Verdict.UNKNOWN

    async def _bear_witness(self, body: Body) -> object:
        """Probe another broker's suspect. The verdict is open if this broker does not know the suspect."""
        broker_id, incarnation = int(body["broker"]), uuid_from_text(str(body["incarnation"]))
        known = self._metadata.image.brokers.get(broker_id)
        if known is None or known.incarnation != incarnation:
            return Verdict.UNKNOWN.value
        return (await self._look(broker_id, incarnation)).value

    # ------------------------------------------------------------------ upheaval

    def settling(self, opened_at: float) -> Awaitable[None] | None:
        """None if metadata may be answered now; else something to await first, half a second at most.

        A client whose leader dies asks another broker at once, and some clients ask again only a second later: so
        the first answer should name the new leader. `opened_at` is the connect time of the client: a client that
        asks again after a while may know of a death before this broker, and waits a few milliseconds for it.
        """
        if self._is_upset():
            return self._settled()
        old = self._clock.monotonic() - opened_at >= OLD_CONNECTION_S
        return self._news() if old and len(self._metadata.image.brokers) > 1 else None

    def _is_upset(self) -> bool:
        """A broker is under investigation, or is offline and still named as a leader."""
        now = self._clock.monotonic()
        if self._suspects and (self._refusing or now - self._suspected_at < FIRST_LOOK_S):
            return True
        return now - self._vanished_at < SETTLE_MAX_S and self._named_gone.are_named_by(self._metadata.image)

    async def _news(self) -> None:
        await wait_for_sign(self._alarm, self._clock, NEWS_S)
        await self._settled()

    async def _settled(self) -> None:
        deadline = self._clock.monotonic() + SETTLE_MAX_S
        while self._is_upset() and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.005)

    # ------------------------------------------------------------------ removing

    async def _remove(self, broker: BrokerImage) -> None:
        key, own = BROKERS.key(broker.id), self._registration.broker
        image = self._metadata.image
        if self._metadata.refusal is not None or not own.revision:
            return
        if not self._limit.allows(broker.id, image, self._clock.monotonic()):
            _log.warning("too many brokers are suspected; waiting for the lease to expire", suspect=broker.id)
            return
        guard = (
            CreateRevisionIs(key, broker.revision),
            CreateRevisionIs(BROKERS.key(own.id), own.revision),
            ModRevisionIs(REMOVALS.key, image.removals_revision),
        )
        note = Put(REMOVALS.key, REMOVALS.encode(Removal(broker.id, own.id)))
        branches = [Branch((), (Delete(key), note))]
        if image.controller_incarnation == broker.incarnation:
            life = CreateRevisionIs(CONTROLLER.key, image.controller_revision)
            branches.append(Branch((life,), (Delete(CONTROLLER.key),)))
        try:
            outcome = await self._store.transact(guard, branches)
            if outcome.guard_held:
                _log.warning("dead broker removed", suspect=broker.id, registration=broker.revision)
            elif _is_registered(self._metadata.image, broker):
                await self._metadata.refresh()  # Something changed meanwhile; the next suspicion sees it.
        except (StoreError, LostHistory) as error:
            _log.warning("dead broker not removed", suspect=broker.id, reason=str(error))


def _is_registered(image: ClusterImage, broker: BrokerImage) -> bool:
    found = image.brokers.get(broker.id)
    return found is not None and found.revision == broker.revision


class OfflineLeaders:
    """Whether an image names leaders that are offline: looked up once for each image, and asked by every waiting client
    every few milliseconds."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._answer = False

    def are_named_by(self, image: ClusterImage) -> bool:
        if image is not self._image:
            self._image = image
            self._answer = any(
                partition.leader not in image.brokers and partition.leader != NO_BROKER
                for topic in image.topics.values()
                for partition in topic.partitions
            )
        return self._answer


def _report(task: asyncio.Task[None]) -> None:
    """Log unexpected errors of tasks that are not awaited."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("failure detector failed unexpectedly", error=repr(error))
