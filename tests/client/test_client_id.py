"""The client id: sent with every call and stream, so that brokers can count, limit and name their clients."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from client.fake_services import FakeCluster
from ottla_cli.local_cluster import LocalCluster
from ottla_client import Admin, Consumer, Producer, TopicPartition


async def test_each_client_names_itself_in_calls_and_streams() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        broker = cluster.brokers[0]
        seen: set[str] = set()
        async with Producer(cluster.address, client_id="billing 7") as producer:
            await producer.send_and_wait("t", b"x")
            seen.add(broker.caller.client_id)
        async with Consumer(cluster.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert await consumer.poll(5000)
            seen.add(broker.caller.client_id)
        async with Admin(cluster.address):
            seen.add(broker.caller.client_id)
        assert seen == {"billing 7", "ottla-consumer", "ottla-admin"}


@pytest.mark.parametrize("wrong", ["käfer", "two\nlines", "x" * 257])
def test_a_client_id_that_no_header_can_carry_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Producer("127.0.0.1:1", client_id=wrong)


@pytest.mark.integration
async def test_brokers_count_grpc_clients_by_name(local_cluster: LocalCluster) -> None:
    async with Producer(local_cluster.grpc_bootstrap, client_id="counted") as producer:
        await producer.send_and_wait("client-ids", b"x")
        page = await asyncio.to_thread(_metrics, local_cluster)
    wanted = 'ottla_client_requests_total{edge="grpc",client_id="counted"}'
    (line,) = [line for line in page.splitlines() if line.startswith(wanted)]
    assert float(line.split()[-1]) >= 1


def _metrics(cluster: LocalCluster) -> str:
    with urllib.request.urlopen(f"http://{cluster.brokers[0].http}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")
