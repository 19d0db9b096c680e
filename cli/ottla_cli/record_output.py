"""From records that were read to bytes on standard output: filters, decoding, format. [A]

Filters of headers and undecoded keys see a record before it is decoded: a topic with several kinds of records can be
read with the schema of one kind. `--grep` sees what is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ottla_cli.decoding import BadRecord, Decoding
from ottla_cli.failure import Failure
from ottla_cli.formats import Formatter
from ottla_cli.record_filter import Filter
from ottla_cli.screen import note
from ottla_client.record import ConsumerRecord

#: With --skip-bad: how many records are named; the others are counted.
_NAMED_MAX = 10


class RecordOutput:
    def __init__(
        self,
        write: Formatter,
        *,
        before: Filter | None = None,
        decoding: Decoding | None = None,
        after: Filter | None = None,
        skip_bad: bool = False,
    ) -> None:
        self._format = write
        self._before = before
        self._decoding = decoding
        self._after = after
        self._skip_bad = skip_bad
        #: Records that did not fit and were left out.
        self.skipped = 0

    @property
    def drops(self) -> bool:
        """Whether fewer records may be shown than are read."""
        return self._before is not None or self._after is not None or self._skip_bad

    def write(self, records: Sequence[ConsumerRecord], most: int | None = None) -> int:
        """How many records were written, at most `most`. If one does not fit, those before it are written, then it is
        a Failure."""
        lines: list[bytes] = []
        try:
            lines.extend(map(self._format, islice(self._shown(records), most)))
        except BadRecord as bad:
            raise Failure(f"{bad} --skip-bad leaves such records out.") from None
        finally:
            if lines:
                sys.stdout.buffer.write(b"".join(lines))
                sys.stdout.buffer.flush()
        return len(lines)

    def _shown(self, records: Sequence[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        kept: Iterable[ConsumerRecord] = records if self._before is None else filter(self._before, records)
        decoded = kept if self._decoding is None else self._decoded(kept, self._decoding)
        return iter(decoded if self._after is None else filter(self._after, decoded))

    def _decoded(self, records: Iterable[ConsumerRecord], decoding: Decoding) -> Iterator[ConsumerRecord]:
        for record in records:
            try:
                yield decoding(record)
            except BadRecord as bad:
                if not self._skip_bad:
                    raise
                self.skipped += 1
                if self.skipped <= _NAMED_MAX:
                    note(f"{bad} It is left out.")

    def close(self) -> None:
        """Name on standard error how many records were left out, if not all were named."""
        if self.skipped > _NAMED_MAX:
            note(
                f"{self.skipped:,} records do not fit and are left out; the first {_NAMED_MAX} are named above."
            )
