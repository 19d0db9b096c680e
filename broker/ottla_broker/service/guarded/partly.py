"""A request of which only a part is allowed: the rest is served; outcomes have the order of the request. [S]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from ottla_broker.acl import Operation
from ottla_broker.service.access import TOPIC, Access
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

T = TypeVar("T")
R = TypeVar("R")


class Checked(NamedTuple):
    """One error, or none, for each item of a request."""

    errors: tuple[RequestError | None, ...]

    @property
    def is_whole(self) -> bool:
        return not any(self.errors)

    @property
    def is_refused(self) -> bool:
        """Nothing of it is allowed."""
        return bool(self.errors) and all(self.errors)

    def allowed(self, items: Sequence[T]) -> list[T]:
        return [item for item, error in zip(items, self.errors, strict=True) if error is None]

    def merged(self, outcomes: Iterable[R], refused: Callable[[int, RequestError], R]) -> list[R]:
        """The outcomes of the allowed items, and `refused(index, error)` for the others."""
        rest = iter(outcomes)
        return [
            next(rest) if error is None else refused(index, error) for index, error in enumerate(self.errors)
        ]


def topics_checked(access: Access, operation: Operation, items: Iterable[TopicPartition]) -> Checked:
    """Each topic is asked once."""
    by_topic: dict[str, RequestError | None] = {}
    errors: list[RequestError | None] = []
    for tp in items:
        if tp.topic not in by_topic:
            allowed = access.may(operation, TOPIC, tp.topic)
            by_topic[tp.topic] = None if allowed else access.refusal(operation, TOPIC, tp.topic)
        errors.append(by_topic[tp.topic])
    return Checked(tuple(errors))
