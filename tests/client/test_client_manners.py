"""What a user may do wrong, and what it must not cost: failing callbacks, a full buffer, commits in a hurry."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest

from client.fake_services import FakeCluster
from ottla_client import Admin, Consumer, Producer, TopicPartition, sync
from ottla_client.committer import Committer
from ottla_client.errors import BufferExhausted, ClientClosed, CommitFailed, UnknownTopicOrPartition
from ottla_client.group_effects import Identity
from ottla_client.record import OffsetAndMetadata
from ottla_core.pb import groups_pb2 as pb
from ottla_core.real.clock import RealClock

T0 = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as made:
        made.add_topic("t")
        yield made


async def test_a_failing_callback_affects_no_other_record(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_delivery: object) -> None:
        raise LookupError("a bug of the user's")

    async with Producer(cluster.address) as producer:
        first = await producer.send("t", b"first")
        first.add_done_callback(fail)
        second = await producer.send("t", b"second")
        async with asyncio.timeout(5):
            assert [(await first).offset, (await second).offset] == [0, 1]
            assert (await producer.send_and_wait("t", b"third")).offset == 2
    assert "a bug of the user's" in caplog.text


async def test_waiting_for_room_does_not_keep_the_processor_busy(cluster: FakeCluster) -> None:
    async with Producer(cluster.address, buffer_memory=1000, max_block_ms=500) as producer:
        await producer.send_and_wait("t", b"first")
        cluster.hold = asyncio.Event()
        await producer.send("t", bytes(900))
        runs = 0
        do_all = producer._sender._pump._work

        def counted(now: float) -> Iterable[float | None]:
            nonlocal runs
            runs += 1
            return do_all(now)

        producer._sender._pump._work = counted
        with pytest.raises(BufferExhausted):
            await producer.send("t", bytes(900))
        assert runs < 20
        cluster.hold.set()
        cluster.hold = None


async def test_a_topic_recreated_with_fewer_partitions_is_written_to(cluster: FakeCluster) -> None:
    cluster.add_topic("again", 8)
    async with Producer(cluster.address, retry_backoff_ms=5, delivery_timeout_ms=3000) as producer:
        for number in range(8):
            await producer.send_and_wait("again", b"old", partition=number)
        cluster.drop_topic("again")
        cluster.add_topic("again", 2)
        await producer.partitions_for("again")
        await producer._cluster.refresh(["again"], timeout_s=5)
        for number in range(20):
            sent = await producer.send_and_wait("again", b"new", key=b"%d" % number)
            assert sent.partition < 2
            assert (await producer.send_and_wait("again", b"new")).partition < 2
        with pytest.raises(UnknownTopicOrPartition, match="0 to 1"):
            await producer.send("again", b"new", partition=5)


async def test_what_is_paused_in_the_middle_of_an_iteration_waits_until_it_is_resumed(
    cluster: FakeCluster,
) -> None:
    cluster.add_topic("two", 2)
    async with Producer(cluster.address) as producer:
        for number in range(20):
            await producer.send("two", b"%d" % number, partition=number % 2)
    both = [TopicPartition("two", 0), TopicPartition("two", 1)]
    async with Consumer(cluster.address, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        consumer.assign(both)
        paused, got = None, []
        async with asyncio.timeout(10):
            async for record in consumer:
                got.append((record.partition, record.offset))
                assert record.partition != paused, "paused, and given out"
                if len(got) == 3:
                    paused = record.partition
                    consumer.pause(both[paused])
                if paused is not None and sum(partition != paused for partition, _ in got) == 10:
                    consumer.resume(both[paused])
                    paused = None
                if len(got) == 20:
                    break
    assert sorted(got) == [(partition, offset) for partition in range(2) for offset in range(10)]
    for number in range(2):
        assert [offset for partition, offset in got if partition == number] == list(range(10))


async def test_the_letters_of_a_name_are_not_topics(cluster: FakeCluster) -> None:
    async with Admin(cluster.address) as admin:
        with pytest.raises(TypeError, match="list of topic"):
            await admin.create_topics("greetings")
        assert await admin.list_topics() == ["t"]


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        (Producer, "max_in_flight", 0),
        (Producer, "batch_size", 0),
        (Producer, "buffer_memory", -1),
        (Producer, "delivery_timeout_ms", 0),
        (Producer, "compression", "frob"),
        (Consumer, "max_poll_records", 0),
        (Consumer, "max_partition_fetch_bytes", 0),
        (Consumer, "request_timeout_ms", 0),
        (Admin, "request_timeout_ms", 0),
    ],
)
def test_settings_with_which_nothing_would_ever_happen_are_refused(
    kind: Any, setting: str, value: object
) -> None:
    with pytest.raises(ValueError, match=setting if setting != "compression" else "zstd"):
        kind("127.0.0.1:1", **{setting: value})


class SlowCoordinator:
    """Takes commits, a little later."""

    group = "g"

    def __init__(self) -> None:
        self.committed: list[int] = []

    async def call(self, method: str, request: Any, timeout_s: float) -> pb.CommitOffsetsResponse:
        await asyncio.sleep(0.01)
        self.committed.extend(each.offset for each in request.offsets)
        return pb.CommitOffsetsResponse()


@pytest.fixture
async def committing(cluster: FakeCluster) -> AsyncIterator[tuple[Committer, SlowCoordinator]]:
    coordinator = SlowCoordinator()
    async with Admin(cluster.address) as admin:
        yield _committer(admin, coordinator), coordinator


def _committer(
    admin: Admin, coordinator: SlowCoordinator, is_subscribed: Callable[[], bool] = lambda: False
) -> Committer:
    return Committer(
        admin._cluster,
        RealClock(),
        coordinator,  # type: ignore[arg-type]
        instance_id="",
        timeout_s=5,
        identity=Identity,
        is_subscribed=is_subscribed,
        held=lambda: (),
        on_refused=lambda *_: None,
        on_committed=lambda _: None,
    )


async def test_a_commit_does_not_overtake_an_unawaited_one(
    committing: tuple[Committer, SlowCoordinator],
) -> None:
    committer, coordinator = committing
    committer.commit_nowait({T0: OffsetAndMetadata(5)}, None)
    await committer.commit({T0: OffsetAndMetadata(10)})
    await committer.settled(5)
    assert coordinator.committed == [5, 10]


async def test_a_subscribed_consumer_that_is_no_member_commits_nothing(cluster: FakeCluster) -> None:
    """Its group may be empty by now, and takes commits without a generation from anybody."""
    coordinator = SlowCoordinator()
    async with Admin(cluster.address) as admin:
        committer = _committer(admin, coordinator, lambda: True)
        with pytest.raises(CommitFailed, match="not a member"):
            await committer.commit({T0: OffsetAndMetadata(5)})
    assert coordinator.committed == []


async def test_commits_under_way_are_waited_for_at_the_end(
    committing: tuple[Committer, SlowCoordinator],
) -> None:
    committer, coordinator = committing
    heard: list[Exception | None] = []
    committer.commit_nowait({T0: OffsetAndMetadata(5)}, lambda _offsets, error: heard.append(error))
    await committer.settled(5)
    assert coordinator.committed == [5] and heard == [None]


async def test_a_pending_commit_is_answered_though_the_client_is_closed(
    cluster: FakeCluster,
) -> None:
    class Silent(SlowCoordinator):
        async def call(self, method: str, request: Any, timeout_s: float) -> pb.CommitOffsetsResponse:
            await asyncio.Event().wait()
            raise AssertionError

    heard: list[tuple[int, Exception | None]] = []
    async with Admin(cluster.address) as admin:
        committer = _committer(admin, Silent())
        for number in (5, 6):
            committer.commit_nowait(
                {T0: OffsetAndMetadata(number)},
                lambda offsets, error: heard.append((offsets[T0].offset, error)),
            )
            await asyncio.sleep(0)
        await committer.settled(0.05)
        assert heard == []
    assert [type(error) for _, error in heard] == [ClientClosed] * 2


def public(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("kind", [sync.Producer, sync.Consumer, sync.Admin])
def test_the_blocking_face_has_all_of_the_async_one_and_says_what_it_does(kind: Any) -> None:
    here, there = public(kind), public(kind.kind)
    # Blocking `send` never waits for the loop, so that is what it is. Callers that encode batches run a loop.
    assert set(there) - {"send_nowait", "send_encoded", "batch_bytes"} == set(here)
    assert [name for name, method in here.items() if not inspect.getdoc(method)] == []
    assert list(inspect.signature(kind).parameters) == list(inspect.signature(kind.kind).parameters)


async def test_a_partition_without_a_leader_does_not_hide_how_far_the_others_are(
    cluster: FakeCluster,
) -> None:
    cluster.add_topic("half", leaders=[0, -1])
    led, unled, gone = (TopicPartition("half", 0), TopicPartition("half", 1), TopicPartition("no", 0))
    async with Admin(cluster.address) as admin, Producer(cluster.address) as producer:
        await producer.send_and_wait("half", b"x", partition=0)
        async with asyncio.timeout(5):
            assert await admin._groups._ends([led, unled, gone]) == {led: 1}
