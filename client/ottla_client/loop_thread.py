"""An event loop in a thread of its own, and a client that lives there: the base of the blocking faces. [A]

Closing has a bound even if a callback of the user's blocks the loop: then the thread, a daemon, is left behind and
said so.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Generic, Self, TypeVar

from ottla_client.errors import ClientClosed

log = logging.getLogger(__name__)

T = TypeVar("T")
Inner = TypeVar("Inner")

#: grpc's own tasks end within a turn or two of the loop; and again after they were cancelled.
_SETTLE_TIMEOUT_S = 1.0
#: For a loop that is not blocked, all of it takes milliseconds.
_CLOSE_TIMEOUT_S = 5.0


class LoopThread:
    """`run` brings a coroutine to the loop and its result back."""

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        """The loop is closed by its own thread, for that may be long after `close` has given up waiting for it."""
        with self._runner:
            self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """What it waits for has bounds of its own; `timeout_s` is the caller's."""
        if not self._thread.is_alive():
            work.close()
            raise ClientClosed("The client is closed.")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except (KeyboardInterrupt, TimeoutError):
            future.cancel()
            raise

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        try:
            self.run(self._settle(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            log.warning("%s: its event loop is busy, perhaps with a callback", self._thread.name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("%s did not end and is left behind: a callback must not block", self._thread.name)

    async def _settle(self) -> None:
        """grpc keeps tasks of its own that end just after their calls; none should be left when the loop stops."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, stuck = await asyncio.wait(others, timeout=_SETTLE_TIMEOUT_S)
            for task in stuck:
                task.cancel()
            if stuck:
                await asyncio.wait(stuck, timeout=_SETTLE_TIMEOUT_S)


class Blocking(Generic[Inner]):
    """Makes, starts and stops an async client (`kind`) in a loop's thread; subclasses add its methods."""

    kind: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **extra: Any) -> None:
        """`help()` says of the blocking face what it says of the async one, wherever the two do the same."""
        super().__init_subclass__(**extra)
        cls.__signature__ = inspect.signature(cls.kind)  # type: ignore[attr-defined]
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if method.__doc__ is None and not name.startswith("_"):
                method.__doc__ = getattr(cls.kind, name).__doc__

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._arguments = (arguments, settings)
        self._parts: tuple[LoopThread, Inner] | None = None
        #: From the start to the beginning of the stop.
        self._open = False

    def start(self) -> None:
        """Connect. `with` does it for you."""
        thread = LoopThread(f"ottla-{type(self).__name__.lower()}")
        try:
            self._parts = (thread, thread.run(self._started()))
        except BaseException:
            thread.close()
            raise
        self._open = True

    async def _started(self) -> Inner:
        """Made and started in the loop's thread, where all of it will live."""
        made = self.kind(*self._arguments[0], **self._arguments[1])
        try:
            await made.start()
        except BaseException:
            await made.stop()
            raise
        return made  # type: ignore[no-any-return]

    def stop(self) -> None:
        """As the async client's. May be called again, and without a start."""
        if not self._open:
            return
        self._open = False
        try:
            self._thread.run(self._stopped())
        finally:
            self._thread.close()

    async def _stopped(self) -> None:
        client: Any = self._inner
        await client.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _thread(self) -> LoopThread:
        return self._started_parts()[0]

    @property
    def _inner(self) -> Inner:
        return self._started_parts()[1]

    def _started_parts(self) -> tuple[LoopThread, Inner]:
        if self._parts is None:
            name = type(self).__name__
            raise ClientClosed(
                f"The {name.lower()} was not started; use `with {name}(...)`, or call start()."
            )
        return self._parts

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """A method of the async client that does not wait."""

        async def call() -> T:
            return function(*arguments)

        return self._thread.run(call())
