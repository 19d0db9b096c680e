"""Coordinators on real partitions: replies wait for the commit, state comes and goes with the leadership (rule 20)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from broker.replication.cluster import Cluster, InlineOffload, Node, cluster
from ottla_broker.broker import Broker
from ottla_broker.coordination.runtime import Runtime
from ottla_broker.group.messages import (
    CommitOffsets,
    CommitReply,
    DescribeGroup,
    FetchOffsets,
    JoinGroup,
    OffsetToCommit,
    Protocol,
    State,
    SyncGroup,
)
from ottla_broker.group.shard import GroupShard
from ottla_broker.groups_config import GroupsConfig
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import GroupsProbe
from ottla_broker.process import _watch_callbacks
from ottla_core.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvariantViolation,
    NotCoordinator,
    RequestError,
)
from ottla_core.ids import TopicPartition
from sim.loop import SimClock, SimLoop

#: A topic that exists; offsets of others are removed. Which one does not matter to the coordinator.
TP = TopicPartition("t", 0)


def coordinator(node: Node, *, commit_timeout_s: float = 5.0, delay_ms: int = 0) -> Runtime:
    config = GroupsConfig(initial_rebalance_delay_ms=delay_ms)
    probe = GroupsProbe()
    runtime = Runtime(
        "t",
        node.host,
        node.cluster.clock,
        InlineOffload(),
        probe,
        lambda: GroupShard(config, probe, record_bytes_max=100_000),
        commit_timeout_s=commit_timeout_s,
    )
    node.metadata.subscribe(runtime.on_image)
    runtime.on_image(ClusterImage(cluster_id=""), node.metadata.image)
    return runtime


def commit(offset: int, group: str = "g") -> CommitOffsets:
    return CommitOffsets(group, -1, "", None, (OffsetToCommit(TP, offset),))


async def got(runtime: Runtime, request: Any, *, limit_s: float = 5.0) -> Any:
    reply = runtime.ask(0, request)
    if isinstance(reply, Awaitable):
        reply = await asyncio.wait_for(reply, limit_s)
    if isinstance(reply, RequestError):
        raise reply
    return reply


async def committed(runtime: Runtime, group: str = "g") -> int:
    (found,) = (await got(runtime, FetchOffsets(group, (TP,)))).offsets
    return int(found.offset)


async def ready(runtime: Runtime, made: Cluster) -> None:
    await made.until(lambda: len(runtime) == 1 and not runtime.is_loading, what="loaded")


async def test_state_moves_with_the_leadership() -> None:
    async with cluster() as made:
        one, two = (coordinator(made.nodes[n]) for n in (1, 2))
        await ready(one, made)
        assert await got(one, commit(7)) == CommitReply((None,))
        assert await committed(one) == 7
        with pytest.raises(NotCoordinator):
            two.ask(0, commit(8))
        made.elect(2)
        await made.leads(2)
        await ready(two, made)
        assert await committed(two) == 7
        await got(two, commit(9))
        with pytest.raises(NotCoordinator):
            one.ask(0, commit(8))
        await _same_end(made)
        made.elect(1)
        await made.leads(1)
        await ready(one, made)
        assert await committed(one) == 9
        for runtime in (one, two):
            runtime.close()


async def test_a_new_partition_answers_its_first_request() -> None:
    """Partitions of a new topic are opened after its image was seen: the first to ask finds the shard unmade."""
    async with cluster() as made:
        await made.leads(1)
        runtime = Runtime(
            "t",
            made.nodes[1].host,
            made.clock,
            InlineOffload(),
            GroupsProbe(),
            lambda: GroupShard(GroupsConfig(), GroupsProbe(), record_bytes_max=100_000),
            commit_timeout_s=5.0,
        )
        assert len(runtime) == 0
        assert await got(runtime, commit(7)) == CommitReply((None,))
        runtime.close()


async def test_a_reply_waits_for_the_commit_and_fails_with_the_leadership() -> None:
    async with cluster(1, 2) as made:  # The third, in the ISR, is away: nothing is committed.
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        waiting = [runtime.ask(0, commit(7)), runtime.ask(0, FetchOffsets("g", (TP,)))]
        await asyncio.sleep(0.1)
        assert not any(w.done() for w in waiting), "the second rests on what the first has written"
        made.elect(2)
        for each in waiting:
            assert isinstance(await asyncio.wait_for(each, 5), NotCoordinator)
        runtime.close()


async def test_a_reply_not_committed_in_time_is_never_sent() -> None:
    async with cluster(1) as made:
        runtime = coordinator(made.nodes[1], commit_timeout_s=0.1)
        await ready(runtime, made)
        for request in (commit(7), FetchOffsets("g", (TP,))):
            with pytest.raises(CoordinatorNotAvailable):
                await got(runtime, request)
        made.change(isr=(1,))
        await made.until(lambda: made.nodes[1].partition.high_watermark == 1, what="committed alone")
        await asyncio.sleep(0.15)
        assert await committed(runtime) == 7, "it was written, and now it counts"
        runtime.close()


async def test_nothing_is_decided_that_cannot_be_written() -> None:
    async with cluster(1, isr=(1,), min_insync_replicas="2") as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        with pytest.raises(CoordinatorNotAvailable):
            runtime.ask(0, commit(7))
        assert made.nodes[1].partition.log.end_offset == 0
        assert await committed(runtime) == -1
        runtime.close()


async def test_no_answers_before_the_old_records_are_committed() -> None:
    async with cluster() as made:
        one = coordinator(made.nodes[1])
        await ready(one, made)
        await got(one, commit(7))
        await _same_end(made)
        one.close()
        await made.nodes[3].kill()
        made.change(isr=(1, 2, 3))
        made.elect(2, isr=(1, 2, 3))
        node = await made.leads(2)
        # Broker 3 is in sync and away: what the log of broker 2 holds may be more than is committed.
        node.partition.high_watermark = 0
        two = coordinator(node)
        with pytest.raises(CoordinatorLoadInProgress):
            two.ask(0, FetchOffsets("g", (TP,)))
        node.partition.commit_to(node.partition.log.end_offset)
        await ready(two, made)
        assert await committed(two) == 7
        two.close()


async def test_requests_of_one_turn_share_a_batch() -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        replies = [runtime.ask(0, commit(number, f"g{number}")) for number in range(500)]
        assert {type(await r) for r in replies} == {CommitReply}
        assert made.nodes[1].metrics.log.batches == 1
        assert made.nodes[1].partition.log.end_offset == 500
        assert await committed(runtime, "g499") == 499
        runtime.close()


async def test_many_records_are_written_in_pieces_and_loaded_again() -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        offsets = tuple(OffsetToCommit(TopicPartition("t", n), n, metadata="x" * 200) for n in range(3000))
        await got(runtime, CommitOffsets("g", -1, "", None, offsets))
        assert 2 <= made.nodes[1].metrics.log.batches <= 10
        made.elect(1)
        await made.leads(1)
        await ready(runtime, made)
        found = (await got(runtime, FetchOffsets("g", None))).offsets
        assert [each.offset for each in found] == list(range(3000))
        runtime.close()


def join(member_id: str = "", new_id: str = "m", session_ms: int = 150) -> JoinGroup:
    protocols = (Protocol("range", b""),)
    return JoinGroup(
        "g", member_id, new_id, None, "c", "/h", "consumer", protocols, session_ms, 1000, False, True
    )


async def test_a_session_ends_by_the_clock() -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        joined = await got(runtime, join())
        await got(runtime, SyncGroup("g", 1, joined.member_id, None, None, None, {joined.member_id: b"a"}))
        assert (await got(runtime, DescribeGroup("g"))).state is State.STABLE
        await asyncio.sleep(0.3)
        shown = await got(runtime, DescribeGroup("g"))
        assert (shown.state, shown.generation) == (State.EMPTY, 2)
        runtime.close()


async def test_a_member_goes_on_under_the_next_coordinator() -> None:
    async with cluster() as made:
        one, two = (coordinator(made.nodes[n]) for n in (1, 2))
        await ready(one, made)
        joined = await got(one, join(session_ms=5000))
        sync = SyncGroup("g", 1, joined.member_id, None, None, None, {joined.member_id: b"mine"})
        await got(one, sync)
        waiting = one.ask(0, join(new_id="n", session_ms=5000))
        made.elect(2)
        assert isinstance(await asyncio.wait_for(waiting, 5), NotCoordinator), (
            "a join that waited looks elsewhere"
        )
        await made.leads(2)
        await ready(two, made)
        assert (await got(two, sync)).assignment == b"mine"
        for runtime in (one, two):
            runtime.close()


async def test_a_bug_in_the_shard_costs_its_state_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, commit(7))
        waiting = runtime.ask(0, join())  # Answered; then one that waits for it.
        assert waiting is not None
        ((_, shard),) = runtime.ready()
        monkeypatch.setattr(shard, "handle", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            runtime.ask(0, commit(8))
        await ready(runtime, made)
        assert await committed(runtime) == 7
        runtime.close()


async def test_a_coordinator_that_may_have_been_replaced_says_nothing() -> None:
    async with cluster() as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, commit(7))
        made.nodes[1].is_confirmed = False
        for other in (2, 3):
            await made.nodes[other].kill()
        await made.until(lambda: _refused(runtime), what="rule 14")
        runtime.close()


def _refused(runtime: Runtime) -> bool:
    try:
        runtime.ask(0, FetchOffsets("g", (TP,)))
    except NotCoordinator:
        return True
    return False


async def _same_end(made: Cluster) -> None:
    """Until all brokers that live have the same, all of it committed."""

    def same() -> bool:
        partitions = [node.partition for node in made.nodes.values()]
        ends = {p.log.end_offset for p in partitions} | {p.high_watermark for p in partitions}
        return len(ends) == 1

    await made.until(same, what="the same logs")


async def test_a_bug_in_a_timer_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, join())
        ((_, shard),) = runtime.ready()
        monkeypatch.setattr(shard, "expire", lambda *_: 1 // 0)
        await made.until(
            lambda: [each for _, each in runtime.ready()] not in ([], [shard]), what="loaded again"
        )
        await got(runtime, commit(7))
        assert await committed(runtime) == 7
        runtime.close()


async def _heard_by_the_broker(made: Cluster, provoke: Callable[[], Awaitable[object]]) -> None:
    """What the process is told of a promise that breaks where nobody waits for an answer."""
    told: list[InvariantViolation] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    _watch_callbacks(cast(Broker, SimpleNamespace(on_violation=told.append)))
    try:
        await provoke()
        await made.until(lambda: bool(told), what="the broker was told")
    finally:
        loop.set_exception_handler(before)
    assert [str(violation) for violation in told] == ["planted"]


def _break(*_: object) -> NoReturn:
    raise InvariantViolation("planted")


async def test_a_promise_that_breaks_in_a_timer_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        monkeypatch.setattr(GroupShard, "expire", _break)
        await _heard_by_the_broker(made, lambda: got(runtime, join()))
        runtime.close()


async def test_a_promise_that_breaks_while_loading_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, commit(7))

        async def load_anew() -> None:
            monkeypatch.setattr(GroupShard, "replay", _break)
            made.elect(1)
            await made.leads(1)

        await _heard_by_the_broker(made, load_anew)
        runtime.close()


async def test_a_damaged_record_log_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1, isr=(1,)) as made:
        runtime = coordinator(made.nodes[1])
        await ready(runtime, made)
        await got(runtime, commit(7))
        with monkeypatch.context() as broken:
            broken.setattr(GroupShard, "replay", lambda *_: 1 // 0)
            made.elect(1)
            await made.leads(1)
            with pytest.raises(CoordinatorLoadInProgress):
                await asyncio.sleep(0.05)
                runtime.ask(0, commit(8))
        await ready(runtime, made)
        assert await committed(runtime) == 7
        runtime.close()


def test_a_timer_has_come_when_it_runs() -> None:
    """On a clock that is exact: found where time goes on only when nobody runs any more."""
    loop = SimLoop()
    clock = SimClock(loop)
    runtime = Runtime(
        "topic",
        cast(Any, None),
        clock,
        InlineOffload(),
        cast(Any, None),
        cast(Any, None),
        commit_timeout_s=1.0,
    )
    early: list[int] = []

    async def main() -> None:
        for at_ms in range(1, 5000, 7):
            ran = loop.create_future()
            runtime._time_is_up = lambda: ran.set_result(runtime._now().monotonic_ms)  # type: ignore[method-assign]  # noqa: B023
            runtime._arm(at_ms)
            if await ran < at_ms:
                early.append(at_ms)

    loop.run_until_complete(main())
    loop.close()
    assert early == []
