"""Wires one broker to its peers: Follow streams both ways, in-sync sets, and their requests. [S]

Wired by the composition root from parts that do not know each other; decides nothing. The internal listener passes it
what other brokers send, the partition host what it wants of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from ottla_broker.controller.isr_writer import IsrWriter
from ottla_broker.metadata.watcher import Metadata
from ottla_broker.metrics import ReplicationProbe
from ottla_broker.partition.host import PartitionHost
from ottla_broker.replication.follow_clients import FollowClients
from ottla_broker.replication.follow_server import FollowServer
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload
from ottla_core.ports.peers import FollowLink, Peers
from ottla_core.ports.store import MetadataStore


class PeerWiring:
    def __init__(
        self,
        broker_id: int,
        incarnation: UUID,
        host: PartitionHost,
        metadata: Metadata,
        store: MetadataStore,
        peers: Peers,
        *,
        answer: Callable[[bytes, int], Awaitable[bytes]],
        suspect: Callable[[int], None],
        is_confirmed: Callable[[], bool],
        clock: Clock,
        offload: Offload,
        chance: Chance,
        probe: ReplicationProbe,
    ) -> None:
        """`answer` handles requests of other brokers, `suspect` is called with brokers whose streams broke."""
        self.incarnation = incarnation
        self._answer = answer
        self._host = host
        self._server = FollowServer(
            broker_id,
            incarnation,
            host.find_by_key,
            clock,
            offload,
            probe,
            on_lost=suspect,
            throttles=host.replication.throttles,
        )
        self._clients = FollowClients(
            broker_id,
            incarnation,
            peers,
            clock,
            chance,
            probe,
            on_lost=suspect,
            throttles=host.replication.throttles,
        )
        self._isr_writer = IsrWriter(store, clock, metadata)
        host.connect(self._clients, self._isr_writer, on_led=self._server.on_led, is_confirmed=is_confirmed)

    async def run(self) -> None:
        """Follow leaders until cancelled."""
        await self._clients.run()

    async def serve(self, link: FollowLink, follower: int) -> None:
        await self._server.serve(link, follower)

    async def answer(self, request: bytes, caller: int) -> bytes:
        return await self._answer(request, caller)

    async def stop(self) -> None:
        """Stop all Follow streams in both directions; the logs may be closed then."""
        self._server.stop()
        await self._clients.close()
        await self._isr_writer.close()
