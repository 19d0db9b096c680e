"""Generates sample events of a shop's visitors, with the flaws of real events. [A]

    python spark/jobs/generate.py --bootstrap-servers 127.0.0.1:9192 --topic events --events 100000

Few users and pages make most of the events. Some events arrive late, some twice and, on request, some so late that a
pipeline may drop them. The same seed gives the same events. The last event has no page and a time after all others: it
advances the watermark of consumers that count by event time, so that the last windows close.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from ottla_client.sync import Producer
from pyspark_ottla.job_options import JobOptions, add_arguments, take

PAGES = ("/", "/search", "/item", "/cart", "/checkout", "/account", "/help", "/returns")
ACTIONS = ("view", "click", "scroll", "buy")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to generate. Fractions are of all events; times are event times, not wall-clock times."""

    events: int = 100_000
    seed: int = 1
    start_ms: int = 1_767_225_600_000  # 2026-01-01
    span_s: int = 600
    users: int = 1000
    #: Exponent of Zipf's law: 0 makes all users equal.
    skew: float = 1.1
    late: float = 0.05
    #: Maximum delay of a late event or of a duplicate.
    lateness_s: int = 60
    duplicates: float = 0.02
    #: Fraction that arrives ten times later than `lateness_s`.
    too_late: float = 0.0


def events(plan: Plan) -> Iterator[dict[str, Any]]:
    """Events in order of arrival."""
    chance = random.Random(plan.seed)
    users = list(accumulate(1 / (rank + 1) ** plan.skew for rank in range(plan.users)))
    pages = list(accumulate(1 / (rank + 1) for rank in range(len(PAGES))))
    #: Events in flight: arrival time, a number that keeps the order, the event.
    delayed: list[tuple[float, int, dict[str, Any]]] = []
    for number in range(plan.events):
        now_ms = plan.start_ms + number * plan.span_s * 1000 // plan.events
        while delayed and delayed[0][0] <= now_ms:
            yield heapq.heappop(delayed)[2]
        event = {
            "event_id": f"{plan.seed}-{number}",
            "user": f"user-{chance.choices(range(plan.users), cum_weights=users)[0]}",
            "page": chance.choices(PAGES, cum_weights=pages)[0],
            "action": chance.choice(ACTIONS),
            "time": _text(now_ms),
        }
        fate = chance.random()
        delay_ms = chance.random() * plan.lateness_s * 1000
        if fate < plan.too_late:
            heapq.heappush(delayed, (now_ms + 10_000 * plan.lateness_s, number, event))
            continue
        if fate < plan.too_late + plan.late:
            heapq.heappush(delayed, (now_ms + delay_ms, number, event))
            continue
        yield event
        if fate < plan.too_late + plan.late + plan.duplicates:
            heapq.heappush(delayed, (now_ms + delay_ms, number, event))
    while delayed:
        yield heapq.heappop(delayed)[2]
    yield closing(plan)


def closing(plan: Plan) -> dict[str, Any]:
    """An event without a page, a day after the others."""
    end_ms = plan.start_ms + plan.span_s * 1000 + 86_400_000
    return {"event_id": f"{plan.seed}-end", "user": None, "page": None, "action": None, "time": _text(end_ms)}


def _text(time_ms: int) -> str:
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def send(
    bootstrap: str,
    topic: str,
    plan: Plan,
    rate: float | None = None,
    options: JobOptions = JobOptions(),  # noqa: B008 - it is frozen
) -> int:
    """Write the events, at most `rate` per second. Returns their number."""
    failures: list[Exception] = []

    def on_delivery(_: object, error: Exception | None) -> None:
        if error is not None and not failures:
            failures.append(error)

    sent, began = 0, time.monotonic()
    with Producer(bootstrap, linger_ms=20, security=options.security()) as producer:
        for event in events(plan):
            key = None if event["user"] is None else event["user"].encode()
            producer.send(topic, json.dumps(event).encode(), key, on_delivery=on_delivery)
            sent += 1
            if rate is not None and sent % 100 == 0:
                time.sleep(max(0.0, sent / rate - (time.monotonic() - began)))
            if failures:
                break
    if failures:
        raise failures[0]
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(" [A]")[0] if __doc__ else None)
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9192", help="gRPC addresses of brokers")
    parser.add_argument(
        "--topic", default="events", help="topic to write to; it must exist (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, help="events per second (default: as fast as possible)")
    defaults = Plan()
    for name, about in {
        "events": "number of events",
        "seed": "seed of the random numbers",
        "start_ms": "time of the first event, in ms since 1970",
        "span_s": "event time from the first to the last",
        "users": "number of users",
        "skew": "exponent of Zipf's law; 0 makes all users equal",
        "late": "fraction that arrives late",
        "lateness_s": "maximum delay in seconds",
        "duplicates": "fraction that arrives twice",
        "too_late": "fraction that arrives ten times later than that",
    }.items():
        default = getattr(defaults, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            default=default,
            help=f"{about} (default: {default})",
        )
    add_arguments(parser)
    given = vars(parser.parse_args())
    options = take(parser, given, reads=False, writes=False)
    bootstrap, topic, rate = given.pop("bootstrap_servers"), given.pop("topic"), given.pop("rate")
    began = time.monotonic()
    sent = send(bootstrap, topic, Plan(**given), rate, options)
    print(f"{sent} events written to {topic} in {time.monotonic() - began:.1f} s.")


if __name__ == "__main__":
    main()
