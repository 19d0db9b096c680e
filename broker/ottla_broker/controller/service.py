"""The controller: campaigns, admits brokers, and executes administrative commands. [S]

Every broker runs one. The first to create `controller` under its lease is elected; the key's create
revision is the epoch that fences all of its writes. Only the image says which broker is controller, so a
lost reply to the campaign needs no handling, and everything is planned from an image at least as new as the
election.

Commands of clients (`command.py`) are executed one after the other, each checked against the result of the one before
it (`changes.py`). `caretaker.py` handles changes of brokers; it gets a turn at every new
image and each second.

While the metadata store has lost history (`Metadata.refusal`) nothing is changed (design rule 18).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import structlog

from ottla_broker.controller.caretaker import AskPositions, CareConfig, Caretaker
from ottla_broker.controller.changes import PAUSE_FIRST_S, Changes
from ottla_broker.controller.command import Change, Command, Tools
from ottla_broker.controller.planner import NO_DEFAULTS, LeftoversFound, plan
from ottla_broker.controller.topic_checks import Validate
from ottla_broker.membership.registration import Registration
from ottla_broker.metadata.history import HistoryWindow
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.controller import CONTROLLER, Elected
from ottla_broker.metadata.waiting import wait_for_sign
from ottla_broker.metadata.watcher import Metadata
from ottla_core.errors import NotController, RequestError
from ottla_core.ids import NO_BROKER
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import (
    Branch,
    CreateRevisionIs,
    Delete,
    MetadataStore,
    Put,
    StoreError,
)

_log = structlog.get_logger("ottla.controller")

R = TypeVar("R")

#: Maximum time between two turns of the controller.
TURN_S = 1.0
#: Above etcd's own limit for a request that waits (7 s).
LEFTOVERS_KEEP_S = 10.0
#: How long etcd's history is kept; it is compacted in steps of a tenth of that.
HISTORY_KEEP_S = 600.0


class Controller:
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        chance: Chance,
        metadata: Metadata,
        registration: Registration,
        *,
        validate: Validate,
        defaults: Callable[[ClusterImage], Mapping[str, str]] = lambda image: NO_DEFAULTS,
        care: CareConfig | None = None,
        ask_positions: AskPositions | None = None,
        history_keep_s: float = HISTORY_KEEP_S,
    ) -> None:
        """`validate` refuses invalid topic settings (InvalidConfig); `defaults` are the values of settings not set."""
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._registration = registration
        self._tools = Tools(validate, chance)
        self._history = HistoryWindow(history_keep_s, history_keep_s / 10)
        self._wake = asyncio.Event()
        #: One change at a time, so that each is checked against the result of the one before it.
        self._changing = asyncio.Lock()
        #: The epoch whose first round is done: every registered broker is admitted, leftovers are removed.
        self._settled_epoch = 0
        self._retired = False
        #: When partitions without a topic were first seen, by their topic id.
        self._unnamed_since: dict[UUID, float] = {}
        self._changes = Changes(store, clock, metadata, lambda: registration.broker.incarnation)
        self._caretaker = Caretaker(
            self._changes,
            clock,
            metadata,
            care or CareConfig(),
            defaults=defaults,
            ask_positions=ask_positions,
        )

    @property
    def epoch(self) -> int:
        """The controller epoch if this process is controller as far as it knows, else 0."""
        return self._changes.epoch

    @property
    def last_revision(self) -> int:
        """The newest revision that this controller has written."""
        return self._changes.last_revision

    @property
    def unclean_elections(self) -> int:
        """How many it has made since the start of the process."""
        return self._changes.unclean_elections

    @property
    def is_active(self) -> bool:
        """Whether it is elected, has taken over, and may change something."""
        return bool(self.epoch) and self._settled_epoch == self.epoch and self._metadata.refusal is None

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Campaign and, when elected, act as controller; until cancelled."""
        stop = self._metadata.subscribe(lambda old, new: self._wake.set())
        try:
            await self._metadata.following(TURN_S)
            while True:
                self._wake.clear()
                try:
                    await self._take_turn()
                except (StoreError, RequestError) as error:
                    _log.warning("controller turn failed; retrying", reason=str(error))
                    await self._clock.sleep(PAUSE_FIRST_S)
                await wait_for_sign(self._wake, self._clock, TURN_S)
        finally:
            stop()

    async def _take_turn(self) -> None:
        if self._metadata.refusal is not None:
            return
        epoch = self.epoch
        if not epoch:
            if self._metadata.image.controller == NO_BROKER and not self._retired:
                await self._campaign()
            return
        # Not under the lock: a broker that dies does not wait for a large topic that is being created.
        if not await self._caretaker.turn():
            return
        await self._clean_up()
        if self._settled_epoch != epoch:
            self._settled_epoch = epoch
            _log.info("controller is active", epoch=epoch)
        await self._compact_history()

    async def _clean_up(self) -> None:
        """Remove partitions without a topic, unless their topic may still come.

        A transaction of this controller whose reply was lost can take effect seconds later, and create a topic whose
        partitions were removed meanwhile.
        """
        unnamed, now = self._metadata.image.unnamed, self._clock.monotonic()
        self._unnamed_since = {i: self._unnamed_since.get(i, now) for i in unnamed}
        old = frozenset(i for i, since in self._unnamed_since.items() if now - since >= LEFTOVERS_KEEP_S)
        if old and not self._changing.locked():
            async with self._changing:
                await self._changes.settle(lambda image: plan(image, LeftoversFound(old)))

    async def _campaign(self) -> None:
        """Try to become controller. The image shows whether it worked."""
        broker = self._registration.broker
        if not self._registration.lease:
            return
        guard = (
            CreateRevisionIs(CONTROLLER.key, 0),
            CreateRevisionIs(BROKERS.key(broker.id), broker.revision),
        )
        value = CONTROLLER.encode(Elected(broker.id, broker.incarnation))
        put = Put(CONTROLLER.key, value, self._registration.lease)
        await self._store.transact(guard, [Branch((), (put,))])

    async def resign(self) -> None:
        """Resign and never campaign again: part of a graceful stop."""
        self._retired = True
        epoch = self.epoch
        if epoch:
            life = CreateRevisionIs(CONTROLLER.key, epoch)
            await self._store.transact((life,), [Branch((), (Delete(CONTROLLER.key),))])

    async def _compact_history(self) -> None:
        revision = self._history.note(self._clock.monotonic(), self._metadata.image.revision)
        if revision is not None:
            await self._store.compact(revision)

    def _required_active(self) -> None:
        self._changes.required_epoch()
        if not self.is_active:
            raise NotController("This broker was just elected controller and is taking over; try again.")

    # ------------------------------------------------------------------ commands

    async def execute(self, command: Command[R]) -> R:
        """Execute a command of a client. NotController if another broker is controller."""
        self._required_active()
        if command.places_replicas:
            await self._caretaker.admissions()
        try:
            async with self._changing:
                changes = command.changes(self._metadata.image, self._tools)
                return command.answer(await self._settle_all(changes, command.in_flight_max))
        finally:
            self._wake.set()  # Leftovers of a lost attempt, if there are any.

    async def _settle_all(self, changes: Sequence[Change], in_flight_max: int) -> list[Any]:
        """The result of each change, in their order."""
        results: dict[int, Any] = {}
        waiting = iter(enumerate(changes))

        async def work() -> None:
            for index, change in waiting:
                error: RequestError | None = None
                try:
                    await self._changes.settle(change.plan, confirms=True)
                except RequestError as refusal:
                    error = refusal
                results[index] = change.result(error)

        if len(changes) == 1 or in_flight_max == 1:
            await work()
        else:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(in_flight_max, len(changes))):
                    group.create_task(work())
        return [results[index] for index in range(len(changes))]
