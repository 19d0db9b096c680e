"""Fetch sessions: what an incremental fetch is told, and what ends a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from broker.edge.fakes import FakeBroker
from broker.edge.kafka_batches import batch
from broker.edge.kafka_peer import Peer
from broker.edge.test_kafka_handlers import fetch_fields, request_types
from ottla_broker.config import KafkaEdgeConfig
from ottla_broker.edge.kafka.fetch_session import FetchSession
from ottla_broker.edge.kafka.fetch_wire import FetchPartition, FetchTopic
from ottla_broker.requests import Fetched
from ottla_core.ids import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        running.services.add_topic("t")
        yield running


@pytest.fixture
async def peer(broker: FakeBroker) -> AsyncIterator[Peer]:
    connected = await Peer.connect(broker.port)
    yield connected
    connected.close()


async def fetch(
    peer: Peer, wanted: dict[int, int], session: tuple[int, int], version: int = 12, **more: Any
) -> Any:
    fields = fetch_fields(version, more.pop("topic", "t"), wanted, **more)
    if not wanted:
        fields["topics"] = ()
    session_id, epoch = session
    return await peer.ask(1, version, **(fields | {"session_id": session_id, "session_epoch": epoch}))


def told(answer: Any) -> list[tuple[int, int, bool]]:
    return [
        (p.partition_index, p.error_code.value, bool(p.records))
        for t in answer.responses
        for p in t.partitions
    ]


async def test_an_incremental_fetch_gets_only_changes(broker: FakeBroker, peer: Peer) -> None:
    first = await fetch(peer, {0: 0, 1: 0}, (0, 0))
    assert first.session_id > 0
    assert told(first) == [(0, 0, False), (1, 0, False)]
    assert told(await fetch(peer, {}, (first.session_id, 1))) == []
    broker.services.records.append(T1, batch(b"x"), 1)
    second = await fetch(peer, {}, (first.session_id, 2))
    assert (second.session_id, told(second)) == (first.session_id, [(1, 0, True)])
    # The client has moved on; the high watermark it knows already.
    assert told(await fetch(peer, {1: 1}, (first.session_id, 3))) == []


async def test_partitions_are_added_and_forgotten(broker: FakeBroker, peer: Peer) -> None:
    for tp in (T0, T1):
        broker.services.records.append(tp, batch(b"x"), 1)
    session_id = (await fetch(peer, {0: 0}, (0, 0))).session_id
    assert told(await fetch(peer, {1: 0}, (session_id, 1))) == [(0, 0, True), (1, 0, True)]
    types = request_types(1, 12)
    forgotten = (types.ForgottenTopic(topic="t", partitions=(0,)),)
    answer = await fetch(peer, {}, (session_id, 2), forgotten_topics_data=forgotten)
    assert told(answer) == [(1, 0, True)]


async def test_an_error_is_repeated_and_so_is_its_end(broker: FakeBroker, peer: Peer) -> None:
    session_id = (await fetch(peer, {0: 5, 1: 0}, (0, 0))).session_id
    assert told(await fetch(peer, {}, (session_id, 1))) == [(0, 1, False)]
    assert told(await fetch(peer, {0: 0}, (session_id, 2))) == [(0, 0, False)]
    assert told(await fetch(peer, {}, (session_id, 3))) == []


async def test_a_wrong_epoch_and_a_wrong_id_are_refused(broker: FakeBroker, peer: Peer) -> None:
    session_id = (await fetch(peer, {0: 0}, (0, 0))).session_id
    assert (await fetch(peer, {}, (session_id, 7))).error_code.value == 71
    assert (await fetch(peer, {}, (session_id + 1, 1))).error_code.value == 70
    assert (await fetch(peer, {}, (session_id, 1))).error_code.value == 0


async def test_a_session_ends_when_its_client_says_so(broker: FakeBroker, peer: Peer) -> None:
    session_id = (await fetch(peer, {0: 0}, (0, 0))).session_id
    full = await fetch(peer, {0: 0}, (session_id, -1))
    assert (full.session_id, told(full)) == (0, [(0, 0, False)])
    assert (await fetch(peer, {}, (session_id, 1))).error_code.value == 70
    other = await fetch(peer, {0: 0}, (session_id, 0))
    assert other.session_id not in (0, session_id)


async def test_a_session_ends_with_its_connection(broker: FakeBroker, peer: Peer) -> None:
    session_id = (await fetch(peer, {0: 0}, (0, 0))).session_id
    other = await Peer.connect(broker.port)
    assert (await fetch(other, {}, (session_id, 1))).error_code.value == 70
    other.close()
    assert len(broker.edge._shared.fetch_sessions._sessions) == 1
    peer.close()
    await broker.edge.stop(1.0)
    assert broker.edge._shared.fetch_sessions._sessions == {}
    assert broker.edge._shared.fetch_sessions._partitions == 0


async def test_names_and_ids_do_not_mix_in_a_session(broker: FakeBroker, peer: Peer) -> None:
    session_id = (await fetch(peer, {0: 0}, (0, 0), topic=UUID(int=9), version=13)).session_id
    assert session_id > 0
    assert (await fetch(peer, {}, (session_id, 1), version=12)).error_code.value == 70


async def test_without_room_fetches_go_on_in_full() -> None:
    async with FakeBroker(replace(KafkaEdgeConfig(), fetch_sessions_max=1)) as broker:
        broker.services.add_topic("t")
        peers = [await Peer.connect(broker.port) for _ in range(2)]
        ids = [(await fetch(peer, {0: 0}, (0, 0))).session_id for peer in peers]
        assert ids == [1, 0]
        assert told(await fetch(peers[1], {0: 0}, (0, 0))) == [(0, 0, False)]
        for peer in peers:
            peer.close()


async def test_an_incremental_fetch_waits_like_any_other(broker: FakeBroker, peer: Peer) -> None:
    session_id = (await fetch(peer, {0: 0, 1: 0}, (0, 0))).session_id
    fields = fetch_fields(12, "t", {}, session_id=session_id, session_epoch=1, topics=())
    peer.send(1, 12, **(fields | {"max_wait": timedelta(seconds=20)}))
    other = await Peer.connect(broker.port)
    await other.ask(18, 0)
    broker.services.records.append(T1, batch(b"x"), 1)
    assert told(await peer.receive()) == [(1, 0, True)]
    other.close()


def test_served_partitions_come_after_those_of_other_topics() -> None:
    session = FetchSession(1, by_id=False)
    wanted = [FetchTopic(key, [FetchPartition(n, 0, 1000, -1) for n in range(2)]) for key in (b"a", b"b")]
    session.update(wanted)
    busy = Fetched(TopicPartition("a", 1), None, 1, 1, 0, b"records")
    session.news([(b"a", [(1, busy)])])
    turns = [(topic.key, p.partition) for topic in session.topics() for p in topic.partitions]
    assert turns == [(b"a", 0), (b"b", 0), (b"b", 1), (b"a", 1)]
