"""`ottla consume --group`: read as a member of a group. [A]

Offsets are committed after their records are written (at-least-once). Records that were not written are read again:
by the next member, or by this command when it is run again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ottla_cli.chosen_topics import Chosen, chosen_topics
from ottla_cli.connecting import admin
from ottla_cli.record_output import RecordOutput
from ottla_cli.screen import note
from ottla_client import Consumer, RebalanceListener, TopicPartition
from ottla_client.errors import CommitFailed

_POLL_MS = 500
_BATCH = 5000
_COMMIT_EVERY_S = 1.0
#: With --no-follow: how long to wait for an assigned partition before giving up.
_PATIENCE_S = 5.0


class GroupReading:
    def __init__(
        self,
        consumer: Consumer,
        output: RecordOutput,
        max_records: int | None,
        *,
        quiet: bool,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._max = max_records
        self._quiet = quiet
        #: Whether all polled records are written, so that the consumer's positions may be committed.
        self._all_written = True
        self._committed_at = 0.0
        self.count = 0

    async def run(self, bootstrap: str, topics: Chosen, *, follow: bool) -> None:
        ends: dict[TopicPartition, int] | None = None
        async with admin(bootstrap) as client:
            found = await chosen_topics(client, topics)
            if not follow:
                tps = [
                    TopicPartition(topic.name, each.partition) for topic in found for each in topic.partitions
                ]
                latest = await client.list_offsets(dict.fromkeys(tps, "latest"))
                ends = {tp: each.offset for tp, each in latest.items()}
        async with self._consumer as consumer:
            listener = RebalanceListener(self._assigned, self._revoked, self._lost)
            consumer.subscribe([each.name for each in found], listener)
            try:
                await self._read(ends)
            finally:
                if self._all_written:
                    await self._commit()

    async def _read(self, ends: dict[TopicPartition, int] | None) -> None:
        idle_since = time.monotonic()
        while self._max is None or self.count < self._max:
            limit = _BATCH if self._max is None else min(_BATCH, self._max - self.count)
            records = await self._consumer.poll(timeout_ms=_POLL_MS, max_records=limit)
            if records:
                # Records that the filter drops count as read: they are committed with the others.
                self._all_written = False
                self.count += self._output.write(records)
                self._all_written = True
                if time.monotonic() >= self._committed_at + _COMMIT_EVERY_S:
                    self._committed_at = time.monotonic()
                    self._consumer.commit_nowait()
            mine = self._consumer.assignment()
            if mine:
                idle_since = time.monotonic()
            if ends is None:
                continue
            if mine and all([await self._consumer.position(tp) >= ends.get(tp, 0) for tp in mine]):
                return
            if time.monotonic() >= idle_since + _PATIENCE_S and self._consumer.subscription():
                return

    # ------------------------------------------------------------------ rebalances

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            self._remark(f"Reading {_named(partitions)}.")

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._commit()
        self._remark(f"Revoked: {_named(partitions)}.")

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._remark(f"Lost: {_named(partitions)}.")

    async def _commit(self) -> None:
        try:
            await self._consumer.commit()
        except CommitFailed as failed:
            note(str(failed))

    def _remark(self, sentence: str) -> None:
        if not self._quiet and sys.stderr.isatty():
            note(sentence, style="dim")


def _named(partitions: Sequence[TopicPartition]) -> str:
    numbers: dict[str, list[str]] = {}
    for tp in sorted(partitions):
        numbers.setdefault(tp.topic, []).append(str(tp.partition))
    return "; ".join(f"{topic} {','.join(found)}" for topic, found in numbers.items())
