"""What the handlers of consumer groups share: topics by name or id, answers that may have to wait, where a client is.
[S]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from ottla_broker.acl import ResourceType
from ottla_broker.edge.kafka.request import Context, Reply
from ottla_broker.requests import Maybe
from ottla_broker.steps import PARTITIONS_PER_STEP, Slice, Steps
from ottla_core.errors import RequestError

T = TypeVar("T")

_TOPICS_PER_STEP = 8 * PARTITIONS_PER_STEP

#: A topic's name, or None, and how the request says it.
NamedTopic: TypeAlias = tuple[str | None, dict[str, Any]]


def answered(
    context: Context,
    ask: Callable[[], Maybe[T]],
    shape: Callable[[T], Reply],
    refuse: Callable[[RequestError], Reply],
) -> Maybe[Reply]:
    """Ask a service, and shape what it answers, now or later; a refusal is counted and shaped by `refuse`."""
    try:
        found = ask()
    except RequestError as error:
        context.failed(error)
        return refuse(error)
    if isinstance(found, Awaitable):
        return _later(context, found, shape, refuse)
    return shape(found)


async def _later(
    context: Context,
    found: Awaitable[T],
    shape: Callable[[T], Reply],
    refuse: Callable[[RequestError], Reply],
) -> Reply:
    try:
        return shape(await found)
    except RequestError as error:
        context.failed(error)
        return refuse(error)


def each_answered(wanted: list[str], ask: Callable[[str], Maybe[Reply]]) -> Steps[Maybe[Reply]]:
    """The answers for several groups, some of which may come later."""
    answers: list[Maybe[Reply]] = []
    taken = Slice(4)  # A group may have a thousand members.
    for group in wanted:
        answers.append(ask(group))
        if taken.over():
            yield None
    if any(isinstance(answer, Awaitable) for answer in answers):
        return _all(answers)
    return {"groups": answers}


async def _all(answers: list[Maybe[Reply]]) -> Reply:
    return {"groups": [await each if isinstance(each, Awaitable) else each for each in answers]}


def code(context: Context, error: RequestError | None) -> int:
    return 0 if error is None else context.failed(error)


def with_names(context: Context, topics: list[dict[str, Any]]) -> list[NamedTopic]:
    """The topics of a request with their names: as sent, or from some versions on by id; None for an unknown id.

    To be called once per request. The answer may come much later, when the same id may have another answer, and then
    results would be taken for those of the wrong topic.
    """
    by_id = context.services.image.names_by_id
    return [
        (by_id.get(topic["topic_id"]) if topic.get("name") is None else topic["name"], topic)
        for topic in topics
    ]


def with_names_in_steps(context: Context, topics: list[dict[str, Any]]) -> Steps[list[NamedTopic]]:
    """The same in slices."""
    named: list[NamedTopic] = []
    for at in range(0, len(topics), _TOPICS_PER_STEP):
        if at:
            yield None
        named += with_names(context, topics[at : at + _TOPICS_PER_STEP])
    return named


def same_topic(topic: dict[str, Any], partitions: Any) -> dict[str, Any]:
    """The topic of an answer, called as the request called it."""
    return {key: topic[key] for key in ("name", "topic_id") if key in topic} | {"partitions": partitions}


def operations(context: Context, group: str) -> int:
    """The authorized operations of a description."""
    return context.services.access.operations(ResourceType.GROUP, group)


def by_topic_id(partitions: Mapping[UUID, frozenset[int]]) -> list[dict[str, Any]]:
    return [{"topic_id": topic, "partitions": sorted(found)} for topic, found in partitions.items()]


def client_host(context: Context) -> str:
    """As Java prints an address, because that is what tools show: `/127.0.0.1`."""
    return "/" + context.peer.rpartition(":")[0]
