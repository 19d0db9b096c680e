"""How many replicas a group's consumers should have: history of its lag, spec, now -> replicas and a reason. [P]

Each observation has a recommendation:

* `lagPerReplica`: enough replicas that none has more records to catch up with.
* `lagSeconds`: half as many again while the oldest record is older than that, one less while it is younger than half.
  Lag in time goes on growing while new members start, so it adds replicas again only after `SETTLING_S`.

More replicas come at once. Fewer come when no observation of the whole stabilization window recommends more, so a
burst of lag does not stop and start consumers, and not before the window has been observed, by this operator or by the
one before it (`Memory.quiet`). Replicas that fell behind before are not tried again at the same rate of records
(`Memory.too_fast`, group_rate.py). None are left (`min: 0`) only if the group is idle: no lag and no new record in
the window.

Invariants (tests/operator_/test_group_scale.py):
K1. The result is within min and max, and never above the number of partitions; without partitions nothing changes.
K2. It falls below the present number only if no observation of the window recommends more than the result.
K3. With lag it is at least 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ottla_operator.group_rate import Quiet, TooFast, needed, quiet, rate_of, tighter
from ottla_operator.specs import ScaleSpec

#: How long new members may take to show an effect on the lag in seconds.
SETTLING_S = 30.0
#: A group without records for this long is idle, however short the stabilization window is.
IDLE_S = 15.0
#: Nobody knows what the lag was in a longer gap (no broker answered): the window begins again.
GAP_S = 60.0
#: The longest window is an hour, with an observation every 3 s at most.
OBSERVATIONS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Observation:
    at_s: float
    #: Replicas that the target was told to run then.
    replicas: int
    lag: int
    #: None: unknown.
    lag_seconds: float | None
    #: Sum of the end offsets; it grows with every record that is written.
    written: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What the status of the resource keeps for the next decision, and for the next operator."""

    too_fast: TooFast | None = None
    quiet: Quiet | None = None


_NOTHING = Memory()


@dataclass(frozen=True, slots=True)
class Decision:
    replicas: int
    #: Of the condition ScalingActive.
    reason: str
    message: str
    memory: Memory = _NOTHING


def remember(history: Sequence[Observation], now: Observation, window_s: float) -> list[Observation]:
    """The history with `now`, without what no decision needs any more; one observation from before the window stays."""
    if history and now.at_s - history[-1].at_s > GAP_S:
        history = ()
    kept = [*history, now]
    oldest = now.at_s - max(window_s, IDLE_S, SETTLING_S)
    while len(kept) > 1 and kept[1].at_s <= oldest:
        del kept[0]
    if len(kept) > OBSERVATIONS_MAX:
        del kept[1]  # the first says how far back the history goes
    return kept


def decide(
    spec: ScaleSpec, history: Sequence[Observation], memory: Memory = _NOTHING, now_ms: int = 0
) -> Decision:
    """`history` ends with the present, which is `now_ms` by the wall clock; `memory` is that of the last decision."""
    now = history[-1]
    if now.partitions == 0:
        message = "The group reads no partition that exists; set spec.topics if it has never run."
        return Decision(now.replicas, "NoPartitions", message, memory)
    too_fast = _learned(spec, history, memory.too_fast, now_ms)
    most = min(spec.max, now.partitions)
    least = min(spec.min, most)
    recommended = _recommended(spec, now, is_settling=_is_settling(history))
    if not _is_idle(spec, history):
        recommended = max(recommended, min(now.replicas, 1))
    wanted, held = recommended, ""
    if recommended < now.replicas:
        rate = rate_of([(each.at_s, each.written) for each in _window(spec, history)])
        floor, busy = _floor(spec, history, memory.quiet, now_ms), needed(too_fast, rate)
        wanted = min(now.replicas, max(recommended, floor, busy))
        if wanted > max(recommended, floor):
            held = f"fewer replicas did not keep up with {rate:,.0f} records/s before."
        elif wanted > recommended:
            held = f"fewer replicas after {spec.stabilization_s} s without need for more."
    replicas = max(least, min(wanted, most))
    calm = None if replicas != now.replicas else quiet(memory.quiet, now_ms, recommended, replicas)
    explained = _explained(spec, now, replicas, recommended, held)
    return Decision(replicas, *explained, Memory(too_fast, calm))


def _learned(
    spec: ScaleSpec, history: Sequence[Observation], known: TooFast | None, now_ms: int
) -> TooFast | None:
    """With a new bound, if these replicas fall behind now: their lag grew until it asks for more of them."""
    if known is not None and not known.is_valid(now_ms, spec.stabilization_s):
        known = None
    now = history[-1]
    if now.replicas == 0 or _is_settling(history) or _recommended(spec, now) <= now.replicas:
        return known
    same = list(itertools.takewhile(lambda each: each.replicas == now.replicas, reversed(history)))
    # The observation before these is the one whose decision gave the target this number.
    span = history[-len(same) - 1 :]
    grown, arrived = now.lag - span[0].lag, now.written - span[0].written
    if not 0 < grown < arrived:
        # An old backlog, which they catch up with; offsets that were reset; or no commit at all: replicas that were
        # asked for have not started, or crash, which says nothing about their rate.
        return known
    rate = rate_of([(each.at_s, each.written) for each in span])
    return tighter(known, TooFast(rate / now.replicas, now_ms)) if rate > 0 else known


def _window(spec: ScaleSpec, history: Sequence[Observation]) -> list[Observation]:
    since = history[-1].at_s - spec.stabilization_s
    return [each for each in history if each.at_s >= since]


def _recommended(spec: ScaleSpec, seen: Observation, *, is_settling: bool = False) -> int:
    found = 1 if seen.lag > 0 else 0
    if spec.lag_per_replica is not None:
        found = max(found, ceil(seen.lag / spec.lag_per_replica))
    if spec.lag_seconds is not None and seen.lag_seconds is not None:
        if seen.lag_seconds <= spec.lag_seconds / 2:
            found = max(found, seen.replicas - 1)
        elif seen.lag_seconds <= spec.lag_seconds or is_settling:
            found = max(found, seen.replicas)
        else:
            found = max(found, seen.replicas + max(1, seen.replicas // 2))
    return found


def _is_settling(history: Sequence[Observation]) -> bool:
    """Replicas were added a moment ago."""
    now = history[-1]
    recent = [each.replicas for each in history if each.at_s > now.at_s - SETTLING_S]
    return any(before < after for before, after in itertools.pairwise(recent))


def _is_idle(spec: ScaleSpec, history: Sequence[Observation]) -> bool:
    now = history[-1]
    since = now.at_s - max(spec.stabilization_s, IDLE_S)
    window = [each for each in history if each.at_s >= since]
    quiet = all(each.lag == 0 and each.written == now.written for each in window)
    return quiet and history[0].at_s <= since


def _floor(spec: ScaleSpec, history: Sequence[Observation], before: Quiet | None, now_ms: int) -> int:
    """No fewer replicas than this: the most that was recommended in the stabilization window."""
    now = history[-1]
    most = max(_recommended(spec, each) for each in _window(spec, history))
    if history[0].at_s > now.at_s - spec.stabilization_s:
        # The window began before this operator did. It has to see for itself for a moment that the need is still low.
        is_complete = before is not None and now_ms - before.since_ms >= spec.stabilization_s * 1000
        if before is None or not is_complete or now.at_s - history[0].at_s < SETTLING_S:
            return now.replicas
        return max(before.most, most)
    if _is_idle(spec, history):
        return 0  # Lag in seconds steps down one by one; without records there is nothing to step for.
    return most


def _explained(
    spec: ScaleSpec, now: Observation, replicas: int, recommended: int, held: str
) -> tuple[str, str]:
    seconds = "" if now.lag_seconds is None else f", {now.lag_seconds:.0f} s"
    why = f"lag is {now.lag:,} records{seconds}"
    if replicas < recommended:
        if now.partitions < spec.max:
            return "LimitedByPartitions", f"{why}; more than {now.partitions} partitions cannot be shared."
        return "LimitedByMax", f"{why}; max is {spec.max}."
    if held:
        return "Stabilizing", f"{why}; {held}"
    if replicas > recommended:
        return "LimitedByMin", f"{why}; min is {spec.min}."
    return "AsRecommended", f"{why}."
