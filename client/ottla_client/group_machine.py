"""State machine of a consumer group member: join, sync, heartbeat, rebalance. [P]

Theory of operation.

    OUT ──first poll──> WANTS ──join──> JOINING ──answer──> (we lead: ASSIGNING) ──> SYNCING ──answer──> MEMBER
                          ^                                                                                │
                          └───────── the coordinator rebalances, we were fenced, the topics changed ───────┘

Two things run in parallel. The *membership* above changes by responses and deadlines, in the background. The *user*
may hold partitions, and gets changes only in a *turn*, inside a poll: there the records of the previous poll are
processed, so their offsets can be committed. Every change of the held partitions is a turn, and no join is sent while
a turn is due, because the join lists the held partitions.

Eager assignors: a turn revokes all partitions before the join. Cooperative ones: the join is sent at once, with the
held partitions; after the sync a turn revokes what moves, and then we join again so that it can be reassigned.

Invariants:
G1. At most one join, sync or topic lookup is in flight, and responses to older ones change nothing.
G2. Held partitions change in turns only, and the user never gets a partition before the sync of the generation that
    assigned it.
G3. After the coordinator has removed us, held partitions are *lost*, never revoked: commits would be refused, and
    other members may read them.
G4. A member that does not poll for `max_poll_interval_s` leaves; with the next poll it joins again.

Called by `group_session`, which executes the effects in order. `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ottla_client.assignors import Assignor, GroupMember
from ottla_client.errors import GroupTrouble
from ottla_client.group_effects import (
    Effect,
    Identity,
    JoinAnswer,
    LearnTopics,
    Partitions,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    TakeTurn,
    Turn,
    Warn,
)
from ottla_client.group_protocol import (
    NO_GENERATION,
    Subscription,
    Undecodable,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla_core.errors import (
    FencedInstanceId,
    GroupAuthorizationFailed,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    RequestError,
    UnknownMemberId,
)

#: Errors that concern the membership, not the single request.
_MEMBERSHIP_ERRORS = (UnknownMemberId, IllegalGeneration, FencedInstanceId, GroupAuthorizationFailed)


class Phase(Enum):
    OUT = "out"
    WANTS = "wants"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    assignors: tuple[Assignor, ...]
    is_static: bool = False
    heartbeat_interval_s: float = 3.0
    max_poll_interval_s: float = 300.0
    backoff_s: float = 0.1
    backoff_max_s: float = 1.0

    @property
    def cooperative(self) -> bool:
        """Only if all assignors are cooperative: eager revocation precedes the join, and the vote follows it."""
        return all(assignor.cooperative for assignor in self.assignors)


class GroupMachine:
    def __init__(self, policy: GroupPolicy) -> None:
        self._policy = policy
        self.phase = Phase.OUT
        self.identity = Identity()
        #: The fatal error of the membership; every poll raises it until the next subscription.
        self.failure: Exception | None = None
        #: Partitions that the user holds (G2).
        self.held: Partitions = ()
        self._topics: tuple[str, ...] = ()
        #: Partitions and generation before the last revocation, for the eager sticky assignor.
        self._previous: tuple[Partitions, int] = ((), NO_GENERATION)
        self._attempt = 0
        self._turn: Turn | None = None
        self._in_turn = False
        #: Set if the membership was lost during the user's turn.
        self._lost_in_turn = False
        self._polling = False
        self._polled_at: float | None = None
        self._rejoin: str | None = None
        self._beating = False
        self._beat_at = 0.0
        self._not_before = 0.0
        self._failures = 0
        #: As group leader: the members, and the elected assignor.
        self._joined: JoinAnswer | None = None
        self._members: list[GroupMember] = []
        #: As group leader: the partition counts of the last assignment. If they change, we rejoin.
        self._counts: dict[str, int] | None = None
        self._out: list[Effect] = []

    # ------------------------------------------------------------------ calls of the user

    @property
    def topics(self) -> tuple[str, ...]:
        return self._topics

    @property
    def watched_topics(self) -> tuple[str, ...]:
        """Our topics; as group leader, those of all members."""
        return tuple(dict.fromkeys((*self._topics, *(self._counts or ()))))

    def subscribe(self, topics: Sequence[str], now: float) -> list[Effect]:
        wanted = tuple(dict.fromkeys(topics))
        if set(wanted) != set(self._topics):
            self._topics = wanted
            if self.phase is not Phase.OUT:
                self._want("the subscription has changed")
        return self._moved(now)

    def poll_began(self, now: float) -> list[Effect]:
        self._polling, self._polled_at = True, now
        if self.phase is Phase.OUT and self._topics and self.failure is None:
            self.phase = Phase.WANTS
            self._rejoin = self._rejoin or "a new member"
        return self._moved(now)

    def poll_ended(self, now: float) -> None:
        self._polling, self._polled_at = False, now

    def begin_turn(self) -> Turn | None:
        """The listener calls that are due. The caller must call `turn_done` afterwards."""
        self._in_turn = self._turn is not None
        return self._turn

    def turn_done(self, now: float) -> list[Effect]:
        turn, self._turn, self._in_turn = self._turn, None, False
        if turn is None:
            return []
        self.held = turn.assignment
        if self._lost_in_turn:
            self._lost_in_turn = False
            self._lose()
        elif turn.added is not None:
            self._previous = (turn.assignment, self.identity.generation)
            if turn.revoked:
                self._want("partitions were given up for others")
        return self._moved(now)

    def leave(self, now: float, reason: str) -> list[Effect]:
        """End the subscription. Held partitions were revoked before; a static member sends no leave request."""
        if self.identity.member_id and not self._policy.is_static:
            self._out.append(SendLeave(self.identity.member_id, reason))
        self._attempt += 1
        self.phase, self.identity, self.held = Phase.OUT, Identity(), ()
        self._topics, self._turn, self._in_turn, self._lost_in_turn = (), None, False, False
        self._rejoin, self._counts, self._beating = None, None, False
        return self._taken()

    # ------------------------------------------------------------------ events from the shell

    def joined(self, attempt: int, answer: JoinAnswer, now: float) -> list[Effect]:
        if attempt != self._attempt or self.phase is not Phase.JOINING:
            return []
        self._failures = 0
        self.identity = Identity(answer.member_id, answer.generation)
        self._beat_at = now + self._policy.heartbeat_interval_s
        self._joined, self._counts = answer, None
        if answer.leader_id == answer.member_id:
            self._lead(answer)
        else:
            self._sync({})
        return self._moved(now)

    def join_refused(self, attempt: int, error: Exception, now: float, member_id: str = "") -> list[Effect]:
        if attempt != self._attempt or self.phase is not Phase.JOINING:
            return []
        self.phase = Phase.WANTS
        if isinstance(error, MemberIdRequired):
            # Keep the member id, and repeat the join with it.
            self.identity = Identity(member_id, NO_GENERATION)
        elif isinstance(error, UnknownMemberId | IllegalGeneration):
            self._expelled(error)
        elif isinstance(error, InconsistentGroupProtocol):
            names = ", ".join(assignor.name for assignor in self._policy.assignors)
            self._fail(
                GroupTrouble(
                    f"The other members of the group support none of our assignors ({names}), or are not "
                    "consumers. Set partition_assignment_strategy to one of theirs; stock Kafka clients use "
                    "range by default. If they are members of a broker-side group, use group_protocol='consumer'."
                )
            )
        else:
            self._troubled(error, now)
        return self._moved(now)

    def topics_learnt(self, attempt: int, counts: Mapping[str, int], now: float) -> list[Effect]:
        """As group leader: assign partitions."""
        answer = self._joined
        if attempt != self._attempt or self.phase is not Phase.ASSIGNING or answer is None:
            return []
        assignor = next((each for each in self._policy.assignors if each.name == answer.protocol), None)
        if assignor is None:
            self._fail(
                GroupTrouble(
                    f"The group elected the assignor {answer.protocol!r}, which this consumer lacks."
                )
            )
            return self._moved(now)
        wanted = {topic for member in self._members for topic in member.subscription.topics}
        self._counts = {topic: counts.get(topic, 0) for topic in sorted(wanted)}
        try:
            made = {} if answer.skip_assignment else assignor.assign(counts, self._members)
        except Exception as error:
            # A custom assignor may raise anything; the group must not wait for us then.
            self._fail(GroupTrouble(f"The assignor {assignor.name!r} failed: {error!r}."))
            return self._moved(now)
        self._sync({member_id: encode_assignment(partitions) for member_id, partitions in made.items()})
        return self._moved(now)

    def synced(self, attempt: int, assignment: bytes, now: float) -> list[Effect]:
        if attempt != self._attempt or self.phase is not Phase.SYNCING:
            return []
        self._failures = 0
        self.phase = Phase.MEMBER
        self._beat_at = now + self._policy.heartbeat_interval_s
        try:
            given = tuple(decode_assignment(assignment))
        except Undecodable as error:
            self._fail(GroupTrouble(f"The leader of the group sent an invalid assignment: {error}."))
            return self._moved(now)
        if any(tp.topic not in self._topics for tp in given):
            # The leader used an older subscription of ours.
            self._want("the assignment has topics that are not subscribed to")
            return self._moved(now)
        held = frozenset(self.held)
        self._due(
            Turn(
                assignment=given,
                revoked=tuple(tp for tp in self.held if tp not in given),
                added=tuple(tp for tp in given if tp not in held),
            )
        )
        return self._moved(now)

    def sync_refused(self, attempt: int, error: Exception, now: float) -> list[Effect]:
        """The sync failed, or the topic lookup before it."""
        if attempt != self._attempt or self.phase not in (Phase.SYNCING, Phase.ASSIGNING):
            return []
        self.phase = Phase.WANTS
        self._rejoin = self._rejoin or "the rebalance started again"
        if isinstance(error, UnknownMemberId | IllegalGeneration):
            self._expelled(error)
        elif not isinstance(error, RebalanceInProgress):
            self._troubled(error, now)
        return self._moved(now)

    def heartbeat_answered(self, identity: Identity, error: Exception | None, now: float) -> list[Effect]:
        self._beating = False
        if identity != self.identity:
            return self._moved(now)
        self._beat_at = now + self._policy.heartbeat_interval_s
        if isinstance(error, RebalanceInProgress):
            if self.phase is Phase.MEMBER:
                self._want("the group rebalances")
        elif isinstance(error, _MEMBERSHIP_ERRORS):
            self._disowned(error)
        elif error is not None:
            # No answer, or not the coordinator any more: retry before a whole interval has passed.
            self._beat_at = now + min(self._policy.backoff_max_s, self._policy.heartbeat_interval_s)
        return self._moved(now)

    def commit_refused(self, identity: Identity, error: Exception, now: float) -> list[Effect]:
        """A refused commit may be the first sign that we are no longer a member."""
        if identity == self.identity and isinstance(error, _MEMBERSHIP_ERRORS):
            self._disowned(error)
        return self._moved(now)

    def partitions_changed(self, counts: Mapping[str, int], now: float) -> list[Effect]:
        """Partition counts arrived. As group leader, rejoin if they differ from the assigned ones."""
        if self._counts is not None and self.phase is Phase.MEMBER:
            changed = [topic for topic, count in self._counts.items() if counts.get(topic, count) != count]
            if changed:
                self._want(f"{changed[0]} has other partitions than before")
        return self._moved(now)

    def tick(self, now: float) -> list[Effect]:
        return self._moved(now)

    def wakes_at(self) -> float | None:
        """When `tick` must be called next."""
        times: list[float] = []
        if self.phase is Phase.WANTS and self._turn is None:
            times.append(self._not_before)
        if self._is_known and not self._beating:
            times.append(self._beat_at)
        if self._polled_at is not None and not self._polling and self.phase is not Phase.OUT:
            times.append(self._polled_at + self._policy.max_poll_interval_s)
        return min(times, default=None)

    # ------------------------------------------------------------------ inside

    @property
    def _is_known(self) -> bool:
        """Whether the coordinator expects heartbeats; not while a join or a sync waits there."""
        return self.identity.generation != NO_GENERATION and self.phase in (
            Phase.MEMBER,
            Phase.WANTS,
            Phase.ASSIGNING,
        )

    def _taken(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _moved(self, now: float) -> list[Effect]:
        """The effects that are possible now."""
        self._check_polls(now)
        if self._is_known and not self._beating and self._beat_at <= now:
            self._beating = True
            self._out.append(SendHeartbeat(self.identity))
        if self.phase is Phase.MEMBER and self._rejoin is not None and self._turn is None:
            self.phase = Phase.WANTS
        if self.phase is Phase.WANTS and self._turn is None and self._not_before <= now:
            if self.held and not self._policy.cooperative:
                self._due(Turn(assignment=(), revoked=self.held))
            else:
                self._join()
        return self._taken()

    def _check_polls(self, now: float) -> None:
        if self._polling or self._polled_at is None or self.phase not in (Phase.MEMBER, Phase.WANTS):
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
        if self.identity.member_id and not self._policy.is_static:
            self._out.append(SendLeave(self.identity.member_id, "no poll for max_poll_interval_ms"))
        self.identity = Identity()
        self._polled_at = None
        self._lose()
        self.phase = Phase.OUT  # the next poll joins again

    def _want(self, reason: str) -> None:
        """Join again as soon as possible."""
        self._rejoin = self._rejoin or reason
        if self._turn is not None and not self._in_turn and not self._policy.cooperative and not self.held:
            # The new assignment has not reached the user, and is revoked again.
            self._turn = None

    def _due(self, turn: Turn) -> None:
        self._turn = turn
        self._out.append(TakeTurn())

    def _join(self) -> None:
        self._attempt += 1
        self.phase = Phase.JOINING
        reason, self._rejoin = self._rejoin or "", None
        protocols = tuple((each.name, self._subscription(each)) for each in self._policy.assignors)
        self._out.append(SendJoin(self._attempt, self.identity.member_id, protocols, reason))

    def _subscription(self, assignor: Assignor) -> bytes:
        previous, generation = self._previous
        owned = self.held if self._policy.cooperative else ()
        return encode_subscription(
            Subscription(self._topics, assignor.user_data(previous, generation), owned, generation)
        )

    def _lead(self, answer: JoinAnswer) -> None:
        self._members = []
        for member_id, instance_id, metadata in answer.members:
            try:
                said = decode_subscription(metadata)
            except Undecodable as error:
                self._out.append(Warn(f"The subscription of member {member_id} cannot be decoded: {error}."))
                said = Subscription(())
            self._members.append(GroupMember(member_id, said, instance_id))
        topics = {topic for member in self._members for topic in member.subscription.topics}
        self.phase = Phase.ASSIGNING
        self._out.append(LearnTopics(self._attempt, tuple(sorted(topics))))

    def _sync(self, assignments: Mapping[str, bytes]) -> None:
        protocol = "" if self._joined is None else self._joined.protocol
        self.phase = Phase.SYNCING
        self._out.append(SendSync(self._attempt, self.identity, protocol, assignments))

    def _disowned(self, error: Exception) -> None:
        if self.phase not in (Phase.MEMBER, Phase.WANTS):
            return  # the join or sync in flight gets the same error
        if isinstance(error, UnknownMemberId | IllegalGeneration):
            self._expelled(error)
        else:
            self._fail(error)

    def _expelled(self, error: Exception) -> None:
        """The coordinator has removed us from the group (G3)."""
        keeps_id = isinstance(error, IllegalGeneration)
        self.identity = Identity(self.identity.member_id if keeps_id else "", NO_GENERATION)
        self.phase = Phase.WANTS
        self._rejoin = f"the coordinator said: {error}"
        self._lose()

    def _lose(self) -> None:
        self._previous, self._counts = ((), NO_GENERATION), None
        if self._in_turn:
            self._lost_in_turn = True
        elif self.held:
            self._due(Turn(assignment=(), lost=self.held))
        else:
            self._turn = None

    def _fail(self, error: Exception) -> None:
        if isinstance(error, FencedInstanceId):
            error = GroupTrouble(
                "Another process has joined with the same group_instance_id and has taken over. Give each "
                "member its own."
            )
        self.failure = error
        self.identity = Identity()
        self._lose()
        self.phase = Phase.OUT
        self._rejoin = None
        if self._turn is None:
            self._out.append(TakeTurn())  # so that a waiting poll wakes up and raises

    def _troubled(self, error: Exception, now: float) -> None:
        """Retry later if the error is retriable."""
        if (
            isinstance(error, RequestError)
            and not error.retriable
            and not isinstance(error, RebalanceInProgress)
        ):
            self._fail(error)
            return
        wait_s = min(self._policy.backoff_s * 2.0 ** min(self._failures, 16), self._policy.backoff_max_s)
        self._failures += 1
        self._not_before = now + wait_s
