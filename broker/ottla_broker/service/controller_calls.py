"""Sends commands to the controller: locally if this broker is the controller, else over the network. [S]

Clients may send administrative requests to any broker. Each call has a deadline: while there is no
controller, or it is taking over, or it cannot be reached, the call waits for the next image. A change that takes
longer than its caller waits continues in the background, as in Kafka; cancelling it half-way would leave leftovers.

After a request without a response its outcome is unknown. It is sent again, and the command decides what its result
means then (`Command.after_retry`).

Used by `topics.py` and `configs.py`; the controller's end of it is registered with `BrokerRpc`. It knows no command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import structlog

from ottla_broker.controller.command import Command
from ottla_broker.controller.command_json import codec
from ottla_broker.controller.command_table import command_class, command_names
from ottla_broker.controller.service import Controller
from ottla_broker.membership.broker_rpc import Body, BrokerRpc
from ottla_broker.metadata.watcher import Metadata
from ottla_core.errors import NotController, RequestError, RequestTimedOut, ThrottlingQuotaExceeded
from ottla_core.ids import NO_BROKER
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import PeerUnavailable

_log = structlog.get_logger("ottla.admin")

R = TypeVar("R")
T = TypeVar("T")

#: Changes whose callers gave up waiting; more than that means that etcd is unavailable for long.
UNFINISHED_MAX = 100
_PAUSE_S = 0.05
#: Time reserved for the response to travel back.
_MARGIN_S = 0.2
#: Maximum time of one change, whatever the caller asks for.
_TIMEOUT_MAX_S = 300.0


class Done(NamedTuple):
    """The controller's result, and the revision at which an image shows it."""

    answer: Any
    revision: int


class ControllerCalls:
    def __init__(
        self, broker_id: int, controller: Controller, metadata: Metadata, clock: Clock, rpc: BrokerRpc
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._clock = clock
        self._rpc = rpc
        self._unfinished: set[asyncio.Task[Any]] = set()
        for name in command_names():
            rpc.answered_by(name, self._answer(name))

    async def close(self) -> None:
        for task in self._unfinished:
            task.cancel()
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    async def execute(self, command: Command[R], *, timeout_s: float) -> R:
        """The controller's result. RequestError if the command was refused, or not answered in time."""
        before = self._metadata.image
        answer, again = await self._call(command, timeout_s)
        result: R = codec(command.result_type).decode(answer)
        return command.after_retry(result, before, self._metadata.image) if again else result

    # ------------------------------------------------------------------ at the controller

    def _answer(self, name: str) -> Callable[[Body], Awaitable[object]]:
        async def answer(body: Body) -> object:
            fields = dict(body)
            timeout_s = min(float(fields.pop("timeout_s", 30.0)), _TIMEOUT_MAX_S)
            done = await self._execute_locally(codec(command_class(name)).decode(fields), timeout_s)
            return {"answer": done.answer, "revision": done.revision}

        return answer

    async def _execute_locally(self, command: Command[Any], timeout_s: float) -> Done:
        """As the controller, within a time."""
        result = await self._finish_by(self._controller.execute(command), timeout_s)
        return Done(codec(command.result_type).encode(result), self._controller.last_revision)

    async def _finish_by(self, work: Awaitable[T], timeout_s: float) -> T:
        """Its result if it comes in time; else it continues in the background."""
        if len(self._unfinished) >= UNFINISHED_MAX:
            getattr(work, "close", lambda: None)()
            raise ThrottlingQuotaExceeded("Too many changes are waiting for the metadata store.")
        task = asyncio.ensure_future(work)
        self._unfinished.add(task)
        task.add_done_callback(self._on_finished)
        late = asyncio.ensure_future(self._clock.sleep(max(0.0, timeout_s)))
        try:
            await asyncio.wait((task, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            late.cancel()
        if not task.done():
            raise RequestTimedOut("The change did not finish in time; it may still happen.")
        return task.result()

    def _on_finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RequestError):
            _log.error("metadata change failed unexpectedly", error=repr(error))

    # ------------------------------------------------------------------ forwarding

    async def _call(self, command: Command[Any], timeout_s: float) -> tuple[Any, bool]:
        """The controller's response, and whether an earlier request may have been executed already."""
        deadline = self._clock.monotonic() + timeout_s
        again = False
        problem: RequestError = NotController("There is no controller right now; try again.")
        while True:
            left_s = deadline - self._clock.monotonic()
            image = self._metadata.image
            try:
                if self._controller.epoch or self._metadata.refusal is not None:
                    done = await self._execute_locally(command, left_s)
                    return await self._seen(done, deadline), again
                if image.controller not in (NO_BROKER, self._broker_id):
                    done = await self._forward(image.controller, command, left_s)
                    return await self._seen(done, deadline), again
            except NotController as error:
                problem = error
            except PeerUnavailable as error:
                again = True
                problem = RequestTimedOut(f"The controller did not respond: {error}")
            if self._metadata.refusal is not None or left_s <= _PAUSE_S:
                raise problem
            await self._clock.sleep(_PAUSE_S)

    async def _forward(self, controller: int, command: Command[Any], left_s: float) -> Done:
        body = codec(type(command)).encode(command)
        asked = {**body, "timeout_s": max(0.0, left_s - _MARGIN_S)}
        said = await self._rpc.ask(controller, command.name(), asked, left_s)
        return Done(said["answer"], int(said["revision"]))

    async def _seen(self, done: Done, deadline: float) -> Any:
        """Wait for the image: the client's next request to this broker must find the change."""
        try:
            await self._metadata.wait_revision(done.revision, deadline - self._clock.monotonic())
        except TimeoutError:
            raise RequestTimedOut("The change is done, but this broker has not seen it yet.") from None
        return done.answer
