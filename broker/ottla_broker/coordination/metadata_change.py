"""The difference between two cluster images, as coordinator shards ask about it. [P]

One object is shared by all shards that have seen the same image, so a comparison over all topics runs once per image
and not once per shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from uuid import UUID

from ottla_broker.metadata.image import ClusterImage


class MetadataChange:
    def __init__(self, before: ClusterImage | None, image: ClusterImage) -> None:
        """`before` is None for a shard that has just been loaded: it has seen no image yet."""
        self.before = before
        self.image = image

    @cached_property
    def removed_topics(self) -> bool:
        """True if a topic may have been deleted or recreated; always true for a shard that has just been loaded."""
        if self.before is None:
            return True
        if self.before.topics is self.image.topics:
            return False
        now = self.image.topics
        return any(name not in now or now[name].id != topic.id for name, topic in self.before.topics.items())

    @cached_property
    def topic_ids(self) -> Mapping[str, UUID]:
        return {name: topic.id for name, topic in self.image.topics.items()}

    @cached_property
    def changed_groups(self) -> frozenset[str]:
        """Groups whose settings were changed. Empty for a shard that has just been loaded: it starts with them."""
        if self.before is None or self.before.group_configs is self.image.group_configs:
            return frozenset()
        old, new = self.before.group_configs, self.image.group_configs
        return frozenset(group for group in {**old, **new} if old.get(group) != new.get(group))
