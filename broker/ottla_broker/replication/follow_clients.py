"""All leaders that this broker follows: one client and one task each, from the image. [S]

The partition host says which leaders to follow; their addresses and incarnations come from the image. A client lives
while a partition follows its leader, and a leader's new incarnation gets a new client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import ReplicationProbe
from ottla_broker.replication.follow_client import FollowClient, Followed
from ottla_broker.replication.throttle import Throttles
from ottla_core.ports.chance import Chance
from ottla_core.ports.clock import Clock
from ottla_core.ports.peers import Peers


class FollowClients:
    def __init__(
        self,
        broker_id: int,
        incarnation: UUID,
        peers: Peers,
        clock: Clock,
        chance: Chance,
        probe: ReplicationProbe,
        *,
        on_lost: Callable[[int], None] | None = None,
        throttles: Throttles | None = None,
    ) -> None:
        """`on_lost` is called with the leader each time its stream breaks."""
        self._on_lost = on_lost
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._peers = peers
        self._clock = clock
        self._chance = chance
        self._probe = probe
        self._throttle = (throttles or Throttles()).follower
        self._image = ClusterImage(cluster_id="")
        #: All following partitions, by leader, including offline leaders.
        self._wanted: dict[int, dict[bytes, Followed]] = {}
        self._clients: dict[int, tuple[FollowClient, asyncio.Task[None]]] = {}
        self._failure: asyncio.Future[None] | None = None
        self._is_closed = False

    async def run(self) -> None:
        """Run until cancelled; raise the error if a client fails unexpectedly."""
        self._failure = asyncio.get_running_loop().create_future()
        try:
            await self._failure
        finally:
            await self.close()

    async def close(self) -> None:
        self._is_closed = True
        ended = [self._end(leader_id) for leader_id in list(self._clients)]
        await asyncio.gather(*ended, return_exceptions=True)

    # ------------------------------------------------------------------ what is followed

    def follow(self, followed: Followed, leader_id: int) -> None:
        self._wanted.setdefault(leader_id, {})[followed.key] = followed
        client = self._client(leader_id)
        if client is not None:
            client.add(followed)

    def unfollow(self, followed: Followed, leader_id: int) -> None:
        """Rule 10: after this returns, nothing from the leader reaches the partition."""
        wanted = self._wanted.get(leader_id, {})
        if wanted.get(followed.key) is not followed:
            return
        del wanted[followed.key]
        if leader_id in self._clients:
            self._clients[leader_id][0].remove(followed)
        if not wanted:
            del self._wanted[leader_id]
            # Not at once: a new epoch of the same leader removes and adds all partitions in the same turn.
            asyncio.get_running_loop().call_soon(self._end_idle)

    def _end_idle(self) -> None:
        for leader_id in [i for i in self._clients if i not in self._wanted]:
            self._end(leader_id)

    def on_image(self, image: ClusterImage) -> None:
        """Brokers came online, went offline, or restarted."""
        self._image = image
        for leader_id, (client, _) in list(self._clients.items()):
            broker = image.brokers.get(leader_id)
            if broker is not None and broker.incarnation != client.leader_incarnation:
                self._end(leader_id)
        for leader_id, wanted in self._wanted.items():
            if leader_id not in self._clients:
                client_or_none = self._client(leader_id)
                if client_or_none is not None:
                    for followed in wanted.values():
                        client_or_none.add(followed)

    def _client(self, leader_id: int) -> FollowClient | None:
        """The client for a leader, created if necessary; None while the leader is not in the image."""
        known = self._clients.get(leader_id)
        if known is not None:
            return known[0]
        broker = self._image.brokers.get(leader_id)
        if broker is None or self._is_closed:
            return None
        client = FollowClient(
            self._broker_id,
            self._incarnation,
            leader_id,
            broker.incarnation,
            self._peers,
            self._clock,
            self._chance,
            self._probe,
            self._on_lost,
            self._throttle,
        )
        task = asyncio.get_running_loop().create_task(client.run(), name=f"follow-{leader_id}")
        task.add_done_callback(self._on_done)
        self._clients[leader_id] = client, task
        return client

    def _end(self, leader_id: int) -> asyncio.Task[None]:
        _, task = self._clients.pop(leader_id)
        task.cancel()
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and self._failure is not None and not self._failure.done():
            self._failure.set_exception(task.exception() or RuntimeError("following ended"))
