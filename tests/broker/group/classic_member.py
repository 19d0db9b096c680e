"""A member of the classic protocol as stock consumers behave: eager or cooperative, and able to lead its group."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from broker.group.consumer_driver import ConsumerDriver, topic_id
from ottla_broker.group.messages import (
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    Leaving,
    OffsetToCommit,
    Protocol,
    SyncGroup,
    SyncReply,
)
from ottla_broker.group.subscription import read_assignment, read_subscription, write_assignment
from ottla_core.errors import IllegalGeneration, RebalanceInProgress, RequestError, UnknownMemberId
from ottla_core.ids import TopicPartition

SESSION_MS = 30_000


def subscription(topics: Iterable[str], owned: Iterable[TopicPartition] = ()) -> bytes:
    """Version 1: with the owned partitions."""
    names = list(topics)
    head = struct.pack(">hi", 1, len(names)) + b"".join(struct.pack(">h", len(t)) + t.encode() for t in names)
    by_topic = write_assignment(1, owned)[2:-4]
    return head + struct.pack(">i", -1) + by_topic


@dataclass
class ClassicMember:
    driver: ConsumerDriver
    number: int
    cooperative: bool = True
    topics: tuple[str, ...] = ("t", "u")
    instance_id: str | None = None
    id: str = ""
    generation: int = -1
    owned: set[TopicPartition] = field(default_factory=set)
    #: Tickets of unanswered requests.
    joining: int | None = None
    syncing: int | None = None
    rebalances: int = 0

    # ------------------------------------------------------------------ steps

    def step(self) -> None:
        """What the client does next: take over an answer, or join, or send a heartbeat."""
        if self.joining is not None:
            self._joined()
        elif self.syncing is not None:
            self._synced()
        elif self.generation < 0:
            self.join()
        else:
            self.heartbeat()

    def join(self) -> None:
        if not self.cooperative:
            self.owned = set()  # Revoked before it joins.
        self.rebalances += 1
        name = "cooperative-sticky" if self.cooperative else "range"
        metadata = subscription(self.topics, self.owned)
        self.joining = self.driver.send(
            JoinGroup(
                "g",
                self.id,
                f"c{self.number}-{self.driver.last_ticket}",
                self.instance_id,
                "client",
                "/host",
                "consumer",
                (Protocol(name, metadata),),
                SESSION_MS,
                60_000,
            )
        )
        self._joined()

    def _joined(self) -> None:
        reply: Any = self.driver.replies.get(self.joining or 0)
        if reply is None:
            return
        self.joining = None
        if isinstance(reply, RequestError):
            self._refused(reply)
            return
        self.id = reply.member_id
        if reply.error is not None:
            self.join()
            return
        self.generation = reply.generation
        made = self._assigned(reply) if reply.leader_id == self.id else {}
        self.syncing = self.driver.send(
            SyncGroup("g", self.generation, self.id, self.instance_id, "consumer", reply.protocol, made)
        )
        self._synced()

    def _synced(self) -> None:
        reply: Any = self.driver.replies.get(self.syncing or 0)
        if reply is None:
            return
        self.syncing = None
        if isinstance(reply, RequestError):
            self._refused(reply)
            return
        assert isinstance(reply, SyncReply)
        given = set(read_assignment(reply.assignment)[0])
        lost = self.owned - given
        self.owned = given
        if lost:
            self.join()  # Revoked: it can be given to others now.

    def heartbeat(self) -> None:
        try:
            self.driver.ask(Heartbeat("g", self.generation, self.id, self.instance_id))
        except RebalanceInProgress:
            self.join()
        except RequestError as error:
            self._refused(error)

    def commit(self, tp: TopicPartition, offset: int) -> RequestError | None:
        wanted = (OffsetToCommit(tp, offset, topic_id=topic_id(tp.topic)),)
        request = CommitOffsets("g", self.generation, self.id, self.instance_id, wanted)
        try:
            self.driver.ask(request)
        except RequestError as error:
            return error
        return None

    def leave(self) -> None:
        self.driver.ask(LeaveGroup("g", (Leaving(self.id, self.instance_id),)))
        self.die()

    def die(self) -> None:
        self.owned, self.generation, self.joining, self.syncing = set(), -1, None, None

    def restart(self) -> None:
        """Another process with the same instance id."""
        self.die()
        self.id = ""

    def _refused(self, error: RequestError) -> None:
        self.generation = -1
        if isinstance(error, UnknownMemberId):
            self.owned, self.id = set(), ""
        elif isinstance(error, IllegalGeneration):
            self.owned = set()
        else:
            assert isinstance(error, RebalanceInProgress), error

    # ------------------------------------------------------------------ as leader

    def _assigned(self, reply: JoinReply) -> dict[str, bytes]:
        """Balanced, and no partition goes to a member while another one owns it."""
        counts = self.driver.counts
        owner: dict[TopicPartition, str] = {}
        wants: dict[str, set[str]] = {}
        for member in reply.members:
            told = read_subscription(member.metadata)
            wants[member.member_id] = set(told.topics)
            owner.update(dict.fromkeys(told.owned, member.member_id))
        every = sorted(TopicPartition(t, i) for t, count in counts.items() for i in range(count))
        made: dict[str, list[TopicPartition]] = {each: [] for each in wants}
        for index, tp in enumerate(every):
            takers = [each for each in sorted(wants) if tp.topic in wants[each]]
            if takers:
                chosen = takers[index % len(takers)]
                if owner.get(tp, chosen) == chosen:
                    made[chosen].append(tp)
        return {each: write_assignment(1, found) for each, found in made.items()}
