"""Broker-side groups under random events: one owner per partition, all owned in the end, no needless stops."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.group.consumer_driver import ConsumerDriver, ModelMember, topic_id
from budget import examples
from ottla_broker.group.consumer.group import ConsumerGroup
from ottla_broker.group.consumer.partitions import each
from ottla_broker.group.messages import State
from ottla_core.errors import RequestError

NUMBERS = st.integers(0, 4)


def held(group: ConsumerGroup) -> object:
    members = {m.id: (m.metadata, m.target, m.current) for m in group.members.values()}
    return group.epoch, group.target_epoch, group.metadata_hash, members, group.static, group.regexes


class Watched(ConsumerDriver):
    """Watches from when on each member has each partition, without a break."""

    def __init__(self, counts: dict[str, int]) -> None:
        #: By member and partition: the member's epoch when it got it.
        self.got: dict[tuple[str, UUID, int], int] = {}
        #: The epochs that each member was told.
        self.told: dict[str, list[int]] = {}
        super().__init__(counts)

    def beat(self, member: ModelMember, *, lose_reply: bool = False, **changes: Any) -> RequestError | None:
        joins = member.epoch == 0
        error = super().beat(member, lose_reply=lose_reply, **changes)
        if error is None and joins:  # It begins without partitions, whatever it had.
            epoch = self.group_of().members[member.id].current.epoch
            self.got |= {key: epoch for key in self.got if key[0] == member.id}
        if error is None and not lose_reply:
            self.told.setdefault(member.id, []).append(member.epoch)
        return error

    def _carry_out(self, decision: Any) -> None:
        super()._carry_out(decision)
        group = self.shard.consumers.get("g")
        held = {
            (member.id, *place): max(member.current.epoch, 0)
            for member in (group.members.values() if group is not None else ())
            for partitions in (member.current.assigned, member.current.revoking)
            for place in each(partitions)
        }
        self.got = {key: self.got.get(key, epoch) for key, epoch in held.items()}


class Members(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counts = {"t": 3}
        self.driver = Watched(self.counts)
        self.members: dict[int, ModelMember] = {}
        self.joined = 0

    @rule(number=NUMBERS, regex=st.booleans(), static=st.booleans())
    def join(self, number: int, regex: bool, static: bool) -> None:
        if number not in self.members:
            self.joined += 1
            member = ModelMember(f"m{self.joined}", None if regex else ("t", "u"), ".*" if regex else None)
            member.instance_id = f"i{self.joined}" if static else None
            assert self.driver.beat(member) is None
            self.members[number] = member

    @rule(number=NUMBERS, lost=st.booleans())
    def heartbeat(self, number: int, lost: bool) -> None:
        member = self.members.get(number)
        if member is not None and self.driver.beat(member, lose_reply=lost) is not None:
            member.epoch, member.owned = 0, {}  # Fenced: it gives up everything, and joins again.

    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        member = self.members.pop(number, None)
        if member is not None:
            self.driver.leave(member)

    @rule(number=NUMBERS)
    def restart_static(self, number: int) -> None:
        member = self.members.get(number)
        if member is not None and member.instance_id is not None and member.epoch > 0:
            self.driver.leave(member, -2)
            self.joined += 1
            member.id = f"m{self.joined}"
            assert self.driver.beat(member) is None

    @rule(number=NUMBERS)
    def die(self, number: int) -> None:
        if self.members.pop(number, None) is not None:
            for _ in range(10):
                self.driver.pass_time(5_000)
                for member in self.members.values():
                    if self.driver.beat(member) is not None:
                        member.epoch, member.owned = 0, {}

    @rule(topic=st.sampled_from("tu"), more=st.integers(1, 3))
    def grow(self, topic: str, more: int) -> None:
        self.counts = {**self.counts, topic: self.counts.get(topic, 0) + more}
        self.driver.show(self.counts)

    @precondition(lambda self: self.driver.told)
    @rule(data=st.data(), topic=st.sampled_from("tu"), index=st.integers(0, 5))
    def commit_with_an_epoch_that_was_told(self, data: st.DataObject, topic: str, index: int) -> None:
        """Of the past, only what the member has had since then: so nobody else's commit is overwritten."""
        name = data.draw(st.sampled_from(sorted(self.driver.told)))
        epoch = data.draw(st.sampled_from(sorted(set(self.driver.told[name]))))
        member = self.driver.group_of().members.get(name)
        own = member.current.epoch if member is not None else -1
        has = {(found, number) for owner, found, number in self.driver.got if owner == name}
        for found, number in {*has, (topic_id(topic), index)}:
            since = self.driver.got.get((name, found, number))
            kept = since is not None and since <= epoch < own
            asked = "t" if found == topic_id("t") else "u"
            assert self.driver.commits(name, epoch, number, topic=asked) == (epoch == own or kept)

    @rule()
    def change_coordinator(self) -> None:
        self.driver.reload()
        self.driver.show(self.counts)

    @precondition(lambda self: self.members)
    @rule()
    def settle(self) -> None:
        members = list(self.members.values())
        for _ in range(12):
            for member in members:
                if self.driver.beat(member) is not None:
                    member.epoch, member.owned = 0, {}
        group = self.driver.group_of()
        if len(group.members) == len(members):
            owned = Counter(place for member in members for place in each(member.owned))
            assert set(owned.values()) == {1}
            assert len(owned) == sum(self.counts.values())
            assert group.state is State.STABLE
            before = [member.revocations for member in members]
            assert [m.epoch for m in members] == [group.epoch] * len(members)
            for member in members:
                self.driver.beat(member)
            assert [member.revocations for member in members] == before

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = Counter(place for member in self.members.values() for place in each(member.owned))
        assert not owned or max(owned.values()) == 1

    @invariant()
    def a_member_has_its_partitions_since_it_got_them(self) -> None:
        for (name, topic, index), got in self.driver.got.items():
            since = self.driver.group_of().members[name].current.has_since(topic, index)
            assert since is not None
            told = self.driver.told.get(name, ())
            assert [epoch for epoch in told if since <= epoch] == [epoch for epoch in told if got <= epoch]

    @invariant()
    def replay_gives_the_state(self) -> None:
        if "g" in self.driver.shard.consumers:
            now = held(self.driver.group_of())
            assert held(self.driver.replayed(self.driver.log)) == now
            last = {entry.key: entry for entry in self.driver.log}  # type: ignore[union-attr]
            compacted = [entry for entry in self.driver.log if last[entry.key] is entry]  # type: ignore[union-attr]
            assert held(self.driver.replayed(compacted)) == now


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
