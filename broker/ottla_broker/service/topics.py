"""Service for both edges: creates, deletes and grows topics. [S]

The controller changes the metadata store, wherever it is (`controller_calls.py`); this service fills in the broker's
defaults and applies its policies. It answers within the caller's time, and once the broker's own image shows the
change, so that a client that creates a topic and asks for it next finds it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ottla_broker.config import TopicsConfig
from ottla_broker.controller.commands.create_topics import CreateTopics
from ottla_broker.controller.commands.delete_topics import DeleteTopics
from ottla_broker.controller.commands.grow_topic import GrowTopic
from ottla_broker.metadata.image import INTERNAL_TOPICS
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.requests import NewTopic, TopicResult
from ottla_broker.service.controller_calls import ControllerCalls
from ottla_core.errors import PolicyViolation, RequestError, UnknownTopicOrPartition


class Mutations(Protocol):
    """The caller's quota of partitions created and deleted."""

    def charge(self, partitions: int) -> None: ...


#: How long an auto-creation may take before the client has to ask again.
_ENSURE_TIMEOUT_S = 5.0


class TopicService:
    def __init__(
        self,
        config: TopicsConfig,
        metadata: Metadata,
        controller: ControllerCalls,
        settling: Callable[[float], Awaitable[None] | None] = lambda opened_at: None,
    ) -> None:
        """`settling` returns what to await before metadata is answered, if a broker was just lost."""
        self.settling = settling
        self._config = config
        self._metadata = metadata
        self._controller = controller

    async def create(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Mutations | None = None,
    ) -> list[TopicResult]:
        """`mutations` is charged; what its quota refuses is not done."""
        filled = [self._with_defaults(topic) for topic in topics]
        refused: list[TopicResult] = []
        if mutations is not None and not validate_only:
            existing = self._metadata.image.topics
            sizes = {topic.name: _size(topic) for topic in filled if topic.name not in existing}
            refused = _refused(mutations, sizes)
            names = {each.name for each in refused}
            filled = [topic for topic in filled if topic.name not in names]
        if refused and not filled:
            return refused
        command = CreateTopics(tuple(filled), validate_only)
        return refused + await self._controller.execute(command, timeout_s=timeout_s)

    async def delete(
        self, names: Sequence[str], *, timeout_s: float, mutations: Mutations | None = None
    ) -> list[TopicResult]:
        if not self._config.delete_enabled:
            refusal = PolicyViolation("delete.topic.enable is false on this broker.")
            return [TopicResult(name, error=refusal) for name in names]
        refused: list[TopicResult] = []
        if mutations is not None:
            topics = self._metadata.image.topics
            refused = _refused(
                mutations, {name: len(topics[name].partitions) for name in names if name in topics}
            )
            names = [name for name in names if all(each.name != name for each in refused)]
        if refused and not names:
            return refused
        return refused + await self._controller.execute(DeleteTopics(tuple(names)), timeout_s=timeout_s)

    async def grow(
        self,
        name: str,
        total: int,
        assignments: tuple[tuple[int, ...], ...] | None = None,
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Mutations | None = None,
    ) -> TopicResult:
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            return TopicResult(name, error=UnknownTopicOrPartition(f"There is no topic {name!r}."))
        if mutations is not None and not validate_only:
            mutations.charge(max(0, total - len(topic.partitions)))
        return await self._controller.execute(
            GrowTopic(name, total, assignments, validate_only), timeout_s=timeout_s
        )

    @property
    def creates_missing(self) -> bool:
        """Whether topics are created when clients ask for them (auto.create.topics.enable)."""
        return self._config.auto_create

    async def ensure(self, names: Sequence[str]) -> None:
        """Create missing topics, if auto.create.topics.enable is on. The following look-up reports failures."""
        if not self._config.auto_create:
            return
        image = self._metadata.image
        # Internal topics are created on first use, with their own settings.
        wanted = (name for name in dict.fromkeys(names) if name not in INTERNAL_TOPICS)
        missing = [NewTopic(name) for name in wanted if name not in image.topics]
        if missing:
            try:
                await self.create(missing, validate_only=False, timeout_s=_ENSURE_TIMEOUT_S)
            except RequestError:
                return

    def _with_defaults(self, topic: NewTopic) -> NewTopic:
        if topic.assignments is not None:
            return topic
        return replace(
            topic,
            partitions=self._config.partitions if topic.partitions == -1 else topic.partitions,
            replication_factor=(
                self._config.replication_factor
                if topic.replication_factor == -1
                else topic.replication_factor
            ),
        )


def _size(topic: NewTopic) -> int:
    return max(1, topic.partitions if topic.assignments is None else len(topic.assignments))


def _refused(mutations: Mutations, sizes: Mapping[str, int]) -> list[TopicResult]:
    """Charge one topic after the other; the results of those that the quota refuses."""
    results = []
    for name, partitions in sizes.items():
        try:
            mutations.charge(partitions)
        except RequestError as error:
            results.append(TopicResult(name, error))
    return results
