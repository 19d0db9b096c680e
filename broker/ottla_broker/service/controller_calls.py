"""Calls the controller: locally if this broker is the controller, else over the network. [S]

Clients may send administrative requests to any broker. Each call has a deadline: while there is no
controller, or it is taking over, or it cannot be reached, the call waits for the next image. A change that takes
longer than its caller waits continues in the background, as in Kafka; cancelling it half-way would leave leftovers.

After a request without a response its outcome is unknown. It is sent again, and a change
that is then found made, but was not made at the beginning, counts as made by this call.

Used by `topics.py` and `configs.py`; the controller's end of it is registered with `Questions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import structlog

from ottla_broker.controller.metadata import Metadata
from ottla_broker.controller.questions import Body, Questions
from ottla_broker.controller.service import Controller
from ottla_broker.requests import ConfigChange, NewTopic, TopicResult
from ottla_broker.service import admin_wire as wire
from ottla_broker.service.config_edits import (
    Edit,
    broker_edit,
    group_checked,
    group_edit,
    replacement,
    topic_edit,
)
from ottla_core.errors import (
    InvalidRequest,
    NotController,
    RequestError,
    RequestTimedOut,
    ThrottlingQuotaExceeded,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from ottla_core.ids import NO_BROKER
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import PeerUnavailable

_log = structlog.get_logger("ottla.admin")

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
        self, broker_id: int, controller: Controller, metadata: Metadata, clock: Clock, questions: Questions
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._clock = clock
        self._questions = questions
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._work: dict[str, Callable[[Body], Awaitable[Any]]] = {
            "create_topics": self._create_topics,
            "delete_topics": self._delete_topics,
            "grow_topic": self._grow_topic,
            "alter_topic_config": self._alter_topic_config,
            "alter_broker_config": self._alter_broker_config,
            "alter_group_config": self._alter_group_config,
        }
        for name in self._work:
            questions.answered_by(name, self._answer(name))

    async def close(self) -> None:
        for task in self._unfinished:
            task.cancel()
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    # ------------------------------------------------------------------ what services call

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_s: float
    ) -> list[TopicResult]:
        body = {"topics": [wire.new_topic_out(t) for t in topics], "validate_only": validate_only}
        before = self._metadata.image.topics
        rows, again = await self._call("create_topics", body, timeout_s)
        results = [wire.topic_result_in(row) for row in rows]
        return [self._made_before(r) if again and r.name not in before else r for r in results]

    async def delete_topics(self, names: Sequence[str], *, timeout_s: float) -> list[TopicResult]:
        before = self._metadata.image.topics
        rows, again = await self._call("delete_topics", {"names": list(names)}, timeout_s)
        results = [wire.topic_result_in(row) for row in rows]
        return [
            replace(r, error=None)
            if again and r.name in before and isinstance(r.error, UnknownTopicOrPartition)
            else r
            for r in results
        ]

    async def grow_topic(
        self,
        name: str,
        total: int,
        assignments: tuple[tuple[int, ...], ...] | None,
        *,
        validate_only: bool,
        timeout_s: float,
    ) -> TopicResult:
        body = {"name": name, "total": total, "assignments": assignments, "validate_only": validate_only}
        before = self._metadata.image.topics.get(name)
        row, again = await self._call("grow_topic", body, timeout_s)
        result = wire.topic_result_in(row)
        topic = self._metadata.image.topics.get(name)
        grown = topic is not None and before is not None and len(before.partitions) < len(topic.partitions)
        if again and grown and topic is not None and len(topic.partitions) == total:
            return replace(result, error=None, topic_id=topic.id, partitions=total)
        return result

    async def alter_topic_config(
        self,
        name: str,
        *,
        changes: Sequence[ConfigChange] | None = None,
        values: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> None:
        """Either changes of the settings, or the complete settings."""
        await self._call("alter_topic_config", {"name": name, **_edit_out(changes, values)}, timeout_s)

    async def alter_broker_config(
        self, key: str, *, changes: Sequence[ConfigChange], timeout_s: float
    ) -> None:
        await self._call("alter_broker_config", {"key": key, **_edit_out(changes, None)}, timeout_s)

    async def alter_group_config(
        self,
        group: str,
        *,
        changes: Sequence[ConfigChange] | None = None,
        values: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> None:
        """Either changes of the settings, or the complete settings."""
        await self._call("alter_group_config", {"group": group, **_edit_out(changes, values)}, timeout_s)

    def _made_before(self, result: TopicResult) -> TopicResult:
        """True if the retry found the change made, and it was not made at the beginning: the first request made it."""
        topic = self._metadata.image.topics.get(result.name)
        if topic is None or not isinstance(result.error, TopicAlreadyExists):
            return result
        factor = max((len(p.replicas) for p in topic.partitions), default=-1)
        return TopicResult(result.name, None, topic.id, len(topic.partitions), factor, topic.config)

    # ------------------------------------------------------------------ at the controller

    def _answer(self, name: str) -> Callable[[Body], Awaitable[object]]:
        async def answer(body: Body) -> object:
            fields = dict(body)
            timeout_s = min(float(fields.pop("timeout_s", 30.0)), _TIMEOUT_MAX_S)
            done = await self._here(name, fields, timeout_s)
            return {"answer": done.answer, "revision": done.revision}

        return answer

    async def _here(self, name: str, body: Body, timeout_s: float) -> Done:
        """As the controller, within a time."""
        answer = await self._finish_by(self._work[name](body), timeout_s)
        return Done(answer, self._controller.last_revision)

    async def _create_topics(self, body: Body) -> Any:
        topics = [wire.new_topic_in(row) for row in body["topics"]]
        made = await self._controller.create_topics(topics, validate_only=bool(body["validate_only"]))
        return [wire.topic_result_out(result) for result in made]

    async def _delete_topics(self, body: Body) -> Any:
        gone = await self._controller.delete_topics([str(name) for name in body["names"]])
        return [wire.topic_result_out(result) for result in gone]

    async def _grow_topic(self, body: Body) -> Any:
        grown = await self._controller.grow_topic(
            str(body["name"]),
            int(body["total"]),
            wire.assignments_in(body["assignments"]),
            validate_only=bool(body["validate_only"]),
        )
        return wire.topic_result_out(grown)

    async def _alter_topic_config(self, body: Body) -> Any:
        await self._controller.alter_topic_config(str(body["name"]), _edit_in(body, topic_edit))

    async def _alter_broker_config(self, body: Body) -> Any:
        await self._controller.alter_broker_config(str(body["key"]), _edit_in(body, broker_edit))

    async def _alter_group_config(self, body: Body) -> Any:
        edit = group_checked(_edit_in(body, group_edit))
        await self._controller.alter_group_config(str(body["group"]), edit)

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

    # ------------------------------------------------------------------ the way there

    async def _call(self, name: str, body: Body, timeout_s: float) -> tuple[Any, bool]:
        """The controller's response, and whether an earlier request may have been executed already."""
        deadline = self._clock.monotonic() + timeout_s
        again = False
        problem: RequestError = NotController("There is no controller right now; try again.")
        while True:
            left_s = deadline - self._clock.monotonic()
            image = self._metadata.image
            try:
                if self._controller.epoch or self._metadata.refusal is not None:
                    done = await self._here(name, body, left_s)
                    return await self._seen(done, deadline), again
                if image.controller not in (NO_BROKER, self._broker_id):
                    done = await self._there(image.controller, name, body, left_s)
                    return await self._seen(done, deadline), again
            except NotController as error:
                problem = error
            except PeerUnavailable as error:
                again = True
                problem = RequestTimedOut(f"The controller did not respond: {error}")
            if self._metadata.refusal is not None or left_s <= _PAUSE_S:
                raise problem
            await self._clock.sleep(_PAUSE_S)

    async def _there(self, controller: int, name: str, body: Body, left_s: float) -> Done:
        asked = {**body, "timeout_s": max(0.0, left_s - _MARGIN_S)}
        said = await self._questions.ask(controller, name, asked, left_s)
        return Done(said["answer"], int(said["revision"]))

    async def _seen(self, done: Done, deadline: float) -> Any:
        """Wait for the image: the client's next request to this broker must find the change."""
        try:
            await self._metadata.wait_revision(done.revision, deadline - self._clock.monotonic())
        except TimeoutError:
            raise RequestTimedOut("The change is done, but this broker has not seen it yet.") from None
        return done.answer


def _edit_out(changes: Sequence[ConfigChange] | None, values: Mapping[str, str] | None) -> dict[str, Any]:
    if values is not None:
        return {"values": dict(values)}
    return {"changes": [wire.change_out(change) for change in changes or ()]}


def _edit_in(body: Body, edit: Callable[[Sequence[ConfigChange]], Edit]) -> Edit:
    if "values" in body:
        return replacement({str(k): str(v) for k, v in body["values"].items()})
    if "changes" not in body:
        raise InvalidRequest("The request has neither changes nor values.")
    return edit([wire.change_in(row) for row in body["changes"]])
