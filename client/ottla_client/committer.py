"""Commits and reads the offsets of one group. [S]

Only one commit is in flight at a time, so an older one never overwrites a newer one. Asynchronous commits
(`commit_nowait`, auto commit) are merged while another is in flight: only the newest offset of a partition
matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ottla_client.cluster import Cluster
from ottla_client.connection import exception_of
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
    StaleMemberEpoch,
    UnknownMemberId,
)
from ottla_core.ids import TopicPartition
from ottla_core.pb import groups_pb2 as pb
from ottla_core.ports.clock import Clock

log = logging.getLogger(__name__)

Offsets: TypeAlias = dict[TopicPartition, OffsetAndMetadata]
#: Called with the offsets and the error, or None.
OnCommit: TypeAlias = Callable[[Offsets, Exception | None], None]

_PAUSE_S = 0.1
#: Limit of waiting callbacks; a caller with more does not check the outcomes.
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
        is_subscribed: Callable[[], bool],
        held: Callable[[], Iterable[TopicPartition]],
        on_refused: Callable[[Identity, RequestError], None],
        on_committed: Callable[[Offsets], None],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._coordinator = coordinator
        self._instance_id = instance_id
        self._timeout_s = timeout_s
        self._identity = identity
        self._is_subscribed = is_subscribed
        self._held = held
        self._on_refused = on_refused
        self._on_committed = on_committed
        self._one_at_a_time = asyncio.Lock()
        self._waiting: Offsets = {}
        self._callbacks: list[OnCommit] = []
        #: The task that sends waiting commits; None if there are none.
        self._draining: asyncio.Task[None] | None = None
        #: Offsets known to be committed, so that auto commit sends nothing without progress.
        self.known: dict[TopicPartition, int] = {}

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float | None = None
    ) -> None:
        """Return when the offsets are committed. CommitFailed if this member is no longer in the group."""
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
            raise RequestTimedOut("An earlier commit is still in flight.") from None
        try:
            first = self._identity()
            while not await self._attempt(offsets, deadline):
                await self._clock.sleep(_PAUSE_S)
                if self._identity() != first and not set(offsets) <= set(self._held()):
                    # With a newer generation the coordinator would accept it, and overwrite the new owner's commit.
                    raise CommitFailed(
                        "The offsets were not committed before their partitions were reassigned."
                    )
        finally:
            self._one_at_a_time.release()
        self.known.update((tp, each.offset) for tp, each in offsets.items())
        self._on_committed(dict(offsets))

    async def _attempt(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float) -> bool:
        """False: try again."""
        identity = self._identity()
        if self._is_subscribed() and identity.generation < 0:
            # A group without members takes it as a commit of a consumer that needs no group, and offsets go back.
            raise CommitFailed(
                "The offsets were not committed: this consumer is not a member of its group now. Other members may "
                "read its partitions from the last committed offsets."
            )
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
                    raise exception_of(each.error)
        except _REFUSED_AS_MEMBER as error:
            if identity != self._identity() and self._identity().generation >= 0:
                return False  # a rebalance completed while it was in flight
            self._on_refused(identity, error)
            raise CommitFailed(
                f"The offsets were not committed: this consumer is no longer a member of the group ({error.message}) "
                "Other members may read its partitions from the last committed offsets."
            ) from error
        except (RebalanceInProgress, StaleMemberEpoch):
            # A rebalance is completing, or the heartbeat response with the new epoch is under way; retry shortly.
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
                raise BufferExhausted(
                    f"{_WAITING_MAX} commits wait for the coordinator; wait until some are done."
                )
            self._callbacks.append(callback)
        self._waiting.update(offsets)
        if self._draining is None:
            self._draining = self._cluster.background.spawn(self._drain(), "commit")

    async def settled(self, timeout_s: float) -> None:
        """Wait until asynchronous commits have succeeded or failed, or the time is up."""
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
            # Cancelled: the consumer was closed while the coordinator did not answer.
            closed = ClientClosed("The consumer was closed before the offsets were committed.")
            _tell([*callbacks, *self._callbacks], {**offsets, **self._waiting}, closed)
            self._callbacks = []

    # ------------------------------------------------------------------ reading

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None if there is none."""
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
    """Committed offsets of these partitions, or of all. Partitions without one are omitted."""
    found = await fetch_committed(coordinator, partitions, timeout_s)
    return {
        tp: OffsetAndMetadata(each.offset, each.metadata, each.leader_epoch) for tp, each in found.items()
    }


async def fetch_committed(
    coordinator: Coordinator, partitions: Iterable[TopicPartition] | None, timeout_s: float
) -> dict[TopicPartition, CommittedOffset]:
    """Like `fetch_offsets`, with all fields that the coordinator keeps."""
    request = pb.FetchOffsetsRequest(group=coordinator.group, require_stable=True, generation=-1)
    for tp in partitions or ():
        request.partitions.add(topic=tp.topic, partition=tp.partition)
    answer = await coordinator.ask("FetchOffsets", request, timeout_s)
    found: dict[TopicPartition, CommittedOffset] = {}
    for each in answer.offsets:
        if each.HasField("error"):
            raise exception_of(each.error)
        if each.offset >= 0:
            found[TopicPartition(each.topic, each.partition)] = CommittedOffset(
                each.offset, each.metadata, each.leader_epoch, each.commit_timestamp_ms
            )
    return found
