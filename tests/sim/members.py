"""Consumer groups with members: the shipped machines of our client, in processes of their own that die and pause.

Each member is one life of a consumer (`Member`): it polls, takes its turns, reads its partitions from where its group
has committed, commits, and leaves. A `Seat` has one member after another: a life ends by leaving, by death, or because
another one with the same group instance id takes its place while it goes on; or it is stopped for a while, longer
or shorter than its session, and comes back with an epoch that may be old. What must hold is in `group_ledger.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla_broker.group.consumer.messages import ConsumerHeartbeat
from ottla_broker.group.messages import (
    Heartbeat,
    LeaveGroup,
    Leaving,
    OffsetToCommit,
    Protocol,
    SyncGroup,
)
from ottla_client.assignors import CooperativeStickyAssignor, RangeAssignor
from ottla_client.consumer_group_machine import (
    ConsumerGroupMachine,
    ConsumerGroupPolicy,
    HeartbeatAnswer,
    SendConsumerHeartbeat,
    SendConsumerLeave,
)
from ottla_client.group_effects import (
    Identity,
    JoinAnswer,
    LearnTopics,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    Turn,
)
from ottla_client.group_machine import GroupMachine, GroupPolicy
from ottla_core.errors import OffsetOutOfRange, RequestError, StaleMemberEpoch
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.ports.chance import Chance
from sim.checkers import FICKLE
from sim.group_ledger import FENCING, Commit, Hold
from sim.loop import Place, chance_for
from sim.spots import Spot
from sim.transactional import Unreached, all_in, committed_in, settled
from sim.world import GROUP_SESSION_MS, Unreachable

if TYPE_CHECKING:
    from sim.workload import Workload

_SEATS = 3
_POLL_S = 0.3
_TICK_S_MAX = 0.5
_MAX_POLL_S = 2.0
_LEAVE_S = 3.0
#: In the end: how long members try to read and to commit all that is there.
_DRAIN_S = 40.0


class MemberGroup:
    """A group, and what all its members have in common."""

    def __init__(self, workload: Workload, name: str, topics: tuple[str, ...]) -> None:
        self.workload, self.world = workload, workload.world
        self.name, self.topics = name, topics
        self.ledger = self.world.checkers.groups
        self.chance = chance_for(self.world.seed, name)
        self.is_classic = self.chance.below(2) == 0
        self.is_eager = self.chance.below(2) == 0
        self.reads_committed = self.chance.below(2) == 0
        self.seats = [Seat(self, number) for number in range(2 + self.chance.below(_SEATS - 1))]
        self.has_drained = False
        if self.reads_committed:
            self.ledger.reads_committed.add(name)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Those that are there for ever."""
        return [TopicPartition(topic, 0) for topic in self.topics if topic != FICKLE]

    def member(self, name: str, instance: str, chance: Chance) -> Member:
        return Member(self, name, instance, chance)

    def is_shared_out(self) -> bool:
        """Whether each partition is with one member, and has a position there."""
        owners = [tp for seat in self.seats if seat.member is not None for tp in seat.member.positions]
        return sorted(owners) == sorted(self.partitions)

    def is_drained(self) -> bool:
        """Whether its members have read and committed all that is there."""
        members = [seat.member for seat in self.seats]
        return self.has_drained or all(each is not None and each.is_drained for each in members)

    def picture(self) -> str:
        members = [seat.member for seat in self.seats if seat.member is not None]
        return f"{self.name}: " + ", ".join(map(str, members))

    async def run(self) -> None:
        await asyncio.gather(*(seat.run() for seat in self.seats))
        for tp in self.partitions:
            self.ledger.final[self.name, tp] = await self._final(tp)

    async def _final(self, tp: TopicPartition) -> int:
        client = Caller(self, self.name, self.chance)
        deadline = self.world.clock.monotonic() + _DRAIN_S
        while self.world.clock.monotonic() < deadline:
            offset = await client.committed(tp)
            if offset is not None:
                return offset
            await self.world.clock.sleep(0.1)
        self.world.checkers.fail(f"I17 {self.name} {tp}: its committed offset cannot be read")
        return 0


class Caller:
    """Requests to the group's coordinator, as clients send them."""

    def __init__(self, group: MemberGroup, name: str, chance: Chance) -> None:
        self.group, self.world = group, group.world
        self.name, self.chance = name, chance
        self._coordinator = NO_BROKER

    async def ask(self, question: Callable[[Any], Any], timeout_s: float = 0.0) -> Any:
        """The coordinator's answer; `Unreached` if there is none in time."""
        return (await self._ask(question, timeout_s))[1]

    async def _ask(self, question: Callable[[Any], Any], timeout_s: float = 0.0) -> tuple[int, Any]:
        """The same, and whose answer it is."""
        world, serving = self.world, self.world.serving
        timeout_s = timeout_s or 0.2 + self.chance.fraction() ** 2 * 1.5
        try:
            coordinator = self._coordinator
            if coordinator == NO_BROKER:
                asked = serving[self.chance.below(len(serving))] if serving else None
                found = await world.call(
                    asked,
                    lambda: settled(asked, lambda s: s.groups.find_coordinator(self.group.name)),
                    timeout_s,
                )
                coordinator = self._coordinator = found.id
            process = world.machines[coordinator].process
            return coordinator, await world.call(process, lambda: settled(process, question), timeout_s)
        except Unreachable as error:
            self._coordinator = NO_BROKER
            raise Unreached(str(error)) from None
        except RequestError as error:
            if error.retriable:
                self._coordinator = NO_BROKER
            world.note(f"{self.name}: {error!r}"[:120])
            raise

    async def committed(self, tp: TopicPartition) -> int | None:
        """Where to begin: 0 if nothing is committed; None if nobody says so for certain."""
        began, group = self.world.clock.monotonic(), self.group
        try:
            asked, reply = await self._ask(lambda s: s.groups.fetch(group.name, [tp], require_stable=True))
        except (Unreached, RequestError):
            return None
        (found,) = reply.offsets
        if found.error is not None or self.world.machines[asked].is_misled:
            return None
        group.ledger.on_read_back(group.name, tp, found.offset, found.metadata, began)
        return max(int(found.offset), 0)


class Member(Caller):
    """One life of a consumer, in a place of its own."""

    def __init__(self, group: MemberGroup, name: str, instance: str, chance: Chance) -> None:
        super().__init__(group, name, chance)
        self.instance = instance
        self.place = Place(name)
        self.is_leaving = False
        #: Does not poll, but its heartbeats go on.
        self.is_busy = False
        self.is_drained = False
        self.positions: dict[TopicPartition, int] = {}
        self.holds: dict[TopicPartition, Hold] = {}
        #: What was committed last, to commit it again when it is too late.
        self._before: tuple[Identity, dict[TopicPartition, tuple[Hold, int]]] | None = None
        self.machine: Any = (_ClassicShell if group.is_classic else _ConsumerShell)(self)

    def __str__(self) -> str:
        machine, places = self.machine.machine, ", ".join(f"{tp}@{at}" for tp, at in self.positions.items())
        state = f"{machine.phase.value} in {machine.identity.generation} holds {list(map(str, machine.held))}"
        return f"{self.name} is {state}, reads {places}{' and is busy' * self.is_busy}: {machine.failure}"

    @property
    def _now(self) -> float:
        return self.world.clock.monotonic()

    @property
    def identity(self) -> Identity:
        identity: Identity = self.machine.machine.identity
        return identity

    async def run(self) -> None:
        """Until it is to leave, or cannot stay in the group."""
        world, machine = self.world, self.machine.machine
        ticking = world.loop.spawn(self.place, self._tick())
        self._do(self.machine.subscribe(self.group.topics))
        while not self.is_leaving and machine.failure is None:
            if not self.is_busy:
                await self._poll()
            if self.group.workload.is_over:
                await self._drain()
            await world.clock.sleep(_POLL_S * (0.3 + self.chance.fraction()))
        await self._commit_all()
        self._release(list(self.holds))
        for effect in machine.leave(self._now, "it is time"):
            await self.machine.perform(effect)
        ticking.cancel()

    async def _tick(self) -> None:
        machine = self.machine.machine
        while True:
            when = machine.wakes_at()
            wait_s = _TICK_S_MAX if when is None else min(max(when - self._now, 0.005), _TICK_S_MAX)
            await self.world.clock.sleep(wait_s)
            self._do(machine.tick(self._now))

    def _do(self, effects: list[Any]) -> None:
        for effect in effects:
            self.world.loop.spawn(self.place, self.machine.perform(effect))

    # ------------------------------------------------------------------ polls and turns

    async def _poll(self) -> None:
        machine = self.machine.machine
        self._do(machine.poll_began(self._now))
        while (turn := machine.begin_turn()) is not None:
            await self._take(turn)
            self._do(machine.turn_done(self._now))
        for tp in list(self.holds):
            if tp not in self.positions:
                await self._locate(tp)
            if tp in self.positions:
                await self._advance(tp)
        machine.poll_ended(self._now)
        await self._after_poll()

    async def _take(self, turn: Turn) -> None:
        gone = [tp for tp in (*turn.lost, *turn.revoked) if tp in self.holds]
        if turn.revoked and self.chance.below(3):
            await self._commit_all()
        self._release(gone)
        kept = set(turn.assignment)
        self._release([tp for tp in self.holds if tp not in kept])
        for tp in turn.assignment:
            if tp in self.group.partitions and tp not in self.holds:
                self.holds[tp] = self.group.ledger.on_held(
                    self.group.name, tp, self.name, self.instance, lambda: self.identity.generation
                )
        self.world.note(f"{self.name} holds {', '.join(map(str, self.holds))} in {self.identity.generation}")

    def _release(self, tps: list[TopicPartition]) -> None:
        for tp in tps:
            self.positions.pop(tp, None)
            self.holds.pop(tp).is_over = True

    async def _locate(self, tp: TopicPartition) -> None:
        hold, offset = self.holds[tp], await self.committed(tp)
        if offset is not None and self.holds.get(tp) is hold:
            self.positions[tp] = offset
            self.group.ledger.on_moved(hold, offset)

    async def _advance(self, tp: TopicPartition) -> None:
        group, hold, position = self.group, self.holds[tp], self.positions[tp]
        trimmed = self.world.checkers.trimmed
        try:
            spot, got = await group.workload.fetched(tp, position, 0.0, read_committed=group.reads_committed)
        except OffsetOutOfRange as error:
            first = max((at for of, at in trimmed.items() if of.tp == tp), default=0)
            if position >= first:
                self.world.checkers.fail(f"I8 {tp}: {self.name} at {position} was told {error}")
                return
            self.positions[tp] = first
            group.ledger.on_moved(hold, first)
            return
        except (RequestError, Unreachable):
            return
        found, after = (committed_in if group.reads_committed else all_in)(got, position)
        group.ledger.on_polled(group.name, tp, hold, position, found, after)
        self._on_records(spot, tp, found)
        self.positions[tp] = after

    def _on_records(self, spot: Spot, tp: TopicPartition, found: dict[int, bytes]) -> None:
        checkers = self.world.checkers
        for offset, value in found.items():
            checkers.on_read(spot, offset, value)
            if self.group.reads_committed:
                checkers.transactions.on_committed_read(spot, offset, value, remembers=False)

    # ------------------------------------------------------------------ commits

    async def _after_poll(self) -> None:
        if self._before is not None and self.chance.below(8) == 0:
            await self._commit(*self._before)  # With the epoch of then, whoever has the partitions now.
        if self.chance.below(2) == 0 and not self.world.is_reading_only:
            await self._commit_all()

    async def _commit_all(self) -> bool:
        wanted = {tp: (self.holds[tp], at) for tp, at in self.positions.items() if tp in self.holds}
        if not wanted or self.identity.generation < 0:
            return not wanted
        self._before = self.identity, wanted
        return await self._commit(self.identity, wanted)

    async def _commit(self, identity: Identity, wanted: dict[TopicPartition, tuple[Hold, int]]) -> bool:
        group, ledger = self.group, self.group.ledger
        commits = {tp: ledger.on_committing(group.name, tp, hold, at) for tp, (hold, at) in wanted.items()}
        offsets = [OffsetToCommit(tp, each.offset, metadata=each.name) for tp, each in commits.items()]
        try:
            reply = await self.ask(
                lambda s: s.groups.commit(
                    group.name, identity.generation, identity.member_id, self.instance or None, offsets
                )
            )
        except Unreached:
            return False
        except RequestError as error:
            self._refused(commits, identity, error)
            return False
        for (tp, each), error in zip(commits.items(), reply.errors, strict=True):
            if error is None:
                ledger.on_committed(group.name, tp, each)
            else:
                self._refused({tp: each}, identity, error)
        return all(error is None for error in reply.errors)

    def _refused(
        self, commits: dict[TopicPartition, Commit], identity: Identity, error: RequestError
    ) -> None:
        for each in commits.values():
            self.group.ledger.on_refused(each, error)
        if isinstance(error, FENCING) and not isinstance(error, StaleMemberEpoch):
            self._do(self.machine.machine.commit_refused(identity, error, self._now))

    # ------------------------------------------------------------------ the end

    async def _drain(self) -> None:
        """Read and commit all that is there."""
        ends = {spot.tp: self.world.checkers.committed_end.get(spot, 0) for spot in self.world.states()}
        has_read = all(self.positions.get(tp, -1) >= ends[tp] for tp in self.holds)
        self.is_drained = has_read and await self._commit_all()


class _ClassicShell:
    """The calls that a classic member's machine asks for."""

    def __init__(self, member: Member) -> None:
        self._member, self._group = member, member.group
        assignor = RangeAssignor() if member.group.is_eager else CooperativeStickyAssignor()
        self.machine = GroupMachine(
            GroupPolicy(
                (assignor,),
                bool(member.instance),
                heartbeat_interval_s=0.5,
                max_poll_interval_s=_MAX_POLL_S,
                backoff_max_s=0.4,
            )
        )

    def subscribe(self, topics: tuple[str, ...]) -> list[Any]:
        return self.machine.subscribe(topics, self._member._now)

    async def perform(self, effect: Any) -> None:
        match effect:
            case SendJoin():
                await self._join(effect)
            case LearnTopics():
                self._learn(effect)
            case SendSync():
                await self._sync(effect)
            case SendHeartbeat():
                await self._beat(effect)
            case SendLeave():
                await self._leave(effect)

    async def _join(self, effect: SendJoin) -> None:
        member, machine = self._member, self.machine
        try:
            reply = await member.ask(
                lambda s: s.groups.join(
                    self._group.name,
                    effect.member_id,
                    instance_id=member.instance or None,
                    client_id=member.name,
                    client_host="",
                    protocol_type="consumer",
                    protocols=[Protocol(name, data) for name, data in effect.protocols],
                    session_timeout_ms=GROUP_SESSION_MS,
                    rebalance_timeout_ms=int(_MAX_POLL_S * 1000),
                ),
                _MAX_POLL_S + 2.0,
            )
        except (Unreached, RequestError) as error:
            member._do(machine.join_refused(effect.attempt, error, member._now))
            return
        if reply.error is not None:
            refused = machine.join_refused(effect.attempt, reply.error, member._now, reply.member_id)
            member._do(refused)
            return
        members = tuple(tuple(each) for each in reply.members)
        answer = JoinAnswer(
            reply.member_id,
            reply.generation,
            reply.leader_id,
            reply.protocol,
            members,  # type: ignore[arg-type]
            reply.skip_assignment,
        )
        member._do(machine.joined(effect.attempt, answer, member._now))

    def _learn(self, effect: LearnTopics) -> None:
        serving = self._member.world.serving
        if not serving:
            self._member._do(
                self.machine.sync_refused(effect.attempt, Unreached("nobody"), self._member._now)
            )
            return
        image = serving[self._member.chance.below(len(serving))].broker._metadata.image
        counts = {t: len(image.topics[t].partitions) for t in effect.topics if t in image.topics}
        self._member._do(self.machine.topics_learnt(effect.attempt, counts, self._member._now))

    async def _sync(self, effect: SendSync) -> None:
        member, machine = self._member, self.machine
        request = SyncGroup(
            self._group.name,
            effect.identity.generation,
            effect.identity.member_id,
            member.instance or None,
            "consumer",
            effect.protocol,
            effect.assignments,
        )
        try:
            reply = await member.ask(lambda s: s.groups.sync(request), _MAX_POLL_S + 2.0)
        except (Unreached, RequestError) as error:
            member._do(machine.sync_refused(effect.attempt, error, member._now))
            return
        member._do(machine.synced(effect.attempt, reply.assignment, member._now))

    async def _beat(self, effect: SendHeartbeat) -> None:
        member, identity = self._member, effect.identity
        request = Heartbeat(
            self._group.name, identity.generation, identity.member_id, member.instance or None
        )
        failed: Exception | None = None
        try:
            await member.ask(lambda s: s.groups.heartbeat(request))
        except (Unreached, RequestError) as error:
            failed = error
        member._do(self.machine.heartbeat_answered(identity, failed, member._now))

    async def _leave(self, effect: SendLeave) -> None:
        request = LeaveGroup(self._group.name, (Leaving(effect.member_id, None),))
        try:
            await self._member.ask(lambda s: s.groups.leave(request))
        except (Unreached, RequestError):
            return


class _ConsumerShell:
    """The heartbeats that a broker-side member's machine asks for."""

    def __init__(self, member: Member) -> None:
        self._member, self._group = member, member.group
        self.machine = ConsumerGroupMachine(
            ConsumerGroupPolicy(
                f"id-of-{member.name}",
                bool(member.instance),
                max_poll_interval_s=_MAX_POLL_S,
                backoff_max_s=0.4,
                unreleased_max_s=GROUP_SESSION_MS / 1000 + 15,
            )
        )

    def subscribe(self, topics: tuple[str, ...]) -> list[Any]:
        return self.machine.subscribe(topics, self._member._now)

    async def perform(self, effect: Any) -> None:
        match effect:
            case SendConsumerHeartbeat():
                await self._beat(effect)
            case SendConsumerLeave():
                identity = effect.identity
                request = self._request(identity)
                try:
                    await self._member.ask(lambda s: s.groups.consumer_heartbeat(request))
                except (Unreached, RequestError):
                    return

    def _request(self, identity: Identity, **more: Any) -> ConsumerHeartbeat:
        return ConsumerHeartbeat(
            self._group.name,
            identity.member_id,
            identity.generation,
            self._member.name,
            instance_id=self._member.instance or None,
            **more,
        )

    async def _beat(self, effect: SendConsumerHeartbeat) -> None:
        member, machine = self._member, self.machine
        more: dict[str, Any] = {}
        if effect.is_full:
            more.update(
                rebalance_timeout_ms=int(_MAX_POLL_S * 1000),
                topics=effect.topics,
                regex=effect.regex,
                assignor="range" if self._group.is_eager else "",
            )
        if effect.owned is not None:
            owned: dict[UUID, frozenset[int]] = {}
            for tp, topic_id in effect.owned.items():
                owned[UUID(topic_id)] = owned.get(UUID(topic_id), frozenset()) | {tp.partition}
            more["owned"] = owned
        request = self._request(effect.identity, **more)
        try:
            reply = await member.ask(lambda s: s.groups.consumer_heartbeat(request))
        except (Unreached, RequestError) as error:
            member._do(machine.heartbeat_refused(effect.attempt, error, member._now))
            return
        assigned = None
        if reply.assignment is not None:
            names = {spot.topic_id: spot.topic for spot in member.world.states()}
            assigned = {
                TopicPartition(names[topic_id], index): str(topic_id)
                for topic_id, indexes in reply.assignment.items()
                if topic_id in names
                for index in sorted(indexes)
            }
        answer = HeartbeatAnswer(
            reply.member_id, reply.member_epoch, reply.heartbeat_interval_ms / 1000, assigned
        )
        member._do(machine.heartbeat_answered(effect.attempt, answer, member._now))


class Seat:
    """One member after another."""

    def __init__(self, group: MemberGroup, number: int) -> None:
        self._group, self._world = group, group.world
        self._name = f"{group.name}-{number}"
        self._chance = chance_for(self._world.seed, self._name)
        #: A static member has one name for all its lives.
        self._instance = self._name if self._chance.below(2) else ""
        self._lives = 0
        self.member: Member | None = None
        self._task: asyncio.Task[None] | None = None
        self._zombies: list[Member] = []

    async def run(self) -> None:
        workload, clock = self._group.workload, self._world.clock
        while not workload.is_settling:
            self._sit_down()
            await self._wait(0.4 + self._chance.fraction() * 2.5)
            if not workload.is_settling:
                await self._happen()
        for zombie in self._zombies:
            zombie.place.is_dead = True
        deadline: float | None = None
        while True:
            self._sit_down()
            if workload.is_over:
                deadline = deadline or clock.monotonic() + _DRAIN_S
                if self._group.is_drained():
                    self._group.has_drained = True
                    break
                if clock.monotonic() > deadline:
                    self._world.checkers.fail(f"I9 {self._name} cannot read and commit in {_DRAIN_S:g} s")
                    return
            await clock.sleep(0.2)
        await self._get_up()

    async def _wait(self, seconds: float) -> None:
        """Not longer than the faults last."""
        until = self._world.clock.monotonic() + seconds
        while self._world.clock.monotonic() < until and not self._group.workload.is_settling:
            await self._world.clock.sleep(0.25)

    def _sit_down(self) -> None:
        if self.member is not None and self._task is not None and not self._task.done():
            return
        self._lives += 1
        name = f"{self._name}.{self._lives}"
        self.member = self._group.member(name, self._instance, chance_for(self._world.seed, name))
        self._task = self._world.loop.spawn(self.member.place, self.member.run())

    async def _happen(self) -> None:
        """What ends a life, or nearly does."""
        member, chance = self.member, self._chance
        assert member is not None
        match chance.below(6):
            case 0:
                await self._get_up()
            case 1:
                member.place.is_dead = True
                self.member = None
            case 2 | 3:
                member.place.is_stopped = True
                self._world.note(f"{member.name} is stopped")
                await self._wait(0.3 + chance.fraction() * 1.8 * GROUP_SESSION_MS / 1000)
                self._world.loop.resume(member.place)
                self._world.note(f"{member.name} goes on")
            case 4:
                member.is_busy = True
                await self._wait(0.5 + chance.fraction() * 2 * _MAX_POLL_S)
                member.is_busy = False
            case 5:
                self._zombies.append(member)  # It goes on beside the next one.
                self.member = None

    async def _get_up(self) -> None:
        member, self.member = self.member, None
        if member is not None and self._task is not None:
            member.is_leaving = True
            await asyncio.wait([self._task], timeout=_LEAVE_S)
            member.place.is_dead = not self._task.done()
