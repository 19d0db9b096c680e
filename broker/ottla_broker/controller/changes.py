"""A controller's changes to the store: planned, executed, and planned again until nothing is left to do. [S]

A change is made in attempts: plan from the image, execute, and if something was refused or a reply was lost,
read everything again and plan again. The plan of a finished change is empty, so each change happens
once. `settle` returns when this broker's own image shows the change.

Used by `service.py` for requests of clients and by `caretaker.py` for changes of live brokers. While the
metadata store has lost history (`Metadata.refusal`) nothing is changed (design rule 18).
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import structlog

from ottla_broker.controller.backend import carry_out
from ottla_broker.controller.planner import Plan, UncleanElection
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.metadata.watcher import LostHistory, Metadata
from ottla_core.errors import NotController, RequestTimedOut
from ottla_core.ports.clock import Clock
from ottla_core.ports.store import CreateRevisionIs, MetadataStore, StoreError

_log = structlog.get_logger("ottla.controller")

#: Attempts at one change; with the pauses between them, they outlast a restart of the store.
ATTEMPTS_MAX = 5
PAUSE_FIRST_S = 0.1
#: How long this broker's own image may lag behind a write before it is read again.
SHOW_S = 2.0


class Changes:
    def __init__(
        self, store: MetadataStore, clock: Clock, metadata: Metadata, incarnation: Callable[[], UUID]
    ) -> None:
        self._store = store
        self._clock = clock
        self._metadata = metadata
        self._incarnation = incarnation
        #: The newest revision that this controller has written.
        self.last_revision = 0
        #: Unclean elections that this controller has made.
        self.unclean_elections = 0

    @property
    def epoch(self) -> int:
        """The controller epoch if this process is controller as far as it knows, else 0."""
        image = self._metadata.image
        return image.controller_revision if image.controller_incarnation == self._incarnation() else 0

    def required_epoch(self) -> int:
        if self._metadata.refusal is not None:
            raise NotController(self._metadata.refusal)
        epoch = self.epoch
        if not epoch:
            raise NotController()
        return epoch

    async def settle(self, make: Callable[[ClusterImage], Plan], *, confirms: bool = False) -> None:
        """Execute what `make` plans until its plan is empty. Raises RequestError when that fails.

        With `confirms`, for commands: that nothing is left to do is only believed of an image as new as the store.
        A controller that was replaced and does not know it yet may find in its old image what was changed since.
        """
        #: Of all attempts: what one has written without an answer, the next finds done.
        unclean: set[UncleanElection] = set()
        try:
            await self._attempt(make, unclean, confirms=confirms)
        finally:
            self.unclean_elections += sum(map(self._shows, unclean))

    def _shows(self, elected: UncleanElection) -> bool:
        topic = self._metadata.image.topic_by_id(elected.topic_id)
        if topic is None or elected.partition >= len(topic.partitions):
            return False
        state = topic.partitions[elected.partition]
        return (state.leader, state.leader_epoch) == (elected.leader, elected.leader_epoch)

    async def _attempt(
        self, make: Callable[[ClusterImage], Plan], unclean: set[UncleanElection], *, confirms: bool
    ) -> None:
        pause_s = PAUSE_FIRST_S
        problem = "other writers kept changing the same keys"
        for _ in range(ATTEMPTS_MAX):
            epoch = self.required_epoch()
            wanted = make(self._metadata.image)
            if not wanted and not confirms:
                return
            unclean.update(wanted.unclean)
            try:
                if not wanted:
                    await self._catch_up(epoch)
                    confirms = False
                    continue
                result = await carry_out(self._store, epoch, wanted)
                self.last_revision = max(self.last_revision, result.revision)
                if result.done:
                    await self._show(result.revision)
                    return
                await self._metadata.refresh()
            except StoreError as error:
                problem = str(error)
                _log.warning("outcome of a change is unknown; reading it back", reason=problem)
                await self._clock.sleep(pause_s)
                pause_s *= 2
                await self._read_back()
            except LostHistory as error:
                raise NotController(str(error)) from None
        raise RequestTimedOut(f"The metadata store did not accept the change: {problem}.")

    async def _catch_up(self, epoch: int) -> None:
        """Wait until the image shows all that was written while this process was controller, or has been replaced."""
        outcome = await self._store.transact((CreateRevisionIs(CONTROLLER.key, epoch),), ())
        if not outcome.guard_held:
            await self._metadata.refresh()
        elif outcome.revision > self._metadata.image.revision:
            await self._show(outcome.revision)

    async def _read_back(self) -> None:
        try:
            await self._metadata.refresh()
        except StoreError as error:
            _log.warning("metadata store is unavailable", reason=str(error))
        except LostHistory as error:
            raise NotController(str(error)) from None

    async def _show(self, revision: int) -> None:
        """Wait until this broker's image shows the change: the client's next request must find it."""
        try:
            await self._metadata.wait_revision(revision, SHOW_S)
        except TimeoutError:
            await self._metadata.refresh()
