"""Machine tests of the planner: an image and an event in, exactly these writes out."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ottla_broker.controller.planner import (
    BrokersArrived,
    LeftoversFound,
    PartitionsChecked,
    Plan,
    PreferredLeadersWanted,
    Stage,
    TopicConfigChanged,
    TopicDeleted,
    TopicGrown,
    TopicWanted,
    plan,
    set_key,
)
from ottla_broker.metadata.image import (
    BrokerImage,
    ClusterImage,
    MemberImage,
    PartitionImage,
    TopicImage,
)
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.members import MEMBERS
from ottla_broker.metadata.sections.partitions import PARTITIONS, partition_key
from ottla_broker.metadata.sections.topics import TOPICS, StoredTopic
from ottla_core.ids import NO_BROKER
from ottla_core.ports.store import BRANCHES_MAX, Branch, CreateRevisionIs, Delete, Entry, ModRevisionIs, Put

T = UUID(int=77, version=4)
DIR = UUID(int=5, version=4)


def life(n: int) -> UUID:
    return UUID(int=1000 + n, version=4)


def broker(broker_id: int, incarnation: int, *, torn: bool = False, directory: UUID = DIR) -> BrokerImage:
    marks = (directory,) if torn else ()
    return BrokerImage(broker_id, life(incarnation), (), None, 50 + broker_id, (directory,), marks)


def member(broker_id: int, incarnation: int) -> MemberImage:
    return MemberImage(broker_id, life(incarnation), (DIR,), revision=60 + broker_id)


def image(
    *partitions: PartitionImage, brokers: list[BrokerImage], members: list[MemberImage]
) -> ClusterImage:
    topic = TopicImage("t", T, {}, partitions, revision=30)
    return ClusterImage(
        "cluster",
        revision=99,
        brokers={b.id: b for b in brokers},
        members={m.id: m for m in members},
        topics={"t": topic} if partitions else {},
        names_by_id={T: "t"} if partitions else {},
    )


def led_by(leader: int, *isr: int, replicas: tuple[int, ...] = (1, 2), revision: int = 20) -> PartitionImage:
    return PartitionImage(replicas, leader, 4, isr, revision=revision)


def test_the_rack_of_an_admitted_broker_stays_known_while_it_is_offline() -> None:
    here = replace(broker(1, 3), rack="a")
    (stage,) = plan(image(brokers=[here], members=[]), BrokersArrived((1,))).stages
    (written,) = [write for branch in stage.branches for write in branch.writes]
    assert isinstance(written, Put)
    found = MEMBERS.decode(Entry(written.key, written.value, 7, 7))
    gone = ClusterImage("cluster", members={1: found})
    assert gone.rack_of(1) == "a"
    assert image(brokers=[replace(here, rack="b")], members=[found]).rack_of(1) == "b"
    assert gone.rack_of(2) is None


def change(index: int, before: PartitionImage, leader_member: int | None, **fields: object) -> Branch:
    """The branch that rewrites a partition, comparing what was read."""
    key = partition_key(T, index)
    compares = [ModRevisionIs(key, before.revision)]
    if leader_member is not None:
        compares.append(ModRevisionIs(MEMBERS.key(leader_member), 60 + leader_member))
    return Branch(tuple(compares), (Put(key, PARTITIONS.encode(replace(before, **fields))),))


def admission(broker_id: int, incarnation: int, known: bool = True) -> Stage:
    value = MEMBERS.encode(MemberImage(broker_id, life(incarnation), (DIR,)))
    compare = ModRevisionIs(MEMBERS.key(broker_id), 60 + broker_id if known else 0)
    guard = (CreateRevisionIs(BROKERS.key(broker_id), 50 + broker_id),)
    return Stage((Branch((compare,), (Put(MEMBERS.key(broker_id), value),)),), guard)


# ---------------------------------------------------------------------- brokers


def test_an_unknown_broker_is_admitted() -> None:
    world = image(brokers=[broker(1, 1)], members=[])
    assert plan(world, BrokersArrived((1,))) == Plan((admission(1, 1, known=False),))


def test_an_admitted_or_absent_broker_asks_for_nothing() -> None:
    world = image(led_by(1, 1), brokers=[broker(1, 1)], members=[member(1, 1)])
    assert not plan(world, BrokersArrived((1,))) and not plan(world, BrokersArrived((2,)))


def test_a_restarted_broker_leads_on_only_under_a_new_epoch() -> None:
    only = led_by(1, 1, replicas=(1,))
    world = image(only, only, brokers=[broker(1, 2)], members=[member(1, 1)])
    bumped = tuple(change(i, only, 1, leader_epoch=5) for i in (0, 1))
    last = admission(1, 2)
    assert plan(world, BrokersArrived((1,))) == Plan((Stage(bumped, last.guard), last))


def test_leaderships_of_a_restarted_broker_move_to_in_sync_replicas() -> None:
    mine, other = led_by(1, 1, 2), led_by(2, 1, 2)
    world = image(mine, other, brokers=[broker(1, 2), broker(2, 1)], members=[member(1, 1), member(2, 1)])
    last = admission(1, 2)
    moved = (change(0, mine, 2, leader=2, leader_epoch=5),)
    assert plan(world, BrokersArrived((1,))) == Plan((Stage(moved, last.guard), last))


def test_a_torn_broker_leaves_every_isr_before_it_is_admitted() -> None:
    mine, other = led_by(1, 1, 2), led_by(2, 1, 2)
    world = image(
        mine, other, brokers=[broker(1, 2, torn=True), broker(2, 1)], members=[member(1, 1), member(2, 1)]
    )
    stage = plan(world, BrokersArrived((1,))).stages[0]
    assert stage.branches == (
        change(0, mine, 2, leader=2, leader_epoch=5, isr=(2,), dropped=(1,)),
        change(1, other, 2, isr=(2,), dropped=(1,)),
    )


def test_another_disk_under_the_same_id_is_torn() -> None:
    mine = led_by(1, 1, 2)
    newcomer = broker(1, 2, directory=UUID(int=6, version=4))
    world = image(mine, brokers=[newcomer, broker(2, 1)], members=[member(1, 1), member(2, 1)])
    stage = plan(world, BrokersArrived((1,))).stages[0]
    assert stage.branches == (change(0, mine, 2, leader=2, leader_epoch=5, isr=(2,), dropped=(1,)),)


def test_the_only_copy_is_led_on_even_from_a_torn_disk() -> None:
    only = led_by(1, 1, replicas=(1,))
    world = image(only, brokers=[broker(1, 2, torn=True)], members=[member(1, 1)])
    assert plan(world, BrokersArrived((1,))).stages[0].branches == (change(0, only, 1, leader_epoch=5),)


def test_a_partition_that_waited_for_the_broker_gets_it() -> None:
    waiting = led_by(NO_BROKER, 1)
    world = image(waiting, brokers=[broker(1, 2)], members=[member(1, 1)])
    wanted = change(0, waiting, 1, leader=1, leader_epoch=5)
    assert plan(world, BrokersArrived((1,))).stages[0].branches == (wanted,)


def test_a_partition_that_waits_for_another_is_left_alone() -> None:
    waiting = led_by(NO_BROKER, 2)
    world = image(waiting, brokers=[broker(1, 2)], members=[member(1, 1)])
    assert plan(world, BrokersArrived((1,))) == Plan((admission(1, 2),))


# ---------------------------------------------------------------------- topics

ONE = image(brokers=[broker(1, 1)], members=[member(1, 1)])


def new_partition(index: int) -> Branch:
    key = partition_key(T, index)
    return Branch(
        (ModRevisionIs(key, 0),), (Put(key, b'{"v":1,"replicas":[1],"leader":1,"epoch":0,"isr":[1]}'),)
    )


def test_a_small_topic_is_one_transaction() -> None:
    wanted = TopicWanted("t", T, [(1,), (1,)], {"retention.ms": "5"})
    topic = Branch((), (Put("topics/t", TOPICS.encode(StoredTopic(T, 2, {"retention.ms": "5"}))),))
    guard = (ModRevisionIs("topics/t", 0), ModRevisionIs("members/1", 61))
    assert plan(ONE, wanted) == Plan((Stage((new_partition(0), new_partition(1), topic), guard),))


def test_a_large_topic_gets_its_name_last() -> None:
    stages = plan(ONE, TopicWanted("t", T, [(1,)] * BRANCHES_MAX, {})).stages
    assert [len(s.branches) for s in stages] == [BRANCHES_MAX, 1]
    assert stages[1].branches[0].writes[0].key == "topics/t"
    assert stages[0].guard == stages[1].guard


def test_replicas_that_are_away_are_not_in_the_first_isr() -> None:
    world = image(brokers=[broker(1, 1)], members=[member(1, 1), member(2, 1)])
    made = plan(world, TopicWanted("t", T, [(2, 1)], {})).stages[0].branches[0].writes[0]
    assert isinstance(made, Put)
    assert made.value == b'{"v":1,"replicas":[2,1],"leader":1,"epoch":0,"isr":[1]}'


def test_deletion_takes_the_name_first() -> None:
    world = image(*[led_by(1, 1)] * 130, brokers=[broker(1, 1)], members=[member(1, 1)])
    first, second = plan(world, TopicDeleted("t")).stages
    assert first.guard == (ModRevisionIs("topics/t", 30),)
    assert first.branches[:2] == (
        Branch((), (Delete("topics/t"),)),
        Branch((), (Delete(partition_key(T, 0)),)),
    )
    assert len(first.branches) + len(second.branches) == 131 and len(first.branches) == BRANCHES_MAX
    assert second.guard == ()


def test_growth_keeps_config_and_unknown_fields() -> None:
    world = image(led_by(1, 1), brokers=[broker(1, 1)], members=[member(1, 1)])
    topic = replace(world.topics["t"], config={"a": "b"}, extra=(("owner", "x"),))
    world = replace(world, topics={"t": topic})
    (stage,) = plan(world, TopicGrown("t", [(1,)])).stages
    value = TOPICS.encode(StoredTopic(T, 2, {"a": "b"}, (("owner", "x"),)))
    assert stage.branches == (new_partition(1), Branch((), (Put("topics/t", value),)))
    assert stage.guard[0] == ModRevisionIs("topics/t", 30)


def test_growth_overwrites_what_a_cut_off_growth_left() -> None:
    world = image(led_by(1, 1), brokers=[broker(1, 1)], members=[member(1, 1)])
    world = replace(world, unnamed={T: {1: led_by(1, 1, revision=44)}})
    branch = plan(world, TopicGrown("t", [(1,)])).stages[0].branches[0]
    assert branch.compares == (ModRevisionIs(partition_key(T, 1), 44),)


def test_configs() -> None:
    world = image(led_by(1, 1), brokers=[broker(1, 1)], members=[member(1, 1)])
    (stage,) = plan(world, TopicConfigChanged("t", {"x": "y"})).stages
    put = Put("topics/t", TOPICS.encode(StoredTopic(T, 1, {"x": "y"})))
    assert stage.branches == (Branch((ModRevisionIs("topics/t", 30),), (put,)),)
    (stage,) = set_key("config/groups/g/1", b"x").stages
    assert stage.branches == (Branch((), (Put("config/groups/g/1", b"x"),)),)
    (stage,) = set_key("config/groups/g/1", None).stages
    assert stage.branches == (Branch((), (Delete("config/groups/g/1"),)),)


def test_leftovers_go_if_they_are_as_they_were_read() -> None:
    assert not plan(ONE, LeftoversFound({T}))
    world = replace(ONE, unnamed={T: {4: led_by(1, 1, revision=44)}})
    key = partition_key(T, 4)
    assert not plan(world, LeftoversFound(()))
    assert plan(world, LeftoversFound({T})) == Plan(
        (Stage((Branch((ModRevisionIs(key, 44),), (Delete(key),)),)),)
    )


# ---------------------------------------------------------------------- who is here


def test_lost_leaders_are_replaced_in_one_stage() -> None:
    mine, other = led_by(1, 1, 2), led_by(2, 1, 2)
    world = image(mine, other, brokers=[broker(2, 1)], members=[member(1, 1), member(2, 1)])
    event = PartitionsChecked({"t": [0, 1, 7], "gone": [0]})
    assert plan(world, event) == Plan(
        (
            Stage(
                (
                    change(0, mine, 2, leader=2, leader_epoch=5, isr=(2,), dropped=(1,)),
                    change(1, other, 2, isr=(2,), dropped=(1,)),
                )
            ),
        )
    )
    assert plan(world, PartitionsChecked({"t": [1]})).stages[0].branches == (
        change(1, other, 2, isr=(2,), dropped=(1,)),
    )


def test_a_lost_log_directory_costs_a_broker_the_partitions_in_it_and_no_other() -> None:
    led, followed, kept = led_by(1, 1, 2), led_by(2, 1, 2), led_by(1, 1, 2)
    maimed = replace(broker(1, 1), offline={T: (0, 1)})
    world = image(led, followed, kept, brokers=[maimed, broker(2, 1)], members=[member(1, 1), member(2, 1)])
    assert plan(world, PartitionsChecked({"t": [0, 1, 2]})).stages[0].branches == (
        change(0, led, 2, leader=2, leader_epoch=5, isr=(2,), dropped=(1,)),
        change(1, followed, 2, isr=(2,), dropped=(1,)),
    )


def test_the_only_copy_in_a_lost_log_directory_waits_without_a_leader_for_its_return() -> None:
    alone = led_by(1, 1)
    maimed, members = replace(broker(1, 1), offline={T: (0,)}), [member(1, 1), member(2, 1)]
    world = image(alone, brokers=[maimed, broker(2, 1)], members=members)
    gone = change(0, alone, None, leader=NO_BROKER, leader_epoch=5)
    assert plan(world, PartitionsChecked({"t": [0]})).stages[0].branches == (gone,)
    waiting = replace(alone, leader=NO_BROKER)
    still = image(waiting, brokers=[maimed, broker(2, 1)], members=members)
    assert not plan(still, PartitionsChecked({"t": [0]}))
    back = image(waiting, brokers=[broker(1, 1), broker(2, 1)], members=members)
    led = change(0, waiting, 1, leader=1, leader_epoch=5)
    assert plan(back, PartitionsChecked({"t": [0]})).stages[0].branches == (led,)


def test_a_preferred_leader_without_its_log_directory_is_not_given_anything() -> None:
    moved = led_by(2, 1, 2)
    maimed = replace(broker(1, 1), offline={T: (0,)})
    world = image(moved, brokers=[maimed, broker(2, 1)], members=[member(1, 1), member(2, 1)])
    assert not plan(world, PreferredLeadersWanted({"t": [0]}, settled=[1, 2]))


def test_the_brokers_default_decides_which_replicas_stay_eligible() -> None:
    other = led_by(2, 1, 2)
    world = image(other, brokers=[broker(2, 1)], members=[member(1, 1), member(2, 1)])
    made = plan(world, PartitionsChecked({"t": [0]}), {"min.insync.replicas": "2"})
    assert made.stages[0].branches == (change(0, other, 2, isr=(2,), elr=(1,)),)


def test_a_thousand_lost_leaders_are_independent_branches() -> None:
    world = image(*[led_by(1, 1, 2)] * 1000, brokers=[broker(2, 1)], members=[member(1, 1), member(2, 1)])
    (stage,) = plan(world, PartitionsChecked({"t": range(1000)})).stages
    assert len(stage.branches) == 1000 and stage.guard == ()


def test_log_ends_reach_the_election() -> None:
    torn = replace(led_by(NO_BROKER, 1, 2), torn=(1, 2))
    world = image(torn, brokers=[broker(1, 1), broker(2, 1)], members=[member(1, 1), member(2, 1)])
    assert not plan(world, PartitionsChecked({"t": [0]}))
    made = plan(world, PartitionsChecked({"t": [0]}, {(T, 0): {1: (4, 10), 2: (4, 11)}}))
    wanted = change(0, torn, 2, leader=2, leader_epoch=5, isr=(2,), dropped=(1,), torn=())
    assert made == Plan((Stage((wanted,)),))


def test_preferred_leaders_come_back_if_they_are_settled() -> None:
    moved = led_by(2, 1, 2)
    world = image(moved, brokers=[broker(1, 1), broker(2, 1)], members=[member(1, 1), member(2, 1)])
    assert not plan(world, PreferredLeadersWanted({"t": [0]}, settled=[2]))
    made = plan(world, PreferredLeadersWanted({"t": [0]}, settled=[1, 2]))
    assert made == Plan((Stage((change(0, moved, 1, leader=1, leader_epoch=5),)),))


def test_brokers_that_start_together_are_admitted_together() -> None:
    both = led_by(1, 1, 2)
    world = image(both, brokers=[broker(1, 2), broker(2, 2)], members=[member(1, 1), member(2, 1)])
    first, second = plan(world, BrokersArrived((1, 2))).stages
    guard = (CreateRevisionIs(BROKERS.key(1), 51), CreateRevisionIs(BROKERS.key(2), 52))
    assert first == Stage((change(0, both, 1, leader_epoch=5),), guard)
    assert second == Stage((*admission(1, 2).branches, *admission(2, 2).branches), guard)
