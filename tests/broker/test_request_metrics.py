"""Times of requests by phase, and traffic by client id with a bound."""

from __future__ import annotations

import asyncio

import pytest

from ottla_broker.edge.timed import Timed
from ottla_broker.exposed import OTHER, Family
from ottla_broker.metrics import Metrics
from ottla_broker.request_metrics import PHASES, ApiTimes, RequestMetrics, api_name, families


def _values(family: Family) -> dict[tuple[str, ...], float]:
    return {tuple(value for _, value in labels): n for _, labels, n in family.samples}


def _by_name(metrics: RequestMetrics) -> dict[str, Family]:
    return {family.name: family for family in families((metrics,))}


def test_phases_add_up_and_long_polls_are_not_latency() -> None:
    fetch = ApiTimes("Fetch")
    fetch.answered(0.25, 30.5, 0.0, 30.0)
    assert fetch.phases() == {"queue": 0.25, "local": 0.5, "poll": 30.0, "throttle": 0.0, "send": 0.0}
    assert fetch.phases().keys() <= set(PHASES)
    assert fetch.seconds.total == 0.75

    produce = ApiTimes("Produce")
    produce.answered(0.0, 1.0, 0.75)
    assert produce.phases()["replication"] == 0.75 and produce.phases()["local"] == 0.25
    assert produce.seconds.total == 1.0, "waiting for replicas is latency"

    join = ApiTimes("JoinGroup")
    join.answered(0.0, 5.0, 4.0)
    assert join.phases()["poll"] == 4.0 and join.seconds.total == 1.0

    create = ApiTimes("CreateTopics")
    create.answered(0.0, 1.0, 0.5)
    assert create.phases()["remote"] == 0.5


def test_both_edges_have_the_same_api_names() -> None:
    assert api_name("list_offsets") == "ListOffsets"
    assert api_name("fetch") == "Fetch"


def test_clients_are_bounded_and_the_busiest_stay() -> None:
    metrics = RequestMetrics("kafka", clients_max=3)
    kept = [metrics.connected(f"c{number}") for number in range(3)]
    late = metrics.connected("late")
    late.requests += 1
    assert _values(_by_name(metrics)["ottla_client_requests_total"])["kafka", OTHER] == 1, "all are connected"
    for number, traffic in enumerate(kept):
        traffic.bytes_in += 10 * (number + 1)
        metrics.disconnected(traffic)
    metrics.connected("x" * 500).bytes_in += 7
    rows = _values(_by_name(metrics)["ottla_client_received_bytes_total"])
    assert rows == {("kafka", "c1"): 20, ("kafka", "c2"): 30, ("kafka", "x" * 128): 7, ("kafka", OTHER): 10}


def test_no_clients_if_none_are_wanted() -> None:
    metrics = RequestMetrics("grpc", clients_max=0)
    metrics.connected("a").requests += 2
    assert _values(_by_name(metrics)["ottla_client_requests_total"]) == {("grpc", OTHER): 2}


def test_errors_are_counted_by_api() -> None:
    metrics = Metrics()
    metrics.grpc.answered("list_offsets", ["NOT_LEADER_OR_FOLLOWER"])
    metrics.kafka.times.failed("Produce", "NOT_ENOUGH_REPLICAS")
    found = {family.name: family for family in metrics.families()}
    assert _values(found["ottla_request_errors_total"]) == {
        ("kafka", "Produce", "NOT_ENOUGH_REPLICAS"): 1,
        ("grpc", "ListOffsets", "NOT_LEADER_OR_FOLLOWER"): 1,
    }


async def test_timed_separates_work_from_waiting() -> None:
    async def work() -> str:
        await asyncio.sleep(0.2)
        return "done"

    timed = Timed(work())
    assert await timed == "done"
    assert timed.worked_s < 0.1


async def test_timed_passes_errors_and_cancellation_on() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def caller() -> None:
        await Timed(work())

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await Timed(failing())
