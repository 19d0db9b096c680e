"""A broker of the cluster that asks far too much of the controller: it is refused, and the others are served."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla_broker.cluster_secret import cluster_secret
from ottla_broker.config import resolve_store
from ottla_broker.etcd_access import etcd_store
from ottla_broker.membership.broker_rpc import ANSWERING_OF_KIND_MAX
from ottla_broker.metadata.sections.brokers import BROKERS
from ottla_broker.metadata.sections.cluster import CLUSTER
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_broker.replication.grpc_peers import GrpcPeers, PeerAddress
from ottla_broker.replication.peer_auth import SecretAuth
from ottla_cli.local_cluster import LocalCluster
from ottla_core.errors import ThrottlingQuotaExceeded
from ottla_core.ports.peers import PeerUnavailable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

GREEDY = 7
QUESTIONS = 1000
CONNECTIONS = 10


async def _controller(etcd: str) -> tuple[str, int, PeerAddress]:
    """The cluster's id, the controller's, and where it listens."""
    store = etcd_store(*resolve_store({"etcd.endpoints": etcd}, {}, None))
    try:
        (cluster,) = (e for e in (await store.scan("cluster")).entries if e.key == "cluster")
        (held,) = (await store.scan("controller")).entries
        controller = CONTROLLER.decode(held).broker_id
        brokers = [BROKERS.decode(entry) for entry in (await store.scan("brokers/")).entries]
    finally:
        await store.close()
    broker = next(each for each in brokers if each.id == controller)
    where = broker.endpoint("internal")
    assert where is not None
    return CLUSTER.decode(cluster), controller, PeerAddress(where.host, where.port, broker.incarnation)


async def _hold(peers: GrpcPeers, controller: int) -> str:
    try:
        answer = await peers.ask(controller, b'{"v":1,"ask":"hold"}', 60)
    except PeerUnavailable:
        return "cut off"
    error = json.loads(answer).get("error")
    return "answered" if error is None else str(error["code"])


async def _besiege(cluster: LocalCluster) -> None:
    cluster_id, controller, where = await _controller(cluster.etcd_endpoint)
    secret = cluster_secret(str(Path(cluster.data_dir) / "cluster.secret"))
    callers = [
        GrpcPeers(lambda _: where, SecretAuth(secret.values, cluster_id, GREEDY, uuid4()))
        for _ in range(CONNECTIONS)
    ]
    asked = [asyncio.ensure_future(_hold(callers[n % CONNECTIONS], controller)) for n in range(QUESTIONS)]
    try:
        refused = str(ThrottlingQuotaExceeded.code)
        async with asyncio.timeout(15):
            while sum(task.done() for task in asked) < QUESTIONS - ANSWERING_OF_KIND_MAX:
                await asyncio.sleep(0.05)
        assert {task.result() for task in asked if task.done()} == {refused}
        other = next(b for b in cluster.brokers.values() if b.id != controller)
        began = time.monotonic()
        await asyncio.to_thread(_create_topic, other.kafka)
        assert time.monotonic() - began < 10
        assert sum(not task.done() for task in asked) == ANSWERING_OF_KIND_MAX
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for peers in callers:
            await peers.close()


def _create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic("letters", 1, 2)], request_timeout=20).values():
        made.result(20)


def test_a_thousand_held_questions_of_one_broker_stop_nobody_else() -> None:
    with LocalCluster(brokers=2) as cluster:
        asyncio.run(_besiege(cluster))
