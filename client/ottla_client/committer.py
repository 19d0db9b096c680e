"""Committed offsets of one group: written in order, read back. [S]

One commit is on its way at a time, so an older one never overtakes a newer. Those that nobody waits for
(`commit_nowait`, auto commit) are put together while another is on its way: only the newest offset of a partition
matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ottla_client.cluster import Cluster
from ottla_client.connection import told
from ottla_client.coordinator import Coordinator, passes, refusal
from ottla_client.errors import BufferExhausted, CannotConnect, ClientClosed, ClientError, CommitFailed
from ottla_client.group_effects import Identity
from ottla_client.record import CommittedOffset, OffsetAndMetadata
from ottla_core.errors import (
    FencedInstanceId,
    IllegalGeneration,
    RebalanceInProgress,
    RequestError,
    RequestTimedOut,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition
from ottla_core.pb import groups_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

Offsets: TypeAlias = dict[TopicPartition, OffsetAndMetadata]
#: Called with what was to be committed, and the error or None.
OnCommit: TypeAlias = Callable[[Offsets, Exception | None], None]

_PAUSE_S = 0.1
#: Callbacks that wait; whoever commits faster than that does not look at the answers.
_WAITING_MAX = 10_000
_REFUSED_AS_MEMBER = (UnknownMemberId, IllegalGeneration, FencedInstanceId)


class Committer:
    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        coordinator: Coordinator,
        *,
        instance_id: str,
        timeout_s: float,
        identity: Callable[[], Identity],
        held: Callable[[], Iterable[TopicPartition]],
        on_refused: Callable[[Identity, RequestError], None],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._coordinator = coordinator
        self._instance_id = instance_id
        self._timeout_s = timeout_s
        self._identity = identity
        self._held = held
        self._on_refused = on_refused
        self._one_at_a_time = asyncio.Lock()
        self._waiting: Offsets = {}
        self._callbacks: list[OnCommit] = []
        #: The task that takes what waits to the coordinator, while there is something.
        self._draining: asyncio.Task[None] | None = None
        #: What we know to be committed, so that auto commit is silent while nothing moves.
        self.known: dict[TopicPartition, int] = {}

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float | None = None
    ) -> None:
        """Return when they are committed. CommitFailed if the group has moved on without us."""
        if not offsets:
            return
        deadline = self._clock.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        await self.settled(deadline - self._clock.monotonic())
        await self._commit(offsets, deadline)

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float) -> None:
        if not offsets:
            return
        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            raise RequestTimedOut("An earlier commit is still on its way.") from None
        try:
            first = self._identity()
            while not await self._attempt(offsets, deadline):
                await self._clock.sleep(_PAUSE_S)
                if self._identity() != first and not set(offsets) <= set(self._held()):
                    # Signed with a newer generation it would be taken, over what the new owner has committed.
                    raise CommitFailed(
                        "The offsets were not committed before their partitions went to others."
                    )
        finally:
            self._one_at_a_time.release()
        self.known.update((tp, each.offset) for tp, each in offsets.items())

    async def _attempt(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float) -> bool:
        """False: try again."""
        identity = self._identity()
        request = pb.CommitOffsetsRequest(
            group=self._coordinator.group,
            generation=identity.generation,
            member_id=identity.member_id,
            group_instance_id=self._instance_id if identity.member_id else "",
        )
        for tp, each in offsets.items():
            request.offsets.add(
                topic=tp.topic,
                partition=tp.partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
        left_s = deadline - self._clock.monotonic()
        if left_s <= 0:
            raise RequestTimedOut("The offsets were not committed in time.")
        try:
            answer = await self._coordinator.call("CommitOffsets", request, left_s)
            refused = refusal(answer)
            if refused is not None:
                raise refused
            for each in answer.partitions:
                if each.HasField("error"):
                    raise told(each.error)
        except _REFUSED_AS_MEMBER as error:
            if identity != self._identity() and self._identity().generation >= 0:
                return False  # a rebalance has passed by while it was on its way
            self._on_refused(identity, error)
            raise CommitFailed(
                f"The offsets were not committed, because the group goes on without this member ({error.message}) "
                "Its partitions may be read by others from the last committed offsets on."
            ) from error
        except RebalanceInProgress:
            # The generation begins: in a moment we may.
            if self._clock.monotonic() + _PAUSE_S >= deadline:
                raise
            return False
        except (RequestError, CannotConnect) as error:
            if not passes(error) or self._clock.monotonic() + _PAUSE_S >= deadline:
                raise
            return False
        return True

    # ------------------------------------------------------------------ without waiting

    def commit_nowait(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: OnCommit | None
    ) -> None:
        if callback is not None:
            if len(self._callbacks) >= _WAITING_MAX:
                raise BufferExhausted(f"{_WAITING_MAX} commits wait for the coordinator; wait for some.")
            self._callbacks.append(callback)
        self._waiting.update(offsets)
        if self._draining is None:
            self._draining = self._cluster.background.spawn(self._drain(), "commit")

    async def settled(self, timeout_s: float) -> None:
        """Wait until what nobody waits for is through, one way or the other, or the time is up."""
        if self._draining is not None:
            await asyncio.wait((self._draining,), timeout=timeout_s)

    async def _drain(self) -> None:
        offsets: Offsets = {}
        callbacks: list[OnCommit] = []
        try:
            while self._waiting or self._callbacks:
                offsets, self._waiting = self._waiting, {}
                callbacks, self._callbacks = self._callbacks, []
                failed: Exception | None = None
                try:
                    await self._commit(offsets, self._clock.monotonic() + self._timeout_s)
                except (ClientError, RequestError) as error:
                    failed = error
                    if not callbacks:
                        log.warning("Offsets were not committed: %s", error)
                told, callbacks = callbacks, []
                _tell(told, offsets, failed)
        finally:
            self._draining = None
            # Only if the consumer was closed while the coordinator did not answer.
            closed = ClientClosed("The consumer was closed before the offsets were committed.")
            _tell([*callbacks, *self._callbacks], {**offsets, **self._waiting}, closed)
            self._callbacks = []

    # ------------------------------------------------------------------ reading

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for each; None where it has nothing."""
        wanted = list(dict.fromkeys(partitions))
        if not wanted:
            return {}
        found = await fetch_offsets(
            self._coordinator, wanted, self._timeout_s if timeout_s is None else timeout_s
        )
        self.known.update((tp, each.offset) for tp, each in found.items())
        return {tp: found.get(tp) for tp in wanted}


def _tell(callbacks: Iterable[OnCommit], offsets: Offsets, failed: Exception | None) -> None:
    for callback in callbacks:
        try:
            callback(dict(offsets), failed)
        except Exception:
            log.exception("The callback of a commit failed")


async def fetch_offsets(
    coordinator: Coordinator, partitions: Iterable[TopicPartition] | None, timeout_s: float
) -> Offsets:
    """What is committed for these partitions, or for all; what has nothing is left out."""
    found = await fetch_committed(coordinator, partitions, timeout_s)
    return {
        tp: OffsetAndMetadata(each.offset, each.metadata, each.leader_epoch) for tp, each in found.items()
    }


async def fetch_committed(
    coordinator: Coordinator, partitions: Iterable[TopicPartition] | None, timeout_s: float
) -> dict[TopicPartition, CommittedOffset]:
    """The same with all that the coordinator keeps."""
    request = pb.FetchOffsetsRequest(group=coordinator.group, require_stable=True, generation=-1)
    for tp in partitions or ():
        request.partitions.add(topic=tp.topic, partition=tp.partition)
    answer = await coordinator.ask("FetchOffsets", request, timeout_s)
    found: dict[TopicPartition, CommittedOffset] = {}
    for each in answer.offsets:
        if each.HasField("error"):
            raise told(each.error)
        if each.offset >= 0:
            found[TopicPartition(each.topic, each.partition)] = CommittedOffset(
                each.offset, each.metadata, each.leader_epoch, each.commit_timestamp_ms
            )
    return found
