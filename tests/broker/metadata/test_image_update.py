"""The image, step by step, is the image read at once; and a step costs what it changes."""

from __future__ import annotations

import random
import time
from uuid import UUID

import pytest

from budget import some
from ottla_broker.metadata.image import BrokerImage, ClusterImage, MemberImage, PartitionImage
from ottla_broker.metadata.image_update import difference, updated
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.cluster import CLUSTER
from ottla_broker.metadata.sections.configs import BROKER_CONFIGS
from ottla_broker.metadata.sections.controller import CONTROLLER, Elected
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic
from ottla_broker.metadata.topic_update import MISSING
from ottla_broker.metadata.values import uuid_text
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import Changed, Entry, Removed, Revision, Snapshot

EMPTY = ClusterImage(cluster_id="")


def uid(n: int) -> UUID:
    return UUID(int=n, version=4)


def changed(key: str, value: bytes, revision: int, created: int = 0) -> Changed:
    return Changed(Entry(key, value, created or revision, revision))


def topic(name: str, topic_id: UUID, count: int, revision: int, **config: str) -> Changed:
    return changed(TOPICS.key(name), TOPICS.encode(StoredTopic(topic_id, count, config)), revision)


def partition(topic_id: UUID, index: int, revision: int, epoch: int = 0) -> Changed:
    value = PARTITIONS.encode(PartitionImage((1,), 1, epoch, (1,)))
    return changed(partition_key(topic_id, index), value, revision)


def after(image: ClusterImage, revision: int, *changes: Changed | Removed) -> ClusterImage:
    image, problems = updated(image, Revision(revision, changes))
    assert problems == ()
    return image


# ---------------------------------------------------------------------- cases


def test_partitions_wait_for_their_topic() -> None:
    image = after(EMPTY, 1, partition(uid(1), 0, 1), partition(uid(1), 1, 1))
    assert image.topics == {} and list(image.unnamed[uid(1)]) == [0, 1]
    image = after(image, 2, topic("a", uid(1), 2, 2))
    assert [p.revision for p in image.topics["a"].partitions] == [1, 1]
    assert image.unnamed == {} and image.topic_by_id(uid(1)) is image.topics["a"]


def test_a_topic_grows_only_when_its_own_key_says_so() -> None:
    image = after(EMPTY, 1, partition(uid(1), 0, 1), topic("a", uid(1), 1, 1))
    image = after(image, 2, partition(uid(1), 1, 2))
    assert len(image.topics["a"].partitions) == 1 and list(image.unnamed[uid(1)]) == [1]
    image = after(image, 3, topic("a", uid(1), 2, 3))
    assert len(image.topics["a"].partitions) == 2 and image.unnamed == {}


def test_a_deleted_topic_leaves_its_partitions_behind_until_they_go() -> None:
    image = after(EMPTY, 1, partition(uid(1), 0, 1), topic("a", uid(1), 1, 1))
    image = after(image, 2, Removed("topics/a"))
    assert image.topics == {} and image.names_by_id == {} and list(image.unnamed) == [uid(1)]
    image = after(image, 3, Removed(partition_key(uid(1), 0)))
    assert image.unnamed == {}


def test_a_recreated_topic_shares_nothing_with_the_old_one() -> None:
    image = after(EMPTY, 1, partition(uid(1), 0, 1, epoch=9), topic("a", uid(1), 1, 1))
    image = after(image, 2, topic("a", uid(2), 1, 2), partition(uid(2), 0, 2))
    assert image.topics["a"].id == uid(2) and image.topics["a"].partitions[0].leader_epoch == 0
    assert image.names_by_id == {uid(2): "a"} and list(image.unnamed) == [uid(1)]


def test_a_missing_partition_keeps_the_numbers_of_the_others() -> None:
    image = after(EMPTY, 1, *(partition(uid(1), i, 1) for i in (0, 2)), topic("a", uid(1), 3, 1))
    assert [p is MISSING for p in image.topics["a"].partitions] == [False, True, False]
    image = after(image, 2, Removed(partition_key(uid(1), 0)))
    assert image.topics["a"].partitions[0] is MISSING


def test_controller_brokers_members_and_configs() -> None:
    broker, member = BrokerImage(1, uid(8), (), directories=(uid(3),)), MemberImage(1, uid(8))
    image = after(
        EMPTY,
        5,
        changed("controller", CONTROLLER.encode(Elected(1, uid(8))), 5),
        changed("brokers/1", BROKERS.encode(broker), 5, created=4),
        changed("members/1", MEMBERS.encode(member), 5),
        changed("config/broker/default", BROKER_CONFIGS.encode({"a": "b"}), 5),
        changed("config/groups/a/b c", BROKER_CONFIGS.encode({"c": "d"}), 5),
        changed("cluster", CLUSTER.encode(uuid_text(uid(1))), 5),
        changed("unknown/kind", b"not for us", 5),
    )
    assert (image.controller, image.controller_revision, image.controller_incarnation) == (1, 5, uid(8))
    assert image.brokers[1].revision == 4 and image.is_admitted(1) and image.is_admitted(1, uid(8))
    assert image.cluster_id == uuid_text(uid(1)) and image.broker_configs == {"": {"a": "b"}}
    assert image.group_configs == {"a/b c": {"c": "d"}}
    assert not image.is_admitted(1, uid(9)) and not image.is_admitted(2)
    gone = [Removed(k) for k in ("controller", "brokers/1", "config/broker/default", "config/groups/a/b c")]
    image = after(image, 6, *gone)
    assert (image.controller, image.controller_revision) == (NO_BROKER, 0)
    assert image.brokers == {} and image.broker_configs == {} and list(image.members) == [1]
    assert image.group_configs == {}


def test_what_cannot_be_read_is_reported_and_leaves_the_former_state() -> None:
    image = after(EMPTY, 1, partition(uid(1), 0, 1), topic("a", uid(1), 1, 1))
    bad = [
        changed(partition_key(uid(1), 0), b'{"v":99}', 2),
        changed("partitions/nonsense/0", b"{}", 2),
        changed("topics/a", b"junk", 2),
        Removed("brokers/x"),
    ]
    made, problems = updated(image, Revision(2, (*bad, topic("b", uid(2), 1, 2))))
    assert len(problems) == 4 and "upgrade" in problems[0]
    assert made.topics["a"] is image.topics["a"] and "b" in made.topics and made.revision == 2


def test_what_did_not_change_is_the_same_object() -> None:
    changes = [topic(f"t{n}", uid(n), 3, 1) for n in range(5)]
    changes += [partition(uid(n), i, 1) for n in range(5) for i in range(3)]
    changes += [changed("config/broker/1", BROKER_CONFIGS.encode({"a": "b"}), 1)]
    old = after(EMPTY, 1, *changes)
    new = after(old, 2, partition(uid(2), 1, 2, epoch=4))
    assert [new.topics[t] is old.topics[t] for t in sorted(old.topics)] == [True, True, False, True, True]
    same = [a is b for a, b in zip(old.topics["t2"].partitions, new.topics["t2"].partitions, strict=True)]
    assert same == [True, False, True]
    assert new.brokers is old.brokers and new.broker_configs is old.broker_configs
    again = after(new, 3, changed("config/broker/1", BROKER_CONFIGS.encode({"a": "b"}), 3))
    assert again.broker_configs is old.broker_configs and again.topics is new.topics


# ---------------------------------------------------------------------- against the dumb twin


class Twin:
    """A store without history: the image is always made from scratch."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.revision = 0
        self.entries: dict[str, Entry] = {}

    def step(self) -> Revision:
        self.revision += 1
        changes: dict[str, Changed | Removed] = {}
        for _ in range(self.random.randrange(1, 5)):
            change = self._change()
            changes[change.entry.key if isinstance(change, Changed) else change.key] = change
        for key, change in changes.items():
            if isinstance(change, Changed):
                self.entries[key] = change.entry
            else:
                self.entries.pop(key, None)
        return Revision(self.revision, tuple(changes.values()))

    def _change(self) -> Changed | Removed:
        n, revision = self.random.randrange(3), self.revision
        match self.random.randrange(9):
            case 0:
                return Removed(f"topics/t{n}")
            case 1:
                return Removed(partition_key(uid(self.random.randrange(5)), n))
            case 2 | 3:
                # An id belongs to one name for ever.
                topic_id = uid(n + 3 * self.random.randrange(2))
                return topic(f"t{n}", topic_id, self.random.randrange(1, 4), revision)
            case 4:
                return changed(f"brokers/{n}", BROKERS.encode(BrokerImage(n, uid(revision), ())), revision)
            case 5:
                return Removed(f"brokers/{n}")
            case _:
                return partition(uid(self.random.randrange(6)), n, revision, epoch=revision)

    def scratch(self) -> ClusterImage:
        snapshot = Snapshot(self.revision, tuple(self.entries.values()))
        return updated(EMPTY, difference(EMPTY, snapshot)).image


@pytest.mark.parametrize("seed", some(range(40)))
def test_step_by_step_is_the_same_as_from_scratch(seed: int) -> None:
    twin, image, lagging = Twin(seed), EMPTY, EMPTY
    for step in range(60):
        image = updated(image, twin.step()).image
        assert image == twin.scratch()
        if step % 7 == 0:
            # One that missed several revisions, and reads everything again.
            snapshot = Snapshot(twin.revision, tuple(twin.entries.values()))
            lagging = updated(lagging, difference(lagging, snapshot)).image
            assert lagging == image


def test_a_reread_without_news_changes_no_object() -> None:
    twin = Twin(1)
    for _ in range(50):
        twin.step()
    image = twin.scratch()
    again = updated(image, difference(image, Snapshot(99, tuple(twin.entries.values())))).image
    assert again.topics is image.topics and again.unnamed is image.unnamed and again.brokers is image.brokers
    assert again.revision == 99


# ---------------------------------------------------------------------- cost


def test_ten_thousand_partitions_change_in_eighty_revisions_quickly() -> None:
    everything = [topic(f"t{n}", uid(n), 100, 1) for n in range(100)]
    everything += [partition(uid(n), i, 1) for n in range(100) for i in range(100)]
    image = after(EMPTY, 1, *everything)
    flat = [partition(uid(n), i, 2, epoch=1) for n in range(100) for i in range(100)]
    revisions = [Revision(2 + k, tuple(flat[k * 125 : k * 125 + 125])) for k in range(80)]
    began = time.process_time()
    for revision in revisions:
        image = updated(image, revision).image
    spent = time.process_time() - began
    assert all(p.leader_epoch == 1 for t in image.topics.values() for p in t.partitions)
    # About 0.1 s on an idle 2-core machine; ten times that would mean copying everything each time.
    assert spent < 0.5

    began = time.process_time()
    for k in range(200):
        image = updated(image, Revision(100 + k, (flat[k],))).image
    assert time.process_time() - began < 0.1
