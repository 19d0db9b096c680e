"""Groups with members of both protocols under random events: one owner per partition, and all owned in the end."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.group.classic_member import ClassicMember
from broker.group.consumer_driver import ConsumerDriver, ModelMember
from budget import examples
from ottla_broker.group.consumer.partitions import each
from ottla_broker.group.messages import State
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

NUMBERS = st.integers(0, 5)


class Members(RuleBasedStateMachine):
    """Members 0 to 5, each of either protocol; the classic ones are all cooperative, or all eager."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerDriver({"t": 4})
        self.members: dict[int, ModelMember | ClassicMember] = {}
        self.joined = 0
        self.cooperative = True
        self.committed: dict[TopicPartition, int] = {}

    @initialize(cooperative=st.booleans())
    def choose(self, cooperative: bool) -> None:
        self.cooperative = cooperative

    # ------------------------------------------------------------------ members

    @rule(number=NUMBERS, static=st.booleans())
    def join_classic(self, number: int, static: bool) -> None:
        if number not in self.members:
            self.joined += 1
            member = ClassicMember(self.driver, self.joined, self.cooperative)
            member.instance_id = f"i{number}-{self.joined}" if static else None
            self.members[number] = member
            member.step()

    @rule(number=NUMBERS, static=st.booleans())
    def join_consumer(self, number: int, static: bool) -> None:
        if number not in self.members:
            self.joined += 1
            member = ModelMember(f"m{self.joined}", ("t", "u"))
            member.instance_id = f"i{number}-{self.joined}" if static else None
            self.members[number] = member
            assert self.driver.beat(member) is None

    @rule(number=NUMBERS)
    def step(self, number: int) -> None:
        member = self.members.get(number)
        if member is not None:
            self.step_of(member)

    def step_of(self, member: ModelMember | ClassicMember) -> None:
        if isinstance(member, ClassicMember):
            member.step()
        elif self.driver.beat(member) is not None:
            member.epoch, member.owned = 0, {}  # Fenced: it gives up everything, and joins again.

    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        member = self.members.pop(number, None)
        if isinstance(member, ClassicMember):
            member.leave()
        elif member is not None and member.epoch:
            try:
                self.driver.leave(member)
            except RequestError:
                pass  # It had been removed.

    @rule(number=NUMBERS, to_classic=st.booleans())
    def restart_as_the_other_kind(self, number: int, to_classic: bool) -> None:
        """A rolling upgrade or downgrade of a static member."""
        member = self.members.get(number)
        if member is None or member.instance_id is None or to_classic == isinstance(member, ClassicMember):
            return
        self.joined += 1
        made: ModelMember | ClassicMember
        if isinstance(member, ClassicMember):
            member.die()
            made = ModelMember(f"m{self.joined}", ("t", "u"), None, member.instance_id)
            assert self.driver.beat(made) is None
        else:
            if member.epoch:
                self.driver.leave(member, -2)
            made = ClassicMember(self.driver, self.joined, self.cooperative, instance_id=member.instance_id)
            made.step()
        self.members[number] = made

    @rule(number=NUMBERS)
    def restart_static(self, number: int) -> None:
        member = self.members.get(number)
        if isinstance(member, ClassicMember) and member.instance_id is not None:
            member.restart()
            member.step()

    @rule(number=NUMBERS)
    def die(self, number: int) -> None:
        member = self.members.pop(number, None)
        if member is not None:
            for _ in range(26):
                self.driver.pass_time(5_000)
                for other in self.members.values():
                    self.step_of(other)

    # ------------------------------------------------------------------ the cluster

    @rule(topic=st.sampled_from("tu"), more=st.integers(1, 3))
    def grow(self, topic: str, more: int) -> None:
        counts = self.driver.counts
        self.driver.show({**counts, topic: counts.get(topic, 0) + more})

    @rule()
    def change_coordinator(self) -> None:
        counts = self.driver.counts
        self.driver.reload()
        self.driver.show(counts)
        for member in self.members.values():
            if isinstance(member, ClassicMember) and (member.joining or member.syncing):
                member.joining = member.syncing = None  # Its connection broke; it joins again.
                member.generation = -1

    @rule(number=NUMBERS)
    def commit(self, number: int) -> None:
        member = self.members.get(number)
        if isinstance(member, ClassicMember) and member.owned and member.joining is None:
            tp = min(member.owned)
            offset = self.committed.get(tp, 0) + 1
            if member.commit(tp, offset) is None:
                self.committed[tp] = offset

    # ------------------------------------------------------------------ checks

    @precondition(lambda self: self.members)
    @rule()
    def settle(self) -> None:
        for _ in range(40):
            self.driver.pass_time(1_000)
            for member in self.members.values():
                self.step_of(member)
        driver, kinds = self.driver, {type(member) for member in self.members.values()}
        is_classic = kinds == {ClassicMember}
        assert ("g" in driver.shard.groups, "g" in driver.shard.consumers) == (is_classic, not is_classic)
        group = driver.shard.groups["g"] if is_classic else driver.group_of()
        if len(group.members) == len(self.members):
            assert group.state is State.STABLE
            owned = Counter(self.owned())
            assert set(owned.values()) == {1}
            # The leader of a classic group looks for new partitions on its own, which this model does not.
            assert is_classic or len(owned) == sum(driver.counts.values())

    def owned(self) -> list[TopicPartition]:
        names = self.driver.shard.consumers.image.names_by_id  # type: ignore[union-attr]
        found: list[TopicPartition] = []
        for member in self.members.values():
            if isinstance(member, ClassicMember):
                found += member.owned
            else:
                found += [TopicPartition(names[topic], index) for topic, index in each(member.owned)]
        return found

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = Counter(self.owned())
        assert not owned or max(owned.values()) == 1, owned

    @invariant()
    def offsets_are_kept(self) -> None:
        for tp, offset in self.committed.items():
            assert self.driver.shard.offsets.of("g")[tp].offset == offset


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
