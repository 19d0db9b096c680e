"""An event loop in its own thread, and a client that runs there: the base of the blocking clients. [A]

Closing has a deadline even if a user callback blocks the loop: then the daemon thread is left running, with a log
message.
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

#: gRPC's own tasks end within one or two iterations of the loop, also after a cancellation.
_SETTLE_TIMEOUT_S = 1.0
#: If the loop is not blocked, closing takes milliseconds.
_CLOSE_TIMEOUT_S = 5.0


class LoopThread:
    """`run` executes a coroutine in the loop and returns its result."""

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        """Thread body. It closes the loop itself, because it may end long after `close` stopped waiting."""
        with self._runner:
            self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `work` in the loop. Its waits have their own timeouts; `timeout_s` is the caller's."""
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
            log.warning("%s: the event loop is busy, perhaps with a callback", self._thread.name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("%s did not end and is left running: a callback must not block", self._thread.name)

    async def _settle(self) -> None:
        """Wait for gRPC's own tasks, which end just after their calls, before the loop stops."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, stuck = await asyncio.wait(others, timeout=_SETTLE_TIMEOUT_S)
            for task in stuck:
                task.cancel()
            if stuck:
                await asyncio.wait(stuck, timeout=_SETTLE_TIMEOUT_S)


class Blocking(Generic[Inner]):
    """Creates, starts and stops an async client (`kind`) in a loop thread; subclasses add its methods."""

    kind: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **extra: Any) -> None:
        """Copy signatures and docstrings from the async client, for `help()`."""
        super().__init_subclass__(**extra)
        # That of `__init__`, because `__new__` takes anything; without `self`.
        init = inspect.signature(cls.kind.__init__)
        cls.__signature__ = init.replace(parameters=list(init.parameters.values())[1:])  # type: ignore[attr-defined]
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if method.__doc__ is None and not name.startswith("_"):
                method.__doc__ = getattr(cls.kind, name).__doc__

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._arguments = (arguments, settings)
        #: Made here, so that a wrong setting fails here; used by the first start.
        self._made: Inner | None = self._make()
        self._parts: tuple[LoopThread, Inner] | None = None
        #: True from the start until a stop begins.
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
        """Start the client in the loop thread, which runs all of it."""
        made: Any = self._make() if self._made is None else self._made
        self._made = None
        self._prepared(made)
        try:
            await made.start()
        except BaseException:
            await made.stop()
            raise
        return made  # type: ignore[no-any-return]

    def _make(self) -> Inner:
        return self.kind(*self._arguments[0], **self._arguments[1])  # type: ignore[no-any-return]

    def _prepared(self, made: Inner) -> None:
        """Called in the loop thread before the client starts."""

    def stop(self) -> None:
        """Like the async client's `stop`. May be called repeatedly, and without a start."""
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
        """Call a non-async method of the async client."""

        async def call() -> T:
            return function(*arguments)

        return self._thread.run(call())
