"""A topic that stores the state of coordinators: which partition holds a key, its leader, and its creation. [S]

Every key (a group id, a transactional id) belongs to one partition, by a hash of its name; the broker that leads the
partition coordinates the key. The topic is created when the first client asks for a coordinator. Its partition count
never changes afterwards, because the hash depends on it (design rule 21).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from ottla_broker.coordination.partitioner import coordinator_partition
from ottla_broker.metadata.image import BrokerImage, ClusterImage
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.requests import Maybe, NewTopic
from ottla_broker.service.topics import TopicService
from ottla_core.errors import CoordinatorNotAvailable, NotCoordinator, RequestError, TopicAlreadyExists

_log = structlog.get_logger("ottla.coordinators")

_REPLICAS_WANTED = 3
_CREATE_TIMEOUT_S = 10.0


class InternalTopic:
    def __init__(
        self,
        name: str,
        metadata: Metadata,
        topics: TopicService,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str],
    ) -> None:
        """A `replication_factor` below 1 means three, or as many as there are brokers."""
        self.name = name
        self._metadata = metadata
        self._topics = topics
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._config = config
        #: One creation at a time.
        self._creating = asyncio.Lock()

    def partition_of(self, key: str) -> int:
        """The partition that holds a key. NotCoordinator while the topic does not exist."""
        topic = self._metadata.image.topics.get(self.name)
        if topic is None:
            raise NotCoordinator()
        return coordinator_partition(key, len(topic.partitions))

    def locate(self, key: str) -> Maybe[BrokerImage]:
        """The broker that coordinates a key; creates the topic on first use."""
        if self.name in self._metadata.image.topics:
            return self._leader_of(key)
        return self._create_and_locate(key)

    def _leader_of(self, key: str) -> BrokerImage:
        image = self._metadata.image
        topic = image.topics.get(self.name)
        if topic is None:
            raise CoordinatorNotAvailable()
        leader = topic.partitions[coordinator_partition(key, len(topic.partitions))].leader
        broker = image.brokers.get(leader)
        if broker is None:
            raise CoordinatorNotAvailable("The coordinator's partition has no leader right now.")
        return broker

    async def _create_and_locate(self, key: str) -> BrokerImage:
        async with self._creating:
            image = self._metadata.image
            if self.name not in image.topics:
                try:
                    async with asyncio.timeout(_CREATE_TIMEOUT_S):
                        await self._create(image)
                except (RequestError, TimeoutError) as error:
                    _log.warning("internal topic not created", topic=self.name, reason=str(error))
                    raise CoordinatorNotAvailable(f"{self.name} cannot be created now: {error}") from None
        return self._leader_of(key)

    async def _create(self, image: ClusterImage) -> None:
        factor = self._replication_factor
        if factor < 1:
            # All brokers that the cluster knows count, also one that is offline for a moment.
            factor = min(_REPLICAS_WANTED, max(1, len(image.members)))
        wanted = NewTopic(self.name, self._partitions, factor, self._config)
        (result,) = await self._topics.create([wanted], validate_only=False, timeout_s=_CREATE_TIMEOUT_S)
        if result.error is not None and not isinstance(result.error, TopicAlreadyExists):
            raise result.error
