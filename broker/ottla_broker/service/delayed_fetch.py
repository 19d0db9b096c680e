"""One fetch: locate, perhaps wait, read. [S]

Located first, read later: a fetch that has to wait for more data (`fetch_wait`) has not copied any. A read of a range
that was not read recently may need indexes from disk: a thread reads them, or rebuilds them from the log.

A fetch of many partitions is made in slices (`steps`); partitions may change between them. An extent lies below the
high watermark, so it stays valid whichever broker leads by the time it is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from ottla_broker.log.log import Extent, NotLoaded
from ottla_broker.log.reader import Batches, LogReader
from ottla_broker.metrics import Metrics
from ottla_broker.partition.host import PartitionHost
from ottla_broker.partition.partition import Partition
from ottla_broker.requests import Aborted, Fetched, FetchWant, Maybe
from ottla_broker.scheduler import Scheduler
from ottla_broker.service.fetch_wait import FetchWait
from ottla_broker.service.reread_check import RereadCheck
from ottla_broker.steps import PARTITIONS_PER_STEP, exhaust
from ottla_broker.visits import stepped
from ottla_core.errors import KafkaStorageError, NotLeaderOrFollower, RequestError
from ottla_core.ids import NO_BROKER, TopicPartition
from ottla_core.ports.clock import Clock
from ottla_core.ports.offload import Offload
from ottla_core.records.batch import complete_batches

Ask: TypeAlias = Callable[[int, int], int]
Polled: TypeAlias = Callable[[float], None]


class FetchLimits(NamedTuple):
    max_wait_s: float
    min_bytes: int
    max_bytes: int
    read_committed: bool
    #: Called before anything is read, with all bytes and those of the first partition; returns how many may be read.
    ask: Ask | None = None
    #: The consumer's rack (`client.rack`). With None it reads from leaders only.
    rack: str | None = None
    #: Called with the seconds that the fetch waited for records.
    polled: Polled | None = None


FetchSteps: TypeAlias = Generator[None, None, "list[Fetched] | Callable[[], Awaitable[FetchSteps]]"]
"""Slices of a fetch. If it has to wait, it returns the wait, and what comes after that is sliced again."""


class _Located(NamedTuple):
    tp: TopicPartition
    partition: Partition | None
    extent: Extent | None
    error: RequestError | None
    read_limit: int
    leader_epoch: int = -1
    preferred_replica: int = NO_BROKER
    #: Bytes that count towards `min_bytes`: what could be read, not what the limits of the response let through.
    readable: int = 0
    #: Waiting for more is in vain: an error or another replica is returned, or a response that ends with its segment.
    is_final: bool = False


class _Cold(Exception):
    """Some wanted ranges cannot be located without waiting for the disk."""

    def __init__(self, looks: list[NotLoaded]) -> None:
        super().__init__(f"{len(looks)} are not in memory")
        self.looks = looks


class DelayedFetch:
    __slots__ = (
        "_clock",
        "_host",
        "_limits",
        "_located",
        "_metrics",
        "_reader",
        "_rereads",
        "_scheduler",
        "_wants",
    )

    def __init__(
        self,
        host: PartitionHost,
        offload: Offload,
        metrics: Metrics,
        wants: Sequence[FetchWant],
        limits: FetchLimits,
        rereads: RereadCheck,
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        self._rereads = rereads
        self._scheduler = scheduler
        self._clock = clock
        self._host = host
        self._metrics = metrics
        self._reader = LogReader(offload)
        self._wants = wants
        self._limits = limits
        #: What was found at each place, while the fetch waits.
        self._located: list[_Located] = []

    def start(self) -> Maybe[list[Fetched]]:
        """All of it at once but for the waiting; many partitions in slices of the run queue."""
        if len(self._wants) > PARTITIONS_PER_STEP:
            return self._finish(None)
        answer = exhaust(self.steps())
        return answer if isinstance(answer, list) else self._finish(answer)

    async def _finish(self, wait: Callable[[], Awaitable[FetchSteps]] | None) -> list[Fetched]:
        while True:
            steps = self.steps() if wait is None else await wait()
            if len(self._wants) > PARTITIONS_PER_STEP:
                answer = await stepped(self._scheduler, steps)
            else:
                answer = exhaust(steps)
            if isinstance(answer, list):
                return answer
            wait = answer

    def steps(self) -> FetchSteps:
        return self._begin((), may_wait=self._limits.max_wait_s > 0 and len(self._wants) > 0)

    def _begin(self, before: Sequence[_Located], *, may_wait: bool) -> FetchSteps:
        try:
            located, is_enough = yield from self._locate(before)
        except _Cold as cold:
            return partial(self._start_cold, cold, may_wait)
        if may_wait and not is_enough:
            return partial(self._wait, located)
        return (yield from self._read(self._granted(located)))

    async def _start_cold(self, cold: _Cold, may_wait: bool) -> FetchSteps:
        await self._reader.warm(*cold.looks)
        return self._begin((), may_wait=may_wait)  # How often is bounded by the reader's looks.

    # ------------------------------------------------------------------ waiting

    async def _wait(self, located: list[_Located]) -> FetchSteps:
        self._located = located
        partitions = [each.partition for each in located if each.partition is not None]
        wait = FetchWait(self._scheduler, self, partitions, self._limits.min_bytes)
        self._metrics.partitions.waiting_fetches += 1
        began = self._clock.monotonic()
        try:
            await wait.over(self._limits.max_wait_s)
        finally:
            if self._limits.polled is not None:
                self._limits.polled(self._clock.monotonic() - began)
            self._metrics.partitions.waiting_fetches -= 1
        return self._begin(self._located, may_wait=False)

    def readable(self, place: int) -> int:
        return self._located[place].readable

    def look(self, place: int, *, is_first: bool) -> bool:
        want = self._wants[place]
        if self._is_still_empty(self._located[place], want):
            return False
        try:
            found = self._look_at(want, min(want.max_bytes, self._limits.max_bytes), is_first=is_first)
        except NotLoaded:
            return True  # There is something in an older segment.
        self._located[place] = found
        return found.is_final

    def has_moved(self, place: int) -> bool:
        found = self._located[place]
        return found.partition is not None and self._limit_of(found.partition) != found.read_limit

    # ------------------------------------------------------------------ locating and reading

    def _locate(self, before: Sequence[_Located]) -> Generator[None, None, tuple[list[_Located], bool]]:
        """Locate each wanted range; and whether there are enough bytes, or something that has to be returned.

        Only bytes that can be read within the limits count. A response has whole batches and ends with a segment, so
        waiting for more would be in vain.

        `_Cold` when indexes have to be read for it. `before` is what a fetch that has waited found there.
        """
        located: list[_Located] = []
        cold: list[NotLoaded] = []
        room, total, readable, is_final = self._limits.max_bytes, 0, 0, False
        for number, want in enumerate(self._wants, 1):
            if number % PARTITIONS_PER_STEP == 0:
                yield
            if before and self._is_still_empty(before[number - 1], want):
                located.append(before[number - 1])
                continue
            try:
                found = self._look_at(want, min(want.max_bytes, room), is_first=total == 0)
            except NotLoaded as look:
                cold.append(look)
                continue
            located.append(found)
            readable += found.readable
            is_final = is_final or found.is_final
            if found.extent is not None:
                total += found.extent.size
                room = max(0, room - found.extent.size)
        if cold:
            raise _Cold(cold)
        return located, is_final or readable >= self._limits.min_bytes

    def _look_at(self, want: FetchWant, offered: int, *, is_first: bool) -> _Located:
        """Locate one range of `offered` bytes at most, but the first batch of all is returned whole even if it exceeds
        the limits, so that no consumer gets stuck. `NotLoaded` if that would wait for the disk."""
        tp = want.tp
        partition: Partition | None = None
        try:
            if want.refusal is not None:
                raise want.refusal.with_traceback(None)
            partition = self._host.find(tp)
            if self._limits.rack is None:
                partition.check_leader(want.leader_epoch)
            else:
                partition.check_replica(want.leader_epoch)
            limit, epoch = self._limit_of(partition), partition.image.leader_epoch
            if self._limits.rack:
                preferred = partition.closest_replica(self._limits.rack, want.offset)
                if preferred != NO_BROKER:
                    return _Located(tp, partition, None, None, limit, epoch, preferred, is_final=True)
            log = partition.log
            extent = self._reader.locate(log, want.offset, offered, limit_offset=limit, min_one=is_first)
        except RequestError as error:
            return _Located(tp, partition, None, error, -1, is_final=True)
        if extent is None:
            # If there is something, the next batch does not fit.
            readable = offered if want.offset < limit and not is_first else 0
            return _Located(tp, partition, None, None, limit, epoch, readable=readable)
        readable = max(extent.size, min(extent.available, offered))
        is_final = extent.first_offset < log.segments[-1].base_offset < limit
        return _Located(tp, partition, extent, None, limit, epoch, readable=readable, is_final=is_final)

    def _is_still_empty(self, found: _Located, want: FetchWant) -> bool:
        """Whether nothing was readable and nothing has happened to the partition since."""
        partition = found.partition
        return (
            partition is not None
            and found.error is None
            and found.extent is None
            and found.preferred_replica == NO_BROKER
            and (partition.is_leader or partition.following is not None)
            and partition.image.leader_epoch == found.leader_epoch
            and want.offset >= found.read_limit == self._limit_of(partition)
            and partition.log.broken is None
        )

    def _limit_of(self, partition: Partition) -> int:
        return partition.stable_offset() if self._limits.read_committed else partition.high_watermark

    def _granted(self, located: list[_Located]) -> list[_Located]:
        """Limit the read to the granted memory: the first ranges are read, the others not."""
        sizes = [each.extent.size for each in located if each.extent is not None]
        if self._limits.ask is None or not sizes:
            return located
        total = sum(sizes)
        room = self._limits.ask(total, sizes[0])
        if room >= total:
            return located
        fitting: list[_Located] = []
        for each in located:
            size = 0 if each.extent is None else each.extent.size
            fitting.append(each if size <= room else each._replace(extent=None))
            room = room - size if size <= room else 0
        return fitting

    def _read(self, located: list[_Located], fetched: list[Fetched] | None = None) -> FetchSteps:
        """Continue after the ranges that were read already."""
        fetched = [] if fetched is None else fetched
        for index in range(len(fetched), len(located)):
            if index % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                yield
            each = located[index]
            found = _fetched(each, b"") if each.extent is None else self._from_cache(each, each.extent)
            if found is None:
                return partial(self._read_cold, located, fetched)
            fetched.append(found)
        return fetched

    async def _read_cold(self, located: list[_Located], fetched: list[Fetched]) -> FetchSteps:
        """The next one is large, was read before, or is not in memory: let a thread copy or check it, or wait for the
        disk."""
        each = located[len(fetched)]
        if each.extent is not None:
            try:
                fetched.append(await self._on_thread(each, each.extent))
            except OSError as error:
                fetched.append(_unreadable(each, error))
        return self._read(located, fetched)

    async def _on_thread(self, located: _Located, extent: Extent) -> Fetched:
        is_reread = self._is_reread(extent, located.tp)
        read, counts = await self._reader.on_thread(extent, check=is_reread), self._metrics.log
        partition = located.partition
        if partition is not None and partition.high_watermark < located.read_limit:
            # Truncated below what was committed, after an unclean election: other records may be there by now.
            return Fetched(
                located.tp, NotLeaderOrFollower("The log was truncated while it was read; read again.")
            )
        if not read.is_checked:
            return self._served(located, extent, read.data)
        if is_reread:
            counts.rereads_checked += 1
        else:
            counts.reads_cold += 1
        return self._checked(located, extent, read)

    def _served(self, located: _Located, extent: Extent, data: bytes) -> Fetched:
        """From the page cache, unchecked."""
        self._metrics.log.reads_cached += 1
        self._rereads.served(located.tp, extent.first_offset)
        return self._filled(located, extent, data)

    def _checked(self, located: _Located, extent: Extent, read: Batches) -> Fetched:
        """The batches before the damage, or an error if there are none; and the partition may be repaired
        (`partition.mending`)."""
        if read.damage is None:
            self._rereads.found_whole(located.tp, extent.first_offset, self._clock.monotonic())
            return self._filled(located, extent, read.data)
        partition = located.partition
        if (
            partition is not None
            and partition.image.leader_epoch == located.leader_epoch
            and (partition.is_leader or partition.following is not None)
        ):  # Else the log may have been truncated meanwhile.
            offset = extent.first_offset
            partition.log.note_damage(offset, f"a damaged batch at or behind offset {offset}")
        return self._filled(located, extent, read.data) if read.data else Fetched(located.tp, read.damage)

    def _filled(self, located: _Located, extent: Extent, data: bytes) -> Fetched:
        """The batches, with the aborted transactions among them if the reader has to skip those."""
        fetched, partition = _fetched(located, data), located.partition
        if not self._limits.read_committed or partition is None:
            return fetched
        log, first = partition.log, extent.first_offset
        if not log.aborted(first, located.read_limit):
            return fetched
        end = max((header.next_offset for _, header in complete_batches(data)), default=first)
        aborted = tuple(Aborted(each.producer_id, each.first_offset) for each in log.aborted(first, end))
        return fetched._replace(aborted=aborted)

    def _is_reread(self, extent: Extent, tp: TopicPartition) -> bool:
        return self._rereads.is_due(tp, extent.first_offset, self._clock.monotonic())

    def _from_cache(self, located: _Located, extent: Extent) -> Fetched | None:
        """None if a thread has to read it: it is large, was read before, or is not in memory."""
        data = None if self._is_reread(extent, located.tp) else self._reader.cached(extent)
        return None if data is None else self._served(located, extent, data)


def _unreadable(located: _Located, error: OSError) -> Fetched:
    if located.partition is not None:
        located.partition.log.mark_broken(error)
    return Fetched(located.tp, KafkaStorageError(f"{located.tp} cannot be read: {error}"))


def _fetched(located: _Located, data: bytes) -> Fetched:
    if located.error is not None or located.partition is None:
        return Fetched(located.tp, located.error)
    partition = located.partition
    if data:
        partition.topic_probe.bytes_out += len(data)
    return Fetched(
        located.tp,
        None,
        partition.high_watermark,
        partition.stable_offset(),
        partition.log.start_offset,
        data,
        preferred_replica=located.preferred_replica,
    )
