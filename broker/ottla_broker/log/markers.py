"""Decodes a control batch into the types of the producer state. [P]"""

from __future__ import annotations

from ottla_broker.log.producers import Marker
from ottla_core.errors import CorruptMessage
from ottla_core.ports.disk import Buffer
from ottla_core.records import control
from ottla_core.records.batch import BatchHeader


def marker_in(batch: Buffer, header: BatchHeader) -> Marker | None:
    """The marker in a control batch; None if it holds none (compaction emptied it, or it is of another kind)."""
    if not header.is_control:
        return None
    try:
        found = control.marker_in(batch, 0, header)
    except CorruptMessage:
        return None  # It is in the log with a right CRC; whatever its writer meant, it ends no transaction.
    if found is None:
        return None
    return Marker(found.type is control.MarkerType.COMMIT, found.coordinator_epoch)
