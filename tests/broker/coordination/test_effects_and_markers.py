"""What the runtime offers beyond records and replies: transactions, effects and cluster images."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.coordination.counter_shard import Add, Announce, Announced, CounterShard, End, Read, Tell
from broker.replication.cluster import Cluster, InlineOffload, Node, cluster
from ottla_broker.coordination.effects import EffectQueue
from ottla_broker.coordination.runtime import Runtime
from ottla_broker.coordination.shard import TransactionMarker
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import GroupsProbe
from ottla_broker.requests import ProducerIdentity
from ottla_core.errors import InvalidProducerEpoch, RequestError

PRODUCER = ProducerIdentity(9, 3)


class Outside:
    """Where effects end up. `gate` holds them back."""

    def __init__(self) -> None:
        self.told: list[Tell] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def perform(self, effect: Tell, epoch: int) -> Announced:
        await self.gate.wait()
        self.told.append(effect)
        return Announced(effect.name)


def runtime_on(
    node: Node, perform: Callable[[Any, int], Awaitable[Any]] | None = None, **more: Any
) -> Runtime:
    made = Runtime(
        "t",
        node.host,
        node.cluster.clock,
        InlineOffload(),
        GroupsProbe(),
        CounterShard,
        commit_timeout_s=more.pop("commit_timeout_s", 5.0),
        **({} if perform is None else {"perform": perform}),
    )
    node.metadata.subscribe(made.on_image)
    made.on_image(ClusterImage(cluster_id=""), node.metadata.image)
    return made


def shard_of(runtime: Runtime) -> CounterShard:
    ((_, shard),) = runtime.ready()
    assert isinstance(shard, CounterShard)
    return shard


async def got(runtime: Runtime, request: Any) -> Any:
    reply = runtime.ask(0, request)
    if isinstance(reply, Awaitable):
        reply = await asyncio.wait_for(reply, 5)
    if isinstance(reply, RequestError):
        raise reply
    return reply


async def ready(runtime: Runtime, made: Cluster) -> None:
    await made.until(lambda: len(runtime) == 1 and not runtime.is_loading, what="loaded")


@pytest.mark.parametrize(("commits", "value"), [(True, 7), (False, 2)])
async def test_records_of_a_transaction_count_when_its_marker_commits(commits: bool, value: int) -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = runtime_on(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, Add(b"x", 2))
        await got(runtime, Add(b"x", 5, PRODUCER))
        assert await got(runtime, Read(b"x")) == 2
        log = made.nodes[1].partition.log
        assert log.producers.first_undecided_offset is not None, "the log knows of the open transaction, too"
        await got(runtime, End(TransactionMarker(PRODUCER, 1, commits)))
        assert await got(runtime, Read(b"x")) == value
        assert log.producers.first_undecided_offset is None
        before = shard_of(runtime)
        made.elect(1)
        await made.leads(1)
        await made.until(lambda: [s for _, s in runtime.ready()] not in ([], [before]), what="loaded again")
        assert await got(runtime, Read(b"x")) == value
        runtime.close()


async def test_a_transaction_that_is_open_at_the_election_can_still_be_committed() -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = runtime_on(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, Add(b"x", 5, PRODUCER))
        made.elect(1)
        await made.leads(1)
        await ready(runtime, made)
        assert await got(runtime, Read(b"x")) is None
        await got(runtime, End(TransactionMarker(PRODUCER, 2, True)))
        assert await got(runtime, Read(b"x")) == 5
        runtime.close()


async def test_a_fenced_producer_costs_the_state_of_the_shard_and_not_its_truth() -> None:
    """The log refuses what the shard has replayed already, so the shard is loaded again."""
    async with cluster(1, isr=(1,)) as made:
        runtime = runtime_on(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, Add(b"x", 5, PRODUCER))
        await got(runtime, End(TransactionMarker(PRODUCER, 1, True)))
        stale = ProducerIdentity(PRODUCER.producer_id, PRODUCER.producer_epoch - 1)
        with pytest.raises(RequestError) as refused:
            await got(runtime, Add(b"x", 100, stale))
        assert not isinstance(refused.value, InvalidProducerEpoch), "the client is sent to look again"
        await ready(runtime, made)
        assert await got(runtime, Read(b"x")) == 5
        runtime.close()


async def test_an_effect_waits_for_the_commit_and_its_outcome_comes_back() -> None:
    async with cluster(1, 2) as made:  # The third, in the ISR, is offline: nothing is committed.
        outside = Outside()
        runtime = runtime_on(made.nodes[1], outside.perform, commit_timeout_s=0.1)
        await ready(runtime, made)
        with pytest.raises(RequestError):
            await got(runtime, Announce(b"x"))  # Its reply is refused in time; the effect stays.
        assert outside.told == []
        made.change(isr=(1, 2))
        await made.until(lambda: outside.told == [Tell(b"x", 0)], what="told")
        await made.until(lambda: b"due:x" not in shard_of(runtime).values, what="the outcome is recorded")
        runtime.close()


async def test_an_effect_that_was_lost_with_the_leadership_is_decided_again() -> None:
    async with cluster() as made:
        first, second = Outside(), Outside()
        first.gate.clear()
        one, two = runtime_on(made.nodes[1], first.perform), runtime_on(made.nodes[2], second.perform)
        await ready(one, made)
        await got(one, Announce(b"x"))
        made.elect(2)
        await made.leads(2)
        await made.until(lambda: second.told == [Tell(b"x", 0)], what="told by the next leader")
        first.gate.set()
        await made.until(lambda: b"due:x" not in shard_of(two).values, what="the outcome is recorded")
        assert first.told == [], "what the former leader had begun is cancelled"
        for runtime in (one, two):
            runtime.close()


async def test_an_effect_that_fails_is_decided_again_after_a_reload() -> None:
    async with cluster(1, isr=(1,)) as made:
        calls: list[Tell] = []

        async def fails_once(effect: Tell, epoch: int) -> Announced:
            calls.append(effect)
            if len(calls) == 1:
                raise ZeroDivisionError
            return Announced(effect.name)

        runtime = runtime_on(made.nodes[1], fails_once)
        await ready(runtime, made)
        await got(runtime, Announce(b"x"))
        await made.until(lambda: len(calls) == 2 and not runtime.is_loading, what="performed again")
        await made.until(lambda: b"due:x" not in shard_of(runtime).values, what="the outcome is recorded")
        runtime.close()


async def test_effects_run_a_bounded_number_at_a_time_and_end_with_the_queue() -> None:
    running, peak, done = 0, 0, 0
    release = asyncio.Event()

    async def run(effect: int) -> None:
        nonlocal running, peak, done
        running += 1
        peak = max(peak, running)
        try:
            await release.wait()
            done += 1
        finally:
            running -= 1

    queue = EffectQueue(run, running_max=3)
    for number in range(10):
        queue.add(number)
    await asyncio.sleep(0.01)
    assert (running, len(queue)) == (3, 10)
    release.set()
    while len(queue):
        await asyncio.sleep(0)
    assert (peak, done) == (3, 10)
    release.clear()
    queue.add(10)
    queue.add(11)
    await asyncio.sleep(0)
    queue.close()
    queue.add(12)
    await asyncio.sleep(0.01)
    assert (running, done, len(queue)) == (0, 10, 0)


async def test_a_shard_sees_every_image_and_first_the_one_it_is_loaded_under() -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = runtime_on(made.nodes[1])
        await ready(runtime, made)
        shard = shard_of(runtime)
        assert [change.before for change in shard.changes] == [None]
        before = made.nodes[1].metadata.image
        made.change(isr=(1,))
        await made.until(lambda: made.nodes[1].metadata.image is not before, what="a new image")
        assert [change.before for change in shard.changes] == [None, before]
        assert shard.changes[-1].image is made.nodes[1].metadata.image
        runtime.close()


async def test_an_image_is_shown_again_when_its_decision_can_be_written() -> None:
    async with cluster(1, isr=(1,), min_insync_replicas="2") as made:
        runtime = runtime_on(made.nodes[1])
        await ready(runtime, made)
        assert shard_of(runtime).changes == [], "what it would decide could not be written"
        partition = made.nodes[1].partition
        partition.update_config(replace(partition.log.config, min_insync_replicas=1))
        await made.until(lambda: len(shard_of(runtime).changes) == 1, what="shown")
        runtime.close()
