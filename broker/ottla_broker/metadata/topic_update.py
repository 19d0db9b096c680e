"""Topics of the next image: joins `topics/<name>` with `partitions/<topic id>/<n>`. [P]

The two change independently, in any order: a topic's partitions are written before it, and removed after it.
Partitions without a topic wait in `ClusterImage.unnamed`. Used by `image_update.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from ottla_broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla_broker.metadata.overlay import Overlay
from ottla_broker.metadata.section import Section
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic

#: Stands for a partition whose key is missing, so that the others keep their numbers.
MISSING = PartitionImage(())


def topic_revisions(image: ClusterImage) -> Iterator[tuple[str, int]]:
    """Every key behind the topics of an image, with its mod revision."""
    for topic in image.topics.values():
        yield TOPICS.key(topic.name), topic.revision
        yield from _partition_revisions(topic.id, dict(enumerate(topic.partitions)))
    for topic_id, partitions in image.unnamed.items():
        yield from _partition_revisions(topic_id, partitions)


def _partition_revisions(
    topic_id: UUID, partitions: Mapping[int, PartitionImage]
) -> Iterator[tuple[str, int]]:
    prefix = partition_key(topic_id, 0)[:-1]
    for index, partition in partitions.items():
        if partition is not MISSING:
            yield f"{prefix}{index}", partition.revision


class TopicDraft:
    """Collects changes of topics and partitions, then copies each touched mapping once."""

    def __init__(self, image: ClusterImage) -> None:
        self._old = image
        #: By name; None when removed.
        self._topics: dict[str, StoredTopic | None] = {}
        #: By topic id and number; None when removed.
        self._partitions: dict[UUID, dict[int, PartitionImage | None]] = {}

    def put(self, section: Section, id_: Any, value: Any) -> None:
        if section is PARTITIONS:
            topic_id, index = id_
            self._partitions.setdefault(topic_id, {})[index] = value
        else:
            self._topics[id_] = value

    def remove(self, section: Section, id_: Any) -> None:
        self.put(section, id_, None)

    def fields(self) -> Mapping[str, object]:
        old = self._old
        topics, names, unnamed = Overlay(old.topics), Overlay(old.names_by_id), Overlay(old.unnamed)
        touched = dict.fromkeys(self._partitions)
        for name, stored in self._topics.items():
            before = old.topics.get(name)
            if before is not None and (stored is None or stored.id != before.id):
                # Its partitions lose their name and stay until their keys go.
                topics.remove(name)
                names.remove(before.id)
                touched[before.id] = None
            if stored is not None:
                names.put(stored.id, name)
                touched[stored.id] = None
        for topic_id in touched:
            if not self._change_in_place(topic_id, topics):
                self._regroup(topic_id, topics, names, unnamed)
        return {"topics": topics.result, "names_by_id": names.result, "unnamed": unnamed.result}

    def _change_in_place(self, topic_id: UUID, topics: Overlay[str, TopicImage]) -> bool:
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
        topics: Overlay[str, TopicImage],
        names: Overlay[UUID, str],
        unnamed: Overlay[UUID, Mapping[int, PartitionImage]],
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
            stored = self._topics.get(name)
            if stored is not None:
                topic = TopicImage(name, stored.id, stored.config, (), stored.revision, stored.extra)
                count = stored.partitions
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
