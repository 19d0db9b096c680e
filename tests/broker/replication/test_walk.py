"""Random walks over the machines alone: no loop, no disk, no network, only what they decide and in which order.

Three replicas, a store that takes compare-and-sets in any order and late, images that arrive late, streams that break
with all that is on them, elections at any moment among who is in the ISR (or the ELR, if nobody else is there).
After every step: whoever could be elected next has everything that was ever committed, and what is committed only
grows. The planted mistakes show that the walk can see.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from budget import some
from ottla_broker.metadata.image import PartitionImage
from ottla_broker.replication import leader as leader_module
from ottla_broker.replication.effects import (
    OF_PARTITION,
    AdvanceHighWatermark,
    Append,
    FollowWatermark,
    LeaderEffect,
    ProposeIsr,
    Report,
    SendFrom,
    TellDivergence,
    TellStart,
    TruncateTo,
)
from ottla_broker.replication.follower import Follower
from ottla_broker.replication.leader import Leader, OwnLog, Position
from ottla_broker.replication.lineage import EpochEnd, last_epoch, leading
from ottla_broker.replication.watermark import followed

IDS = (1, 2, 3)
LAG_S = 10.0
Record = tuple[int, int]  # epoch and a number that is never given twice


def lineage_of(log: list[Record]) -> list[tuple[int, int]]:
    return [(e, at) for at, (e, _) in enumerate(log) if at == 0 or log[at - 1][0] != e]


@dataclass
class Stream:
    """From a follower to a leader, both ways, in order; dropped as a whole."""

    up: deque[Position] = field(default_factory=deque)
    down: deque[tuple[object, ...]] = field(default_factory=deque)
    #: The next offset to send, once the leader serves it; and in which epoch.
    sending: tuple[int, int] | None = None


@dataclass
class Replica:
    id: int
    log: list[Record] = field(default_factory=list)
    high_watermark: int = 0
    image: PartitionImage = field(default_factory=lambda: PartitionImage(replicas=()))
    leader: Leader | None = None
    follower: Follower | None = None
    incarnation: UUID = field(default_factory=lambda: UUID(int=0))


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.min_insync = self.chance.choice((1, 2))
        self.revision = 1
        self.stored = PartitionImage(IDS, leader=1, leader_epoch=0, isr=IDS, revision=1)
        self.replicas = {i: Replica(i) for i in IDS}
        self.admitted = {i: UUID(int=i) for i in IDS}
        for replica in self.replicas.values():
            replica.incarnation = self.admitted[replica.id]
        self.streams: dict[tuple[int, int], Stream] = {}
        self.proposals: list[tuple[Replica, Leader, PartitionImage, ProposeIsr]] = []
        self.outcomes: list[tuple[Replica, Leader, ProposeIsr, PartitionImage]] = []
        self.committed: list[Record] = []
        self.numbers = 0
        self.elections = 0

    # ------------------------------------------------------------------ the world's steps

    def step(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.append, 6),
            (self.deliver_up, 12),
            (self.deliver_down, 12),
            (self.show_image, 6),
            (self.settle_proposal, 4),
            (self.deliver_outcome, 4),
            (self.break_stream, 1),
            (self.elect, 1),
            (self.be_born_again, 1),
            (self.tick, 2),
        ]
        self.chance.choices([s for s, _ in steps], [w for _, w in steps])[0]()
        self.check()

    def write(self, image: PartitionImage) -> None:
        self.revision += 1
        self.stored = replace(image, revision=self.revision)

    def append(self) -> None:
        leaders = [r for r in self.replicas.values() if r.leader is not None]
        if leaders:
            replica = self.chance.choice(leaders)
            assert replica.leader is not None
            self.numbers += 1
            replica.log.append((replica.leader.image.leader_epoch, self.numbers))
            self.lead(replica, replica.leader.appended(len(replica.log)))
            self.send(replica)

    def elect(self) -> None:
        """As the controller does: out of the ISR, else the ELR; the lost leave in the same write."""
        state = self.stored
        isr = [i for i in state.isr if self.chance.random() < 0.8]
        candidates = isr or list(state.elr)
        if candidates:
            chosen = self.chance.choice(candidates)
            kept = tuple(isr) if isr else (chosen,)
            left = tuple(i for i in dict.fromkeys((*state.isr, *state.elr)) if i not in kept)
            elr = () if len(kept) >= self.min_insync else left
            self.write(replace(state, leader=chosen, leader_epoch=state.leader_epoch + 1, isr=kept, elr=elr))
            self.elections += 1

    def be_born_again(self) -> None:
        """A restart with a whole log: a new incarnation, and no leadership is resumed (rule 3)."""
        replica = self.replicas[self.chance.choice(IDS)]
        if self.stored.leader == replica.id:
            return
        replica.leader = replica.follower = None
        replica.image = PartitionImage(replicas=())
        replica.incarnation = UUID(int=1000 + self.chance.randrange(1 << 30))
        self.admitted = {**self.admitted, replica.id: replica.incarnation}
        for pair in [pair for pair in self.streams if replica.id in pair]:
            self.drop(pair)
        for other in self.replicas.values():
            if other.leader is not None:
                self.lead(other, other.leader.on_members(self.admitted, self.now))

    def tick(self) -> None:
        self.now += self.chance.choice((0.1, 1.0, LAG_S + 1))
        for replica in self.replicas.values():
            if replica.leader is not None:
                self.lead(replica, replica.leader.tick(len(replica.log), self.now))

    def settle_proposal(self) -> None:
        if self.proposals:
            replica, machine, expected, wanted = self.proposals.pop(
                self.chance.randrange(len(self.proposals))
            )
            if self.stored.revision == expected.revision:
                self.write(replace(self.stored, isr=wanted.isr, elr=wanted.elr))
            self.outcomes.append((replica, machine, wanted, self.stored))

    def deliver_outcome(self) -> None:
        if self.outcomes:
            replica, machine, wanted, image = self.outcomes.pop(self.chance.randrange(len(self.outcomes)))
            if replica.leader is machine:
                self.lead(replica, machine.on_outcome(wanted, image, self.now))

    def show_image(self) -> None:
        replica = self.replicas[self.chance.choice(IDS)]
        image = self.stored
        if image.revision <= replica.image.revision:
            return
        same_epoch = image.leader_epoch == replica.image.leader_epoch and (replica.leader or replica.follower)
        replica.image = image
        if same_epoch:
            if replica.leader is not None:
                self.lead(replica, replica.leader.on_image(image, self.now))
            return
        replica.leader = replica.follower = None
        for pair in [pair for pair in self.streams if pair[1] == replica.id]:
            self.streams[pair].sending = None
        if image.leader == replica.id:
            self.drop_from(replica)
            end = len(replica.log)
            replica.leader = Leader(
                replica.id,
                image,
                now=self.now,
                epoch_start=end,
                position=end,
                high_watermark=replica.high_watermark,
                min_insync=self.min_insync,
                lag_max_s=LAG_S,
                admitted=self.admitted,
            )
            self.lead(replica, replica.leader.begun())
        else:
            replica.follower = Follower(image.leader, image.leader_epoch)
            self.connect(replica)

    # ------------------------------------------------------------------ streams

    def connect(self, replica: Replica) -> None:
        assert replica.follower is not None
        pair = (replica.id, replica.follower.leader)
        self.drop(pair)
        self.streams[pair] = Stream()
        replica.follower.on_stream()
        self.report(replica, wants=True)

    def drop(self, pair: tuple[int, int]) -> None:
        if self.streams.pop(pair, None) is not None:
            led = self.replicas[pair[1]]
            if led.leader is not None:
                self.lead(led, led.leader.on_stream_lost(pair[0], len(led.log), self.now))

    def drop_from(self, replica: Replica) -> None:
        for pair in [pair for pair in self.streams if pair[0] == replica.id]:
            self.drop(pair)

    def break_stream(self) -> None:
        if self.streams:
            pair = self.chance.choice(list(self.streams))
            self.drop(pair)
            follower = self.replicas[pair[0]]
            if follower.follower is not None and follower.follower.leader == pair[1]:
                self.connect(follower)

    def report(self, replica: Replica, wants: bool) -> None:
        assert replica.follower is not None
        end = len(replica.log)
        stream = self.streams[replica.id, replica.follower.leader]
        stream.up.append(
            Position(
                replica.id,
                replica.incarnation,
                replica.follower.leader_epoch,
                last_epoch(lineage_of(replica.log), end),
                end,
                end,
                wants,
            )
        )

    def deliver_up(self) -> None:
        pairs = [pair for pair, stream in self.streams.items() if stream.up]
        if not pairs:
            return
        pair = self.chance.choice(pairs)
        stream, replica = self.streams[pair], self.replicas[pair[1]]
        said = stream.up[0]
        machine = replica.leader
        if machine is None or machine.image.leader_epoch < said.leader_epoch:
            if replica.image.leader_epoch <= said.leader_epoch:
                return  # It waits for the leader to learn of its epoch.
            stream.up.popleft()
            return
        stream.up.popleft()
        end = len(replica.log)
        own = OwnLog(
            0, end, leading(lineage_of(replica.log), machine.image.leader_epoch, machine.epoch_start)
        )
        for effect in self.lead(replica, machine.on_position(said, own, self.now)):
            epoch = machine.image.leader_epoch
            if isinstance(effect, SendFrom):
                stream.sending = (epoch, effect.offset)
            elif isinstance(effect, TellDivergence):
                stream.sending = None
                stream.down.append(("diverged", epoch, effect.epoch, effect.end_offset))
            else:
                assert not isinstance(effect, TellStart)
        self.send(replica)

    def send(self, replica: Replica) -> None:
        machine = replica.leader
        if machine is None:
            return
        for pair, stream in self.streams.items():
            if pair[1] == replica.id and stream.sending is not None:
                epoch, offset = stream.sending
                if epoch == machine.image.leader_epoch:
                    records = replica.log[offset:]
                    stream.down.append(("batches", epoch, offset, records, machine.high_watermark))
                    stream.sending = (epoch, len(replica.log))

    def deliver_down(self) -> None:
        pairs = [pair for pair, stream in self.streams.items() if stream.down]
        if not pairs:
            return
        pair = self.chance.choice(pairs)
        frame = self.streams[pair].down.popleft()
        replica = self.replicas[pair[0]]
        machine = replica.follower
        if machine is None or machine.leader != pair[1]:
            return
        records: list[Record] = []
        if frame[0] == "batches":
            _, epoch, offset, records, mark = frame  # type: ignore[assignment]
            effects = machine.on_batches(epoch, offset, len(records), mark, 0, len(replica.log))  # type: ignore[arg-type]
        else:
            _, epoch, told_epoch, told_end = frame
            told = EpochEnd(told_epoch, told_end)  # type: ignore[arg-type]
            effects = machine.on_divergence(epoch, told, 0, lineage_of(replica.log), len(replica.log))  # type: ignore[arg-type]
        for effect in effects:
            if isinstance(effect, Append):
                replica.log += records
            elif isinstance(effect, TruncateTo):
                del replica.log[effect.offset :]
                replica.high_watermark = min(replica.high_watermark, len(replica.log))
            elif isinstance(effect, FollowWatermark):
                replica.high_watermark = followed(
                    replica.high_watermark, effect.high_watermark, len(replica.log)
                )
            elif isinstance(effect, Report):
                self.report(replica, effect.wants)

    # ------------------------------------------------------------------ what has to hold

    def lead(self, replica: Replica, effects: list[LeaderEffect]) -> list[LeaderEffect]:
        machine = replica.leader
        assert machine is not None
        left: list[LeaderEffect] = []
        for effect in effects:
            assert not (left and isinstance(effect, OF_PARTITION)), "effects are out of order"
            if isinstance(effect, AdvanceHighWatermark):
                assert effect.offset >= replica.high_watermark, "the high watermark went back"
                replica.high_watermark = effect.offset
                shown = replica.log[: effect.offset]
                short = min(len(shown), len(self.committed))
                assert shown[:short] == self.committed[:short], "two histories were committed"
                if len(shown) > len(self.committed):
                    self.committed = shown
            elif isinstance(effect, ProposeIsr):
                self.proposals.append((replica, machine, machine.image, effect))
            else:
                left.append(effect)
        return left

    def check(self) -> None:
        for broker_id in (*self.stored.isr, *self.stored.elr):
            log = self.replicas[broker_id].log
            assert log[: len(self.committed)] == self.committed, (
                f"{broker_id} may be elected and lacks a record"
            )


def walk(seed: int, steps: int = 400) -> Walk:
    world = Walk(seed)
    for _ in range(steps):
        world.step()
    return world


def test_every_electable_replica_has_all_committed_records() -> None:
    worlds = [walk(seed) for seed in some(range(150))]
    # The walk is worth something only if it goes somewhere.
    assert sum(len(world.committed) for world in worlds) > 13 * len(worlds)
    assert sum(world.elections for world in worlds) > 6 * len(worlds)


def _any_seed_fails(seeds: int = 150) -> bool:
    for seed in range(seeds):
        try:
            walk(seed)
        except AssertionError:
            return True
    return False


def _only_the_new_set_counts(
    current: int,
    positions: dict[int, int],
    isr: tuple[int, ...],
    proposed: tuple[int, ...] | None,
    needed: int,
) -> int:
    counted = isr if proposed is None else proposed
    return max(current, min(positions.get(b, -1) for b in counted)) if len(counted) >= needed else current


def _only_the_old_set_counts(
    current: int,
    positions: dict[int, int],
    isr: tuple[int, ...],
    proposed: tuple[int, ...] | None,
    needed: int,
) -> int:
    return max(current, min(positions.get(b, -1) for b in isr)) if len(isr) >= needed else current


def _everybody_is_ready(self: Leader, broker_id: int) -> bool:
    return self.positions.get(broker_id, -1) >= 0


def _everything_agrees(entries: object, log_end: int, epoch: int, end_offset: int) -> None:
    return None


def _any_answer_is_the_answer(
    self: Leader, proposal: ProposeIsr, image: PartitionImage | None, now: float
) -> list[LeaderEffect]:
    """As it once was: found by this walk."""
    if image is None or self.proposed is None or image.leader_epoch != self.image.leader_epoch:
        return []
    if image.revision == self.image.revision:
        self.proposed = None
        return self._advance()
    return self.on_image(image, now)


@pytest.mark.parametrize(
    ("where", "name", "mistake"),
    [
        pytest.param(
            leader_module, "committed", _only_the_new_set_counts, id="rule 6: only the proposed set"
        ),
        pytest.param(leader_module, "committed", _only_the_old_set_counts, id="rule 6: only the present set"),
        pytest.param(
            Leader, "on_outcome", _any_answer_is_the_answer, id="rule 6: an earlier proposal's answer"
        ),
        pytest.param(Leader, "_is_ready", _everybody_is_ready, id="rule 8: enters wherever it is"),
        pytest.param(leader_module, "agrees", _everything_agrees, id="rule 9: positions are not compared"),
    ],
)
def test_a_planted_mistake_is_seen(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, mistake: object
) -> None:
    monkeypatch.setattr(where, name, mistake)
    assert _any_seed_fails()
