"""A shard of groups with a clock that the test turns: requests in, replies out, as the runtime would do it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ottla_broker.coordination.metadata_change import MetadataChange
from ottla_broker.coordination.shard import Decision, Entry, Now, replay_entry
from ottla_broker.group.member_memory import MEMBER_BYTES
from ottla_broker.group.messages import (
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Leaving,
    OffsetToCommit,
    Protocol,
    State,
    SyncGroup,
)
from ottla_broker.group.shard import GroupShard
from ottla_broker.group_config import NO_SETTINGS, GroupSettings
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import GroupsProbe
from ottla_core.assignors.model import Assignor
from ottla_core.assignors.registry import BUILT_IN
from ottla_core.errors import RequestError
from ottla_core.ids import TopicPartition

WALL_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str) -> bytes:
    """What a consumer says about itself, version 0."""
    named = b"".join(struct.pack(">h", len(t)) + t.encode() for t in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


def check_memory(shard: GroupShard) -> None:
    """The bytes of members and pending ids are counted exactly."""
    held = sum(m.held_bytes for g in shard.groups.values() for m in g.members.values())
    held += sum(MEMBER_BYTES + len(each) for g in shard.groups.values() for each in g.pending)
    held += sum(m.metadata.held_bytes for g in shard.consumers for m in g.members.values())
    assert shard.memory.bytes == held


class GroupDriver:
    assignors: Mapping[str, Assignor] = BUILT_IN

    def __init__(self, delay_ms: int = 0, **settings: str) -> None:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self.settings = GroupsConfig() if not named else _settings(named)
        self.settings = _with_delay(self.settings, delay_ms)
        self.probe = GroupsProbe()
        #: What is set for groups, by id.
        self.group_settings: dict[str, GroupSettings] = {}
        self.shard = self.new_shard()
        self.now_ms = 0
        self.log: list[Entry] = []
        self.replies: dict[int, Any] = {}
        self.last_ticket = 0
        self.names = 0
        self._carry_out(self.shard.loaded(self.now))

    def new_shard(self) -> GroupShard:
        return GroupShard(
            self.settings,
            self.probe,
            record_bytes_max=100_000,
            settings_of=lambda group: self.group_settings.get(group, NO_SETTINGS),
            assignors=self.assignors,
        )

    @property
    def now(self) -> Now:
        return Now(WALL_MS + self.now_ms, self.now_ms)

    # ------------------------------------------------------------------ running

    def send(self, request: Any) -> int:
        """Hand in a request; what is refused at once is its reply."""
        self.last_ticket += 1
        ticket = self.last_ticket
        try:
            decision = self.shard.handle(request, ticket, self.now)
        except RequestError as error:
            self.replies[ticket] = error
        else:
            self._carry_out(decision)
        return ticket

    def ask(self, request: Any) -> Any:
        """The reply, which has to be there at once; refusals are raised."""
        reply = self.replies[self.send(request)]
        if isinstance(reply, RequestError):
            raise reply
        return reply

    def append(self, entry: Entry) -> None:
        """Write an entry that another part of the broker decided on."""
        self._carry_out(Decision([entry]))

    def see(self, image: ClusterImage, before: ClusterImage | None = None) -> None:
        """Show the shard a new cluster image."""
        self._carry_out(self.shard.on_metadata(MetadataChange(before, image), self.now))

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (next_ms := self.shard.timers.next_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self._carry_out(self.shard.expire(self.now))
        self.now_ms = end_ms

    def _carry_out(self, decision: Decision) -> None:
        for record in decision.records:
            replay_entry(self.shard, record)
            self.log.append(record)
        for ticket, reply in decision.replies:
            assert ticket not in self.replies, f"ticket {ticket} is answered twice"
            self.replies[ticket] = reply
        for group in self.shard.groups.values():
            group.validate()
        check_memory(self.shard)

    def reload(self) -> None:
        """A new coordinator takes over: everything that no record holds is gone."""
        self.shard = self.new_shard()
        for record in self.log:
            replay_entry(self.shard, record)
        self._carry_out(self.shard.loaded(self.now))

    # ------------------------------------------------------------------ what members do

    def join_request(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", subscription("t")),),
        protocol_type: str = "consumer",
        id_first: bool = False,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        can_skip: bool = True,
    ) -> JoinGroup:
        self.names += 1
        return JoinGroup(
            group,
            member_id,
            f"m{self.names}",
            instance,
            "client",
            "/127.0.0.1",
            protocol_type,
            tuple(Protocol(*each) for each in protocols),
            session_ms,
            rebalance_ms,
            id_first,
            can_skip,
        )

    def join(self, member_id: str = "", **more: Any) -> int:
        return self.send(self.join_request(member_id, **more))

    def joined(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply), reply
        return reply

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any
    ) -> int:
        fields = {"instance_id": None, "protocol_type": None, "protocol": None, **more}
        return self.send(SyncGroup("g", generation, member_id, assignments=assignments or {}, **fields))

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> Any:
        return self.ask(Heartbeat("g", generation, member_id, instance))

    def leave(self, *members: str | tuple[str, str]) -> Any:
        leaving = (Leaving(*m) if isinstance(m, tuple) else Leaving(m, None) for m in members)
        return self.ask(LeaveGroup("g", tuple(leaving)))

    def commit(
        self, member_id: str = "", generation: int = -1, *, offset: int = 7, topic: str = "t", **more: Any
    ) -> Any:
        wanted = OffsetToCommit(TopicPartition(topic, 0), offset)
        fields = {"group": "g", "instance_id": None, "offsets": (wanted,), **more}
        return self.ask(CommitOffsets(generation=generation, member_id=member_id, **fields))

    @property
    def group(self) -> Any:
        return self.shard.groups["g"]

    @property
    def state(self) -> State:
        found: State = self.group.state
        return found

    def stable(self, count: int = 1, **more: Any) -> list[str]:
        """A stable group of that many members, the first of which leads; gives their ids."""
        ids: list[str] = []
        for number in range(count):
            tickets = [self.join(**more)] + [self.join(each, **more) for each in ids]
            ids.append(self.joined(tickets[0]).member_id)
            assert self.joined(tickets[-1]).generation == number + 1
        generation = self.group.generation
        leader = self.group.leader_id
        for each in ids:
            if each != leader:
                self.sync(each, generation)
        self.sync(leader, generation, {each: each.encode() for each in ids})
        assert self.state is State.STABLE
        return ids


def _settings(named: dict[str, str]) -> GroupsConfig:
    from ottla_broker.config import BrokerConfig

    return BrokerConfig.of(named).groups


def _with_delay(settings: GroupsConfig, delay_ms: int) -> GroupsConfig:
    from dataclasses import replace

    return replace(settings, initial_rebalance_delay_ms=delay_ms)
