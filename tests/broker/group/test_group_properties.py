"""Members that do as they please, while time passes and coordinators change: what must hold whatever happens.

* P1: generations only grow, and one generation has one assignment: no partition has two owners in it.
* P2: what a member is told of its assignment was written down first (replaying the log gives the same group).
* P3: nobody is stuck: every request is answered in time, and when members behave, the group becomes stable with all
  of them in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.group.group_driver import GroupDriver, subscription
from budget import examples
from ottla_broker.group.messages import Heartbeat, JoinReply, State, SyncReply
from ottla_core.errors import (
    FencedInstanceId,
    IllegalGeneration,
    MemberIdRequired,
    RebalanceInProgress,
    RequestError,
    UnknownMemberId,
)

SESSION_MS = 6_000
REBALANCE_MS = 15_000
#: A new member whose connection broke is given up after five minutes; nothing waits longer.
LONGEST_MS = 320_000


@dataclass
class Client:
    """A consumer as the protocol wants it: one request at a time, and it does what it is told."""

    driver: GroupDriver
    instance: str | None
    id_first: bool
    topics: tuple[str, ...] = ("t",)
    member_id: str = ""
    generation: int = -1
    ticket: int | None = None
    doing: str = "join"
    alive: bool = True
    members: list[str] = field(default_factory=list)
    owns: bytes | None = None

    def step(self) -> None:
        """Take the answer if there is one, then send what comes next."""
        if self.ticket is not None:
            if self.ticket not in self.driver.replies:
                return
            reply, self.ticket = self.driver.replies[self.ticket], None
            self.take(reply)
        if self.alive:
            self.send()

    def send(self) -> None:
        driver = self.driver
        if self.doing == "join":
            self.owns = None
            self.ticket = driver.join(
                self.member_id,
                instance=self.instance,
                id_first=self.id_first,
                protocols=(("range", subscription(*self.topics)),),
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
            )
        elif self.doing == "sync":
            made = {each: f"{self.generation}:{each}".encode() for each in self.members}
            self.ticket = driver.sync(self.member_id, self.generation, made, instance_id=self.instance)
        else:
            beat = Heartbeat("g", self.generation, self.member_id, self.instance)
            self.ticket = driver.send(beat)

    def take(self, reply: Any) -> None:
        if isinstance(reply, JoinReply) and reply.error is None:
            self.member_id, self.generation = reply.member_id, reply.generation
            self.members = [m.member_id for m in reply.members] if not reply.skip_assignment else []
            self.doing = "sync"
        elif isinstance(reply, JoinReply):
            assert isinstance(reply.error, MemberIdRequired)
            self.member_id = reply.member_id
        elif isinstance(reply, SyncReply):
            self.doing, self.owns = "beat", reply.assignment
            self.driver.told.append((self.generation, self.member_id, reply.assignment))  # type: ignore[attr-defined]
        elif isinstance(reply, UnknownMemberId):
            self.member_id, self.doing = "", "join"
        elif isinstance(reply, FencedInstanceId):
            self.alive = False
        elif isinstance(reply, RebalanceInProgress | IllegalGeneration):
            self.doing = "join"
        elif isinstance(reply, RequestError):
            raise AssertionError(f"{self.doing}: {reply!r}")


class World:
    def __init__(self, delay_ms: int) -> None:
        self.driver = GroupDriver(delay_ms=delay_ms)
        self.driver.told = []  # type: ignore[attr-defined]
        self.clients: list[Client] = []
        self.highest = 0
        self.sent_at: dict[int, int] = {}

    def check(self) -> None:
        driver = self.driver
        for ticket in range(1, driver.last_ticket + 1):
            if ticket not in driver.replies and ticket in self.sent_at:
                waited_ms = driver.now_ms - self.sent_at[ticket]
                assert waited_ms <= LONGEST_MS, f"P3: request {ticket} waits for {waited_ms} ms"
            self.sent_at.setdefault(ticket, driver.now_ms)
        group = driver.shard.groups.get("g")
        if group is None:
            return
        assert group.generation >= self.highest, "P1"
        self.highest = group.generation
        told: dict[tuple[int, str], bytes] = {}
        for generation, member_id, assignment in driver.told:  # type: ignore[attr-defined]
            assert told.setdefault((generation, member_id), assignment) == assignment, "P1"

    def check_log(self) -> None:
        driver = self.driver
        twin = driver.new_shard()
        for record in driver.log:
            twin.replay(record)
        group, copy = driver.shard.groups.get("g"), twin.groups.get("g")
        if group is None or copy is None:
            assert group is None or group.generation == 0 or group.state is not State.STABLE
            return
        if group.state in (State.STABLE, State.EMPTY) and group.generation:
            assignments = [{m.id: m.assignment for m in g.members.values()} for g in (group, copy)]
            assert group.to_value(assignments[0]) == copy.to_value(assignments[1]), "P2"

    def tick(self, ms: int) -> None:
        for client in self.clients:
            client.step()
        self.driver.pass_time(ms)
        self.check()

    def reload(self) -> None:
        """A new coordinator: requests that waited in the old one have failed, and clients ask again."""
        self.driver.reload()
        self.highest = 0 if "g" not in self.driver.shard.groups else self.driver.group.generation
        for client in self.clients:
            if client.ticket is not None and client.ticket not in self.driver.replies:
                self.sent_at.pop(client.ticket, None)
                self.driver.replies[client.ticket] = None
                client.ticket = None

    def settle(self) -> None:
        """P3: with everybody behaving, the group gets there."""
        for _ in range(2 * LONGEST_MS // 1000):
            self.tick(1000)
            group = self.driver.shard.groups.get("g")
            alive = sorted(c.member_id for c in self.clients if c.alive)
            if not alive:
                if group is None or group.state is State.EMPTY:
                    return
            elif (
                group is not None
                and group.state is State.STABLE
                and sorted(group.members) == alive
                and all(
                    c.owns is not None and c.generation == group.generation for c in self.clients if c.alive
                )
            ):
                return
        raise AssertionError(f"P3: {group and group.described()} but alive are {alive}")


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.sampled_from(["", "", "a", "b"]), st.booleans()),
        st.tuples(st.just("crash"), st.integers(0, 7), st.just(False)),
        st.tuples(st.just("leave"), st.integers(0, 7), st.just(False)),
        st.tuples(st.just("change"), st.integers(0, 7), st.just(False)),
        st.tuples(st.just("wait"), st.sampled_from([1, 500, 3000, 7000, 20_000]), st.booleans()),
        st.tuples(st.just("reload"), st.just(0), st.just(False)),
    ),
    max_size=30,
)


@given(Steps, st.sampled_from([0, 3000]))
@settings(max_examples=examples(150), deadline=None)
def test_whatever_members_do(steps: list[tuple[str, Any, bool]], delay_ms: int) -> None:
    world = World(delay_ms)
    for what, which, flag in steps:
        alive = [c for c in world.clients if c.alive]
        if what == "new":
            world.clients.append(Client(world.driver, which or None, id_first=flag))
        elif what == "reload":
            world.reload()
        elif what == "wait":
            for _ in range(1 if flag else 4):
                world.tick(which if flag else which // 4 or 1)
        elif alive:
            _disturb(world, alive[which % len(alive)], what)
        world.tick(1)
        world.check_log()
    world.settle()


def _disturb(world: World, client: Client, what: str) -> None:
    if what == "change":
        client.topics = (*client.topics, "u")
        client.doing = "join" if client.ticket is None else client.doing
        return
    if what == "leave" and client.member_id:
        leaving = (client.member_id, client.instance) if client.instance else client.member_id
        world.driver.leave(leaving)
    client.alive = False
