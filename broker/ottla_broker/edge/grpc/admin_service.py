"""`ottla.v1.Admin`: topics, configuration and cluster, translated to the topic and config services. [S]"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from ottla_broker.acl import Operation, ResourceType
from ottla_broker.caller import Caller
from ottla_broker.config import GrpcEdgeConfig
from ottla_broker.edge.grpc.callers import Enter
from ottla_broker.edge.grpc.probe import GrpcProbe
from ottla_broker.edge.grpc.refusal import Refusals, guarded
from ottla_broker.edge.grpc.translation import (
    TopicInfoCache,
    assignments_of,
    broker_info,
    broker_of,
    config_change,
    config_entry,
    error_message,
    new_topic,
    timeout_s,
    topic_outcome,
)
from ottla_broker.edge.grpc.visits import filled, next_slice
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.requests import ConfigChange, ConfigValue, NewTopic, TopicResult
from ottla_broker.scheduler import Scheduler
from ottla_broker.service.access import Access
from ottla_broker.service.throttling import Mutations, Throttling
from ottla_core.errors import InvalidRequest, RequestError
from ottla_core.pb import broker_pb2 as pb

#: A topic that is not in the cache, with some partitions, takes tens of microseconds.
_TOPICS_PER_SLICE = 16


class Topics(Protocol):
    def create(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Mutations | None,
    ) -> Awaitable[list[TopicResult]]: ...

    def delete(
        self, names: Sequence[str], *, timeout_s: float, mutations: Mutations | None
    ) -> Awaitable[list[TopicResult]]: ...

    def grow(
        self,
        name: str,
        total: int,
        assignments: tuple[tuple[int, ...], ...] | None,
        *,
        validate_only: bool,
        timeout_s: float,
        mutations: Mutations | None,
    ) -> Awaitable[TopicResult]: ...

    def ensure(self, names: Sequence[str]) -> Awaitable[None]: ...


class Configs(Protocol):
    def describe_topic(self, name: str) -> list[ConfigValue]: ...

    def describe_broker(self, broker_id: int | None) -> list[ConfigValue]: ...

    def describe_group(self, group: str) -> list[ConfigValue]: ...

    def alter_topic(
        self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> Awaitable[None]: ...

    def alter_broker(
        self, broker_id: int | None, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> Awaitable[None]: ...

    def alter_group(
        self, group: str, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> Awaitable[None]: ...


class Cluster(Protocol):
    """What this edge needs of the services object beside the records."""

    @property
    def caller(self) -> Caller: ...

    @property
    def image(self) -> ClusterImage: ...

    @property
    def access(self) -> Access: ...

    @property
    def topics(self) -> Topics: ...

    @property
    def throttling(self) -> Throttling: ...

    @property
    def configs(self) -> Configs: ...


class AdminService:
    def __init__(
        self,
        enter: Enter[Cluster],
        config: GrpcEdgeConfig,
        probe: GrpcProbe,
        refusals: Refusals,
        scheduler: Scheduler,
    ) -> None:
        self._enter = enter
        self._config = config
        self._cache = TopicInfoCache()
        self.probe = probe
        self.refusals = refusals
        self.scheduler = scheduler

    @guarded
    async def metadata(self, request: pb.MetadataRequest, context: Any) -> pb.MetadataResponse:
        cluster = self._enter(context)
        names = list(dict.fromkeys(request.topics))
        if request.auto_create and any(name not in cluster.image.topics for name in names):
            await cluster.topics.ensure([n for n in names if n not in cluster.image.topics])
        image = cluster.image
        response = pb.MetadataResponse(
            cluster_id=image.cluster_id,
            controller_id=image.controller,
            brokers=[
                broker_info(broker, cluster.caller.listener) for _, broker in sorted(image.brokers.items())
            ],
            produce_bytes_max=self._config.message_max_bytes,
        )
        if not names and not request.no_topics:
            self._cache.forget_missing(image)
            describes = cluster.access.allows
            names = sorted(n for n in image.topics if describes(Operation.DESCRIBE, ResourceType.TOPIC, n))
        await filled(
            self.scheduler,
            response.topics,
            lambda name: self._topic(cluster, image, name),
            names,
            _TOPICS_PER_SLICE,
        )
        return response

    def _topic(self, cluster: Cluster, image: ClusterImage, name: str) -> pb.TopicInfo:
        if not cluster.access.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            refusal = cluster.access.refusal(Operation.DESCRIBE, ResourceType.TOPIC, name)
            return pb.TopicInfo(name=name, error=error_message(refusal))
        return self._cache.topic(image, name)

    @guarded
    async def create_topics(self, request: pb.CreateTopicsRequest, context: Any) -> pb.CreateTopicsResponse:
        cluster = self._enter(context)
        outcomes: dict[str, pb.TopicOutcome] = {}
        wanted: list[NewTopic] = []
        for each in request.topics:
            if each.name in outcomes:
                raise InvalidRequest(f"Topic {each.name!r} is named twice in the request.")
            outcomes[each.name] = pb.TopicOutcome(name=each.name)
            try:
                wanted.append(new_topic(each))
            except RequestError as error:
                outcomes[each.name].error.CopyFrom(error_message(error))
        if wanted:
            results = await cluster.topics.create(
                wanted,
                validate_only=request.validate_only,
                timeout_s=timeout_s(request.timeout_ms),
                mutations=_mutations(cluster),
            )
            outcomes.update((result.name, topic_outcome(result)) for result in results)
        return pb.CreateTopicsResponse(topics=list(outcomes.values()))

    @guarded
    async def delete_topics(self, request: pb.DeleteTopicsRequest, context: Any) -> pb.DeleteTopicsResponse:
        cluster = self._enter(context)
        results = await cluster.topics.delete(
            list(dict.fromkeys(request.names)),
            timeout_s=timeout_s(request.timeout_ms),
            mutations=_mutations(cluster),
        )
        return pb.DeleteTopicsResponse(topics=[topic_outcome(result) for result in results])

    @guarded
    async def create_partitions(
        self, request: pb.CreatePartitionsRequest, context: Any
    ) -> pb.CreatePartitionsResponse:
        cluster = self._enter(context)
        try:
            result = await cluster.topics.grow(
                request.topic,
                request.total,
                assignments_of(request.assignments),
                validate_only=request.validate_only,
                timeout_s=timeout_s(request.timeout_ms),
                mutations=_mutations(cluster),
            )
        except RequestError as error:
            result = TopicResult(request.topic, error)
        return pb.CreatePartitionsResponse(topic=topic_outcome(result))

    @guarded
    async def describe_configs(
        self, request: pb.DescribeConfigsRequest, context: Any
    ) -> pb.DescribeConfigsResponse:
        cluster = self._enter(context)
        response = pb.DescribeConfigsResponse()
        for number, resource in enumerate(request.resources):
            if number:
                await next_slice(self.scheduler)  # A resource has dozens of settings.
            answer = response.resources.add(resource=resource)
            try:
                answer.entries.extend(config_entry(value) for value in self._describe(cluster, resource))
            except RequestError as error:
                answer.error.CopyFrom(error_message(error))
        return response

    def _describe(self, cluster: Cluster, resource: pb.ConfigResource) -> list[ConfigValue]:
        if resource.type == pb.CONFIG_RESOURCE_TYPE_TOPIC:
            return cluster.configs.describe_topic(resource.name)
        if resource.type == pb.CONFIG_RESOURCE_TYPE_BROKER:
            return cluster.configs.describe_broker(broker_of(resource))
        if resource.type == pb.CONFIG_RESOURCE_TYPE_GROUP:
            return cluster.configs.describe_group(resource.name)
        raise InvalidRequest("Only topics, brokers and groups have a configuration.")

    @guarded
    async def alter_configs(self, request: pb.AlterConfigsRequest, context: Any) -> pb.AlterConfigsResponse:
        cluster, resource = self._enter(context), request.resource
        try:
            changes = [config_change(change) for change in request.changes]
            if resource.type == pb.CONFIG_RESOURCE_TYPE_TOPIC:
                await cluster.configs.alter_topic(resource.name, changes, validate_only=request.validate_only)
            elif resource.type == pb.CONFIG_RESOURCE_TYPE_BROKER:
                await cluster.configs.alter_broker(
                    broker_of(resource), changes, validate_only=request.validate_only
                )
            elif resource.type == pb.CONFIG_RESOURCE_TYPE_GROUP:
                await cluster.configs.alter_group(resource.name, changes, validate_only=request.validate_only)
            else:
                raise InvalidRequest("Only topics, brokers and groups have a configuration.")
        except RequestError as error:
            return pb.AlterConfigsResponse(error=error_message(error))
        return pb.AlterConfigsResponse()


def _mutations(cluster: Cluster) -> Mutations:
    """The caller's quota of partitions created and deleted: what exceeds it is refused."""
    return cluster.throttling.mutations(cluster.caller, strict=True)
