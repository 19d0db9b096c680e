"""Service types to protobuf messages and back. [P]

Called by the two services. Decides nothing: what is missing or out of range is for the service to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla_broker.metadata.image import BrokerImage, ClusterImage, TopicImage
from ottla_broker.requests import ConfigChange, ConfigValue, Fetched, NewTopic, TopicResult
from ottla_core.errors import InvalidReplicaAssignment, InvalidRequest, RequestError, UnknownTopicOrPartition
from ottla_core.ids import NO_BROKER
from ottla_core.pb import broker_pb2 as pb

_CHANGE_KINDS = {
    pb.ConfigChange.KIND_SET: "set",
    pb.ConfigChange.KIND_DELETE: "delete",
    pb.ConfigChange.KIND_APPEND: "append",
    pb.ConfigChange.KIND_SUBTRACT: "subtract",
}


def error_message(error: RequestError) -> pb.Error:
    return pb.Error(code=error.code, name=error.name, retriable=error.retriable, message=error.message)


def fetched_partition(fetched: Fetched) -> pb.FetchedPartition:
    answer = pb.FetchedPartition(
        topic=fetched.tp.topic,
        partition=fetched.tp.partition,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset,
        records=fetched.records,
    )
    if fetched.preferred_replica != NO_BROKER:
        answer.preferred_replica = fetched.preferred_replica
    if fetched.error is not None:
        answer.error.CopyFrom(error_message(fetched.error))
    for aborted in fetched.aborted:
        answer.aborted.add(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
    return answer


# ---------------------------------------------------------------------- metadata


def broker_info(broker: BrokerImage, listener: str) -> pb.BrokerInfo:
    """With its address on the listener that was asked."""
    directories = [str(each) for each in broker.directories]
    info = pb.BrokerInfo(id=broker.id, rack=broker.rack or "", directories=directories)
    if (native := broker.endpoint("grpc", listener)) is not None:
        info.host, info.port = native.host, native.port
    if (kafka := broker.endpoint("kafka")) is not None:
        info.kafka_host, info.kafka_port = kafka.host, kafka.port
    return info


def topic_info(topic: TopicImage, alive: Mapping[int, BrokerImage]) -> pb.TopicInfo:
    return pb.TopicInfo(
        name=topic.name,
        topic_id=str(topic.id),
        internal=topic.is_internal,
        partitions=[
            pb.PartitionInfo(
                partition=number,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                offline=[replica for replica in partition.replicas if replica not in alive],
            )
            for number, partition in enumerate(topic.partitions)
        ],
    )


class TopicInfoCache:
    """Encoded topics, kept while their image is the same object.

    Ten thousand partitions take tens of milliseconds to encode, and every client asks for them.
    """

    def __init__(self) -> None:
        self._brokers: Mapping[int, BrokerImage] | None = None
        self._topics: dict[str, tuple[TopicImage, pb.TopicInfo]] = {}

    def topic(self, image: ClusterImage, name: str) -> pb.TopicInfo:
        topic = image.topics.get(name)
        if topic is None:
            self._topics.pop(name, None)
            return pb.TopicInfo(
                name=name, error=error_message(UnknownTopicOrPartition(f"There is no topic {name!r}."))
            )
        if image.brokers is not self._brokers:
            # The live brokers decide which replicas are offline, in every topic.
            self._topics.clear()
            self._brokers = image.brokers
        kept = self._topics.get(name)
        if kept is None or kept[0] is not topic:
            kept = (topic, topic_info(topic, image.brokers))
            self._topics[name] = kept
        return kept[1]

    def forget_missing(self, image: ClusterImage) -> None:
        """Called with each listing of all topics, so that deleted ones do not pile up."""
        if len(self._topics) > len(image.topics):
            self._topics = {name: kept for name, kept in self._topics.items() if name in image.topics}


# ---------------------------------------------------------------------- administration

#: Timeout of a request without one; a topic takes milliseconds unless etcd is unavailable.
_TIMEOUT_DEFAULT_S = 30.0
_TIMEOUT_MAX_S = 120.0


def timeout_s(timeout_ms: int) -> float:
    return min(timeout_ms / 1000, _TIMEOUT_MAX_S) if timeout_ms else _TIMEOUT_DEFAULT_S


def assignments_of(given: Iterable[pb.ReplicaAssignment]) -> tuple[tuple[int, ...], ...] | None:
    """Explicit placement in partition order, or None if there is none. Partitions are those named, sorted."""
    by_partition = {each.partition: tuple(each.brokers) for each in given}
    if not by_partition:
        return None
    numbers = sorted(by_partition)
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise InvalidReplicaAssignment(f"Partitions {numbers} of the assignment are not consecutive.")
    return tuple(by_partition[number] for number in numbers)


def new_topic(wanted: pb.NewTopic) -> NewTopic:
    assignments = assignments_of(wanted.assignments)
    if assignments is not None and 0 not in {each.partition for each in wanted.assignments}:
        raise InvalidReplicaAssignment("The assignment of a new topic starts at partition 0.")
    return NewTopic(
        name=wanted.name,
        # proto3 has no "not set" for numbers; zero partitions make no sense, so zero means the default.
        partitions=wanted.partitions or -1,
        replication_factor=wanted.replication_factor or -1,
        config=dict(wanted.configs),
        assignments=assignments,
    )


def topic_outcome(result: TopicResult) -> pb.TopicOutcome:
    outcome = pb.TopicOutcome(
        name=result.name,
        topic_id="" if result.topic_id is None else str(result.topic_id),
        partitions=result.partitions,
        replication_factor=result.replication_factor,
    )
    if result.error is not None:
        outcome.error.CopyFrom(error_message(result.error))
    return outcome


def config_entry(value: ConfigValue) -> pb.ConfigEntry:
    # Secrets are never returned.
    shown = None if value.sensitive else value.value
    return pb.ConfigEntry(
        name=value.name,
        value=shown,
        source=value.source,
        type=value.type,
        read_only=value.read_only,
        sensitive=value.sensitive,
        documentation=value.documentation,
        synonyms=[
            pb.ConfigSynonym(name=name, value=None if value.sensitive else text, source=source)
            for name, text, source in value.synonyms
        ],
    )


def config_change(change: pb.ConfigChange) -> ConfigChange:
    kind = _CHANGE_KINDS.get(change.kind)
    if kind is None:
        raise InvalidRequest(f"The change of {change.name!r} says neither set, delete, append nor subtract.")
    return ConfigChange(kind, change.name, None if kind == "delete" else change.value)


def broker_of(resource: pb.ConfigResource) -> int | None:
    """The broker that a resource names; None for the defaults of all of them."""
    if not resource.name:
        return None
    # int() would also take "1_0", " 1" and other alphabets' digits.
    if not (resource.name.isascii() and resource.name.isdigit() and len(resource.name) < 10):
        raise InvalidRequest(f"{resource.name!r} is not a broker id.")
    return int(resource.name)
