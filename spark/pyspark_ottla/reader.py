"""Batch and streaming readers: planned on the driver, read by executors. [A]

Readers are pickled for executors, so they hold options only. Connections are opened where they are used:
`ClusterLookup` on the driver, `PartitionFetch` inside `read`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition

from ottla_client.errors import ClientError, RequestError, UnknownTopicOrPartition
from ottla_core.ids import TopicPartition
from ottla_core.real.clock import RealClock
from pyspark_ottla.admission import ReadLimit, SupportsTriggerAvailableNow, limit_of_rows, rows_of_limit
from pyspark_ottla.columns import arrow_batches
from pyspark_ottla.fetch import Expired, Lost, PartitionFetch
from pyspark_ottla.lookup import ClusterLookup, ReadProblem
from pyspark_ottla.offsets import Position, to_nested
from pyspark_ottla.options import ReadOptions
from pyspark_ottla.plan import (
    OffsetRange,
    first_of,
    from_beginning,
    losses_until,
    next_end,
    not_before,
    ranges_between,
    split,
    waits_for_more,
)
from pyspark_ottla.pushdown import Narrowing, narrowing
from pyspark_ottla.shipping import Shipped

log = logging.getLogger(__name__)

#: A `Position` as nested dictionaries, for Spark to keep as JSON.
Offsets = dict[str, Any]
#: After a commit that failed, until the next one.
_SHOW_AGAIN_S = 10.0
_LOSS_HINT = "set failOnDataLoss to false to continue with the remaining records"


class BatchReader(Shipped, DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        with ClusterLookup(self._options) as lookup:
            found = lookup.subscribed().complete()
            partitions = found.partitions
            start = lookup.bound(self._options.start, partitions)
            end = lookup.bound(self._options.end, partitions)
            earliest = lookup.same("earliest", partitions)
            latest = lookup.same("latest", partitions)
            self._check(start, end, latest)
            wanted = [tp for tp in partitions if self._narrowing.wants(tp)]
            first = self._first_by_time(lookup, wanted, end)
        ranges = {tp: self._narrowing.range(max(start[tp], first.get(tp, 0)), end[tp]) for tp in wanted}
        ids = found.ids
        return _planned(
            self._options,
            Position({tp: low for tp, (low, _) in ranges.items()}, ids),
            Position({tp: high for tp, (_, high) in ranges.items()}, ids),
            Position({tp: earliest[tp] for tp in wanted}, ids),
        )

    def _check(
        self,
        start: dict[TopicPartition, int],
        end: dict[TopicPartition, int],
        latest: dict[TopicPartition, int],
    ) -> None:
        for tp, last in end.items():
            if last > latest[tp]:
                raise ReadProblem(
                    f"{self._options.end.option} sets offset {last} for {tp}, but its end offset is {latest[tp]}."
                )
            if start[tp] > last:
                raise ReadProblem(f"The start offset of {tp}, {start[tp]}, is after its end offset, {last}.")

    def _first_by_time(
        self, lookup: ClusterLookup, wanted: list[TopicPartition], end: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """The first offset that may pass a filter of the time: records before it are all older."""
        since = self._narrowing.since_ms
        if since is None:
            return {}
        found = lookup.offsets(dict.fromkeys(wanted, since))
        return {tp: min(at, end[tp]) if at >= 0 else end[tp] for tp, at in found.items()}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)


class FilteringReader(BatchReader):
    """With the option pushFilters. A class of its own, because Spark refuses each reader with `pushFilters` while
    spark.sql.python.filterPushdown.enabled is off, its default."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._narrowing = narrowing(filters)
        return filters  # Spark evaluates them again


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are kept in the query's checkpoint. With a group id they are also committed, for its lag only."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def __reduce__(self) -> Any:
        # Connections stay on the driver.
        return type(self)(self._options)._plain_reduce()

    def _plain_reduce(self) -> Any:
        return super().__reduce__()

    @property
    def _lookup(self) -> ClusterLookup:
        """One per query, on the driver."""
        if "_opened" not in self.__dict__:
            self._opened = ClusterLookup(self._options)
        return self._opened

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Where the query starts, if its checkpoint is empty.

        Spark calls this for each step of the first micro-batch, and again to repeat that batch after a restart. The
        result that `latestOffset` received is the valid one: the checkpoint keeps it with the end of the batch.
        """
        if "_initial" not in self.__dict__:
            self._initial = self._resolve_start()
        return self._initial.to_nested()

    def _resolve_start(self) -> Position:
        bound, found = self._options.start, self._lookup.subscribed()
        if self._options.fail_on_data_loss:
            found.complete()  # otherwise `latestOffset` checks it, which Spark does not call to repeat a batch
        start = self._lookup.bound(bound, found.partitions)
        latest = self._lookup.same("latest", bound.offsets)
        for tp in latest:
            if start[tp] > latest[tp]:
                raise ReadProblem(
                    f"{bound.option} sets offset {start[tp]} for {tp}, but its end offset is {latest[tp]}."
                )
        return Position(start, found.ids, initial=True)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return limit_of_rows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._goal = self._lookup.latest()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        first = Position.from_nested(start)
        self._show_lag(first)
        if first.initial and not self._options.fail_on_data_loss:
            self._lookup.subscribed().complete()
        goal: Position | None = self.__dict__.get("_goal")
        latest = self._lookup.latest_after(first) if goal is None else goal
        if first.initial:
            # Spark sets the end of Trigger.AvailableNow before it asks for the start, and "latest" moves meanwhile.
            latest = not_before(latest, first)
            if goal is not None:
                self._goal = latest
        if self._options.fail_on_data_loss:
            # Fail before the end of the micro-batch is in the checkpoint.
            for loss in losses_until(first, latest):
                _report_loss(self._options, loss)
        if goal is None and not first.initial and self._waits(first, latest):
            return start
        earliest = self._lookup.same("earliest", from_beginning(first, latest))
        return next_end(first, latest, earliest, rows_of_limit(limit)).to_nested()

    def _show_lag(self, done: Position) -> None:
        """Commit the start of the next micro-batch, before which all is done. Spark calls `commit` only when there is
        a next one, so that an idle topic would have a lag for ever. After a failure it is tried again, but not with
        each call: Spark calls every 10 ms while it waits for records."""
        group = self._options.group_id
        if group is None or done.initial or self.__dict__.get("_shown") == done.offsets:
            return
        now = RealClock().monotonic()
        if now < self.__dict__.get("_show_at", now):
            return
        if self._lookup.commit(group, done.offsets):
            self._shown = done.offsets
        else:
            self._show_at = now + _SHOW_AGAIN_S

    def _waits(self, first: Position, latest: Position) -> bool:
        """minOffsetsPerTrigger. The delay counts from the last micro-batch, or from the start of the runner."""
        now = RealClock().monotonic()
        since = self.__dict__.setdefault("_triggered_at", now)
        waits = waits_for_more(
            first,
            latest,
            self._options.min_offsets_per_trigger,
            now - since,
            self._options.max_trigger_delay_s,
        )
        if not waits:
            self._triggered_at = now
        return waits

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        return to_nested(self._lookup.latest().offsets)

    # ------------------------------------------------------------------ tasks

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        if start == end:
            return []
        last = Position.from_nested(end)
        first = first_of(Position.from_nested(start), last)
        return _planned(self._options, first, last, self._lookup.oldest(last))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)

    def commit(self, end: Offsets) -> None:
        """Nothing to do: Spark keeps the offsets in its checkpoint."""

    def stop(self) -> None:
        if "_opened" in self.__dict__:
            self._opened.close()


def _planned(options: ReadOptions, start: Position, end: Position, oldest: Position) -> list[InputPartition]:
    checked = ranges_between(start, end, oldest)
    for loss in checked.losses:
        _report_loss(options, loss)
    parts = split(checked.ranges, options.min_partitions, options.max_records_per_partition)
    return [InputPartition(part) for part in parts]


def _report_loss(options: ReadOptions, loss: str) -> None:
    if options.fail_on_data_loss:
        raise ReadProblem(f"{loss.rstrip('.')}; {_LOSS_HINT}.")
    log.warning("%s Continuing with the remaining records, because failOnDataLoss is false.", loss)


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[Any]:
    """Arrow record batches of one task's range; on an executor."""
    wanted: OffsetRange | None = partition.value
    if wanted is None:
        return  # Spark starts a task even if there is nothing to read
    start = wanted.start
    while True:
        fetch = PartitionFetch(
            options.bootstrap,
            OffsetRange(wanted.tp, start, wanted.end, wanted.topic_id),
            read_committed=options.read_committed,
            timeout_s=options.fetch_timeout_s,
            request_timeout_s=options.request_timeout_ms / 1000,
            fetch_bytes=options.fetch_bytes,
            rack=options.client_rack,
            security=options.security,
        )
        try:
            for chunk in fetch.chunks():
                for made in arrow_batches(
                    chunk.data,
                    chunk.batches,
                    wanted.tp,
                    start,
                    wanted.end,
                    with_headers=options.include_headers,
                ):
                    if made.num_rows:
                        yield made
            return
        except Expired as error:
            _report_loss(options, str(error))
            start = error.oldest
        except Lost as error:
            _report_loss(options, str(error))
            return
        except UnknownTopicOrPartition:
            _report_loss(options, f"Partition {wanted.tp} no longer exists: its topic was deleted.")
            return
        except (RequestError, ClientError) as error:
            raise ReadProblem(f"Cannot read {wanted.tp}: {error}") from error
