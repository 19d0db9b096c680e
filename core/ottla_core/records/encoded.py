"""A record batch whose records were encoded by somebody else, column by column. [P]

The counterpart of `codec.BatchBuilder` for callers that encode thousands of records at once, such as the Spark sink. It
has the same `build`, so that a producer sends both kinds alike. The records are trusted: the broker checks them again.
"""

from __future__ import annotations

from ottla_core.ports.disk import Buffer
from ottla_core.records.batch import HEADER_BYTES, MAGIC, TRANSACTIONAL_FLAG, BatchHeader
from ottla_core.records.codec import seal
from ottla_core.records.compression import Compression


class EncodedRecords:
    """`count` records in format v2, uncompressed, with offset deltas 0, 1, 2, …

    `base_timestamp_ms` is what their timestamp deltas are relative to.
    """

    __slots__ = ("_base_timestamp_ms", "_compression", "_made", "_max_timestamp_ms", "count", "size_bytes")

    def __init__(
        self,
        records: Buffer,
        count: int,
        *,
        base_timestamp_ms: int,
        max_timestamp_ms: int,
        compression: int = Compression.NONE,
    ) -> None:
        if count < 1:
            raise ValueError("A batch has at least one record.")
        if base_timestamp_ms < 0:
            raise ValueError(f"A timestamp of {base_timestamp_ms} is before 1970.")
        #: Space for the header, which is written last.
        self._made = bytearray(HEADER_BYTES)
        self._made += records
        self._base_timestamp_ms = base_timestamp_ms
        self._max_timestamp_ms = max_timestamp_ms
        self._compression = compression
        self.count = count
        #: Before compression, with the header.
        self.size_bytes = len(self._made)

    @property
    def max_timestamp_ms(self) -> int:
        return self._max_timestamp_ms

    def append(self, *_: object) -> bool:
        """It is complete: there is no room."""
        return False

    def build(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray:
        """The finished batch. Called once."""
        if not self._made:
            raise ValueError("The batch is built already.")
        made, self._made = self._made, bytearray()
        return seal(
            made,
            BatchHeader(
                base_offset=0,
                length=0,
                leader_epoch=-1,
                magic=MAGIC,
                crc=0,
                attributes=self._compression | (TRANSACTIONAL_FLAG if transactional else 0),
                last_offset_delta=self.count - 1,
                base_timestamp=self._base_timestamp_ms,
                max_timestamp=self._max_timestamp_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                count=self.count,
            ),
            None,
        )
