"""The next image from a revision of the metadata store. [P]

    updated(image, revision) -> (image, problems)     one watched revision
    difference(image, snapshot) -> Revision           a whole re-read, as the changes it amounts to

What did not change is the same object in both images, so subscribers find changes by identity, and one
change among ten thousand partitions costs the copy of one topic's tuple and of a dict of topics. A value
that cannot be read is a problem to report, never a reason to stop: the former state stays, and its revision
fences every write based on it.

Called by `metadata.py` only. It must never look at the clock or decide what should be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from ottla_broker.controller import keys
from ottla_broker.controller.image import ClusterImage, PartitionImage, TopicImage
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import Changed, Entry, Removed, Revision, Snapshot

K = TypeVar("K")
V = TypeVar("V")

#: Stands for a partition whose key is missing, so that the others keep their numbers.
MISSING = PartitionImage(())


class Update(NamedTuple):
    image: ClusterImage
    #: One sentence per key that could not be read.
    problems: tuple[str, ...]


def updated(image: ClusterImage, revision: Revision) -> Update:
    """The image after all changes of one revision."""
    draft = _Draft(image)
    problems = []
    for change in revision.changes:
        try:
            if isinstance(change, Changed):
                draft.put(change.entry)
            else:
                draft.remove(change.key)
        except keys.BadValue as error:
            problems.append(str(error))
    return Update(draft.finish(max(image.revision, revision.revision)), tuple(problems))


def difference(image: ClusterImage, snapshot: Snapshot) -> Revision:
    """What has changed between an image and a later read of everything.

    Topics and partitions of an unchanged revision are left out, which saves decoding thousands; the few
    other keys are simply given again.
    """
    known = dict(_revisions(image))
    changes: list[Changed | Removed] = []
    for entry in snapshot.entries:
        revision = known.pop(entry.key, None)
        if revision is None or revision != entry.mod_revision:
            changes.append(Changed(entry))
    changes.extend(Removed(key) for key in known)
    return Revision(snapshot.revision, tuple(changes))


def _revisions(image: ClusterImage) -> Iterator[tuple[str, int | None]]:
    """Every key behind the image, with its mod revision where the image keeps that."""
    for topic in image.topics.values():
        yield keys.topic(topic.name), topic.revision
        yield from _partition_revisions(topic.id, dict(enumerate(topic.partitions)))
    for topic_id, partitions in image.unnamed.items():
        yield from _partition_revisions(topic_id, partitions)
    for broker_id in image.brokers:
        yield keys.broker(broker_id), None
    for broker_id in image.members:
        yield keys.member(broker_id), None
    for name in image.broker_configs:
        yield keys.broker_config(name), None
    for group in image.group_configs:
        yield keys.group_config(group), None
    if image.controller != NO_BROKER:
        yield keys.CONTROLLER, None
    if image.removals_revision:
        yield keys.REMOVALS, image.removals_revision


def _partition_revisions(
    topic_id: UUID, partitions: Mapping[int, PartitionImage]
) -> Iterator[tuple[str, int]]:
    prefix = keys.partition(topic_id, 0)[:-1]
    for index, partition in partitions.items():
        if partition is not MISSING:
            yield f"{prefix}{index}", partition.revision


class _Draft:
    """One image in the making: collects changes, then copies each touched mapping once."""

    def __init__(self, image: ClusterImage) -> None:
        self._old = image
        self._cluster_id = image.cluster_id
        self._controller = (image.controller, image.controller_revision, image.controller_incarnation)
        self._removals_revision = image.removals_revision
        self._recoveries = image.recoveries
        self._brokers = _Overlay(image.brokers)
        self._members = _Overlay(image.members)
        self._configs = _Overlay(image.broker_configs)
        self._group_configs = _Overlay(image.group_configs)
        #: By name: the new topic without partitions and their number, or None when removed.
        self._topics: dict[str, tuple[TopicImage, int] | None] = {}
        #: By topic id and number; None when removed.
        self._partitions: dict[UUID, dict[int, PartitionImage | None]] = {}

    def put(self, entry: Entry) -> None:
        key = entry.key
        if key.startswith(keys.PARTITIONS):
            topic_id, index = keys.partition_of(key)
            self._partitions.setdefault(topic_id, {})[index] = keys.decode_partition(entry)
        elif key.startswith(keys.TOPICS):
            self._topics[keys.topic_name_of(key)] = keys.decode_topic(entry)
        elif key.startswith(keys.BROKERS):
            self._brokers.put(keys.broker_id_of(key), keys.decode_broker(entry))
        elif key.startswith(keys.MEMBERS):
            self._members.put(keys.broker_id_of(key), keys.decode_member(entry))
        elif key.startswith(keys.BROKER_CONFIGS):
            self._configs.put(keys.broker_config_of(key), keys.decode_config(entry))
        elif key.startswith(keys.GROUP_CONFIGS):
            self._group_configs.put(keys.group_config_of(key), keys.decode_config(entry))
        elif key == keys.CONTROLLER:
            broker_id, incarnation = keys.decode_controller(entry)
            self._controller = (broker_id, entry.create_revision, incarnation)
        elif key == keys.REMOVALS:
            self._removals_revision = entry.mod_revision
        elif key == keys.RECOVERIES:
            self._recoveries = keys.decode_recoveries(entry)
        elif key == keys.CLUSTER:
            self._cluster_id = keys.decode_cluster(entry)

    def remove(self, key: str) -> None:
        if key.startswith(keys.PARTITIONS):
            topic_id, index = keys.partition_of(key)
            self._partitions.setdefault(topic_id, {})[index] = None
        elif key.startswith(keys.TOPICS):
            self._topics[keys.topic_name_of(key)] = None
        elif key.startswith(keys.BROKERS):
            self._brokers.remove(keys.broker_id_of(key))
        elif key.startswith(keys.MEMBERS):
            self._members.remove(keys.broker_id_of(key))
        elif key.startswith(keys.BROKER_CONFIGS):
            self._configs.remove(keys.broker_config_of(key))
        elif key.startswith(keys.GROUP_CONFIGS):
            self._group_configs.remove(keys.group_config_of(key))
        elif key == keys.CONTROLLER:
            self._controller = (NO_BROKER, 0, None)
        elif key == keys.REMOVALS:
            self._removals_revision = 0

    def finish(self, revision: int) -> ClusterImage:
        controller, controller_revision, controller_incarnation = self._controller
        topics, names, unnamed = self._finish_topics()
        return replace(
            self._old,
            cluster_id=self._cluster_id,
            revision=revision,
            controller=controller,
            controller_revision=controller_revision,
            controller_incarnation=controller_incarnation,
            removals_revision=self._removals_revision,
            recoveries=self._recoveries,
            brokers=self._brokers.result,
            members=self._members.result,
            broker_configs=self._configs.result,
            group_configs=self._group_configs.result,
            topics=topics,
            names_by_id=names,
            unnamed=unnamed,
        )

    def _finish_topics(
        self,
    ) -> tuple[Mapping[str, TopicImage], Mapping[UUID, str], Mapping[UUID, Mapping[int, PartitionImage]]]:
        old = self._old
        topics, names, unnamed = _Overlay(old.topics), _Overlay(old.names_by_id), _Overlay(old.unnamed)
        touched = dict.fromkeys(self._partitions)
        for name, change in self._topics.items():
            before = old.topics.get(name)
            if before is not None and (change is None or change[0].id != before.id):
                # Its partitions lose their name and stay until their keys go.
                topics.remove(name)
                names.remove(before.id)
                touched[before.id] = None
            if change is not None:
                names.put(change[0].id, name)
                touched[change[0].id] = None
        for topic_id in touched:
            if not self._change_in_place(topic_id, topics):
                self._regroup(topic_id, topics, names, unnamed)
        return topics.result, names.result, unnamed.result

    def _change_in_place(self, topic_id: UUID, topics: _Overlay[str, TopicImage]) -> bool:
        """The common case: new states for partitions that the topic already has."""
        topic = self._old.topic_by_id(topic_id)
        changes = self._partitions.get(topic_id)
        if topic is None or changes is None or topic.name in self._topics:
            return False
        partitions = list(topic.partitions)
        count = len(partitions)
        for index, partition in changes.items():
            if partition is None or index >= count:
                return False
            partitions[index] = partition
        topics.put(topic.name, replace(topic, partitions=tuple(partitions)))
        return True

    def _regroup(
        self,
        topic_id: UUID,
        topics: _Overlay[str, TopicImage],
        names: _Overlay[UUID, str],
        unnamed: _Overlay[UUID, Mapping[int, PartitionImage]],
    ) -> None:
        """Assign all partitions of one topic id again: the first ones to the topic, the rest are left over."""
        before = self._old.topic_by_id(topic_id)
        pool = dict(self._old.unnamed.get(topic_id, ()))
        if before is not None:
            pool.update((i, p) for i, p in enumerate(before.partitions) if p is not MISSING)
        for index, partition in self._partitions.get(topic_id, {}).items():
            if partition is None:
                pool.pop(index, None)
            else:
                pool[index] = partition
        name = names.get(topic_id)
        if name is not None:
            change = self._topics.get(name)
            if change is not None:
                topic, count = change
            else:
                topic = self._old.topics[name]
                count = len(topic.partitions)
            partitions = tuple(pool.pop(i, MISSING) for i in range(count))
            if before is not None and partitions == before.partitions:
                partitions = before.partitions
            topics.put(name, replace(topic, partitions=partitions))
        if pool:
            unnamed.put(topic_id, pool)
        else:
            unnamed.remove(topic_id)


class _Overlay(Generic[K, V]):
    """A mapping that is copied at its first real change, and stays the same object without one."""

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._copy: dict[K, V] | None = None

    @property
    def result(self) -> Mapping[K, V]:
        return self._base if self._copy is None else self._copy

    def get(self, key: K) -> V | None:
        return self.result.get(key)

    def put(self, key: K, value: V) -> None:
        if self.result.get(key) != value:
            self._own()[key] = value

    def remove(self, key: K) -> None:
        if key in self.result:
            del self._own()[key]

    def _own(self) -> dict[K, V]:
        if self._copy is None:
            self._copy = dict(self._base)
        return self._copy
