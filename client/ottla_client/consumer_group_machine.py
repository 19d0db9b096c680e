"""State machine of a member of a broker-side group (KIP-848): heartbeats, reconciliation, fencing. [P]

Theory of operation.

    OUT ──first poll──> JOINING ──heartbeat with epoch 0──> MEMBER ──no poll, left──> OUT
                           ^                                  │
                           └── fenced or removed: all is lost ┘

The coordinator assigns. Each response may carry the whole assignment of this member; the machine moves the user there
in *turns* inside a poll, as `group_machine` does: first a turn that revokes what is not in it, then one that
adds the rest. After each turn a heartbeat reports the held partitions at once, so that others can get what was revoked.
Heartbeats never wait for a turn: the member stays in the group while the user processes records.

A heartbeat carries only what changed, or everything: when joining, after an error or a lost response, and when the
subscription changes. The response to the latter has the assignment, so nothing that got lost stays lost.

Invariants:
C1. At most one heartbeat is in flight, and responses to older ones change nothing.
C2. Held partitions change in turns only, and the user never holds a partition that the last assignment lacks,
    except until its revoking turn is done.
C3. The reported partitions are those that the user holds: a partition is never reported as revoked while it is read.
C4. A fenced member holds nothing when it joins again; its partitions are *lost*, never revoked.
C5. A member that does not poll for `max_poll_interval_s` leaves; with the next poll it joins again.
C6. A member that fails for good leaves, so that others get its partitions before its session would expire.

Called by `consumer_group_session`, which executes the effects in order. `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ottla_client.errors import BrokerSideNotOffered, GroupTrouble, NotServed
from ottla_client.group_effects import Identity, Partitions, TakeTurn, Turn, Warn
from ottla_client.group_protocol import NO_GENERATION
from ottla_core.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRegularExpression,
    RequestError,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from ottla_core.ids import TopicPartition

#: Epochs with a meaning in requests.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2

#: Topic id by partition: a topic that was deleted and created again has the same name.
Assigned: TypeAlias = Mapping[TopicPartition, str]

_EXPELLED = (UnknownMemberId, FencedMemberEpoch)
#: An older broker, a classic group that cannot be upgraded, an expression that only Python understands.
_NOT_OFFERED = (NotServed, UnsupportedVersion, GroupIdNotFound, InvalidRegularExpression)
#: Heartbeats without an interval from the coordinator yet.
_INTERVAL_S = 5.0


class Phase(Enum):
    OUT = "out"
    JOINING = "joining"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class ConsumerGroupPolicy:
    #: Made by the client, and the same for the life of the consumer.
    member_id: str
    is_static: bool = False
    max_poll_interval_s: float = 300.0
    backoff_s: float = 0.1
    backoff_max_s: float = 1.0
    #: How long to wait for an instance id that a crashed process has left behind: longer than its session.
    unreleased_max_s: float = 60.0
    #: Where the coordinator does not offer the protocol, the consumer goes on as a classic member.
    may_fall_back: bool = False


@dataclass(frozen=True, slots=True)
class SendConsumerHeartbeat:
    attempt: int
    identity: Identity
    #: Send timeout, subscription and owned partitions, not only what changed.
    is_full: bool
    topics: tuple[str, ...]
    regex: str
    #: None: unchanged.
    owned: Assigned | None


@dataclass(frozen=True, slots=True)
class SendConsumerLeave:
    identity: Identity


ConsumerEffect: TypeAlias = SendConsumerHeartbeat | SendConsumerLeave | TakeTurn | Warn


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    member_id: str
    epoch: int
    interval_s: float
    #: None: unchanged.
    assignment: Assigned | None


class ConsumerGroupMachine:
    def __init__(self, policy: ConsumerGroupPolicy) -> None:
        self._policy = policy
        self.phase = Phase.OUT
        #: With the member epoch as generation; empty unless MEMBER.
        self.identity = Identity()
        #: The fatal error of the membership; every poll raises it until the next subscription.
        self.failure: Exception | None = None
        self.topics: tuple[str, ...] = ()
        self.regex = ""
        #: What the user holds (C2), and what the coordinator assigned last.
        self._held: Assigned = {}
        self._given: Assigned = {}
        self._turn: Turn | None = None
        self._in_turn = False
        self._after_turn: Assigned = {}
        #: Set if the membership was lost during the user's turn.
        self._lost_in_turn = False
        self._polling = False
        self._polled_at: float | None = None
        self._attempt = 0
        self._beating = False
        self._beat_at = 0.0
        self._interval_s = _INTERVAL_S
        #: The next heartbeat carries everything, or at least the held partitions.
        self._full = True
        self._report = False
        self._failures = 0
        self._unreleased_since: float | None = None
        self._out: list[ConsumerEffect] = []

    # ------------------------------------------------------------------ calls of the user

    @property
    def held(self) -> Partitions:
        return tuple(self._held)

    @property
    def is_subscribed(self) -> bool:
        return bool(self.topics or self.regex)

    def subscribe(self, topics: Sequence[str], now: float, regex: str = "") -> list[ConsumerEffect]:
        wanted = tuple(sorted(set(topics)))
        if (wanted, regex) != (self.topics, self.regex):
            self.topics, self.regex = wanted, regex
            self._full, self._beat_at = True, min(self._beat_at, now)
            self._attempt += self._beating  # An answer to the old subscription may have the wrong topics.
            self._beating = False
        return self._moved(now)

    def poll_began(self, now: float) -> list[ConsumerEffect]:
        self._polling, self._polled_at = True, now
        if self.phase is Phase.OUT and self.is_subscribed and self.failure is None:
            self.phase, self._full, self._beat_at = Phase.JOINING, True, now
        return self._moved(now)

    def poll_ended(self, now: float) -> None:
        self._polling, self._polled_at = False, now

    def begin_turn(self) -> Turn | None:
        """The listener calls that are due. The caller must call `turn_done` afterwards."""
        self._in_turn = self._turn is not None
        return self._turn

    def turn_done(self, now: float) -> list[ConsumerEffect]:
        turn, self._turn, self._in_turn = self._turn, None, False
        if turn is None:
            return []
        self._held = self._after_turn
        if self._lost_in_turn:
            self._lost_in_turn = False
            self._lose()
        elif self.phase is Phase.MEMBER:
            self._report, self._beat_at = True, now
            self._plan()
        return self._moved(now)

    def leave(self, now: float, reason: str) -> list[ConsumerEffect]:
        """End the subscription. Held partitions were revoked before; a static member leaves for a while only."""
        self._goodbye()
        self.phase = Phase.OUT
        self.topics, self.regex = (), ""
        self._held, self._given, self._after_turn = {}, {}, {}
        self._turn, self._in_turn, self._lost_in_turn = None, False, False
        return self._taken()

    # ------------------------------------------------------------------ events from the shell

    def heartbeat_answered(self, attempt: int, answer: HeartbeatAnswer, now: float) -> list[ConsumerEffect]:
        if attempt != self._attempt or not self._beating:
            return []
        self._beating, self._failures, self._unreleased_since = False, 0, None
        self.phase = Phase.MEMBER
        self.identity = Identity(answer.member_id, answer.epoch)
        self._interval_s = answer.interval_s
        self._beat_at = now + self._interval_s
        if answer.assignment is not None:
            shrinks = any(answer.assignment.get(tp) != topic_id for tp, topic_id in self._given.items())
            self._given = answer.assignment
            self._plan()
            if shrinks and self._turn is None:
                # What it takes away had not reached the user yet: report that at once.
                self._report, self._beat_at = True, now
        return self._moved(now)

    def heartbeat_refused(self, attempt: int, error: Exception, now: float) -> list[ConsumerEffect]:
        if attempt != self._attempt or not self._beating:
            return []
        self._beating = False
        self._full = True  # The coordinator may or may not have seen it.
        if isinstance(error, _EXPELLED):
            self._expelled(error, now)
        elif isinstance(error, UnreleasedInstanceId):
            self._wait_for_release(error, now)
        elif isinstance(error, _NOT_OFFERED) and self._policy.may_fall_back:
            self._goodbye()
            self._end(BrokerSideNotOffered(str(error)))
        elif isinstance(error, NotServed):
            self._fail(GroupTrouble(f"{error} Use group_protocol='classic', or the default."))
        elif isinstance(error, RequestError) and not error.retriable:
            self._fail(error)
        else:
            self._retry(now)
        return self._moved(now)

    def commit_refused(self, identity: Identity, error: Exception, now: float) -> list[ConsumerEffect]:
        """A refused commit may be the first sign that we are no longer a member."""
        if identity == self.identity and self.phase is Phase.MEMBER:
            if isinstance(error, _EXPELLED):
                self._expelled(error, now)
            elif isinstance(error, FencedInstanceId):
                self._fail(error)
        return self._moved(now)

    def tick(self, now: float) -> list[ConsumerEffect]:
        return self._moved(now)

    def wakes_at(self) -> float | None:
        """When `tick` must be called next."""
        times: list[float] = []
        if self._may_beat:
            times.append(self._beat_at)
        if self._polled_at is not None and not self._polling and self.phase is not Phase.OUT:
            times.append(self._polled_at + self._policy.max_poll_interval_s)
        return min(times, default=None)

    # ------------------------------------------------------------------ inside

    @property
    def _may_beat(self) -> bool:
        if self._beating or self.phase is Phase.OUT:
            return False
        return self.phase is Phase.MEMBER or (self._turn is None and not self._held)  # C4

    def _taken(self) -> list[ConsumerEffect]:
        out, self._out = self._out, []
        return out

    def _moved(self, now: float) -> list[ConsumerEffect]:
        """The effects that are possible now."""
        self._check_polls(now)
        if self._may_beat and self._beat_at <= now:
            self._beat()
        return self._taken()

    def _beat(self) -> None:
        self._attempt += 1
        self._beating = True
        joins = self.phase is Phase.JOINING
        identity = Identity(self._policy.member_id, JOIN_EPOCH) if joins else self.identity
        is_full = joins or self._full
        owned = dict(self._held) if is_full or self._report else None
        self._full = self._report = False
        self._out.append(
            SendConsumerHeartbeat(self._attempt, identity, is_full, self.topics, self.regex, owned)
        )

    def _plan(self) -> None:
        """The turn that is due for the last assignment; a turn that has not begun is replaced."""
        if self._in_turn:
            return
        if self._turn is not None and self._turn.lost:
            return
        kept = {tp: topic_id for tp, topic_id in self._held.items() if self._given.get(tp) == topic_id}
        revoked = tuple(tp for tp in self._held if tp not in kept)
        added = tuple(sorted(tp for tp in self._given if tp not in kept))
        if revoked:
            self._due(Turn(tuple(kept), revoked=revoked), kept)
        elif added:
            self._due(Turn((*kept, *added), added=added), {**kept, **{tp: self._given[tp] for tp in added}})
        else:
            self._turn = None

    def _due(self, turn: Turn, after: Assigned) -> None:
        self._turn, self._after_turn = turn, after
        self._out.append(TakeTurn())

    def _check_polls(self, now: float) -> None:
        if self._polling or self._polled_at is None or self.phase is Phase.OUT or self._in_turn:
            return
        if now < self._polled_at + self._policy.max_poll_interval_s:
            return
        self._out.append(
            Warn(
                f"The consumer did not poll for {self._policy.max_poll_interval_s:g} s, so it leaves its "
                "group. Poll more often, take fewer records at once (max_poll_records), or raise "
                "max_poll_interval_ms."
            )
        )
        self._goodbye()
        self._polled_at = None
        self._lose()
        self.phase = Phase.OUT  # the next poll joins again

    def _goodbye(self) -> None:
        """Also while the join is in flight: it may have succeeded."""
        if self.phase is Phase.MEMBER or (self.phase is Phase.JOINING and self._beating):
            epoch = LEAVE_STATIC_EPOCH if self._policy.is_static else LEAVE_EPOCH
            self._out.append(SendConsumerLeave(Identity(self._policy.member_id, epoch)))
        self._forget()

    def _forget(self) -> None:
        """We are not a member now; an answer in flight changes nothing."""
        self._attempt += 1
        self._beating, self._full, self._report = False, True, False
        self.identity = Identity("", NO_GENERATION)

    def _expelled(self, error: Exception, now: float) -> None:
        """The coordinator has removed or fenced us (C4): join again, without partitions."""
        self._forget()
        self._out.append(Warn(f"The coordinator has removed this member, which joins again: {error}"))
        self.phase, self._beat_at = Phase.JOINING, now
        self._lose()

    def _lose(self) -> None:
        self._given = {}
        if self._in_turn:
            self._lost_in_turn = True
        elif self._held:
            self._due(Turn(assignment=(), lost=self.held), {})
        else:
            self._turn = None

    def _fail(self, error: Exception) -> None:
        if isinstance(error, FencedInstanceId):
            self._forget()  # It is no member; its successor has what it had.
            error = GroupTrouble(
                "Another process has joined with the same group_instance_id and has taken over. Give each "
                "member its own."
            )
        else:
            self._goodbye()
            if isinstance(error, GroupIdNotFound):
                error = GroupTrouble(f"The group cannot be joined with group_protocol='consumer': {error}")
        self._end(error)

    def _end(self, failure: Exception) -> None:
        """No longer a member: the next poll raises `failure`, after the turn that takes what is held."""
        self.failure = failure
        self._lose()
        self.phase = Phase.OUT
        if self._turn is None:
            self._out.append(TakeTurn())  # so that a waiting poll wakes up and raises

    def _wait_for_release(self, error: UnreleasedInstanceId, now: float) -> None:
        """The instance id belongs to another member: a live one, or a crashed one until its session expires."""
        if self._unreleased_since is None:
            self._unreleased_since = now
            self._out.append(Warn("Another member has this group_instance_id; waiting until it leaves."))
        if now - self._unreleased_since >= self._policy.unreleased_max_s:
            self._unreleased_since = None
            self._fail(
                GroupTrouble(
                    "Another process is in the group with the same group_instance_id. Give each member its own."
                )
            )
            return
        self._retry(now)

    def _retry(self, now: float) -> None:
        wait_s = min(self._policy.backoff_s * 2.0 ** min(self._failures, 16), self._policy.backoff_max_s)
        self._failures += 1
        self._beat_at = now + wait_s
