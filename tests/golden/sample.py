"""The records that every golden batch holds, whoever wrote it."""

from __future__ import annotations

from ottla_core.records.codec import Record

_T = 1_700_000_000_000

#: Kept in order: nulls, empties, unusual times, repeated and null headers, text beyond ASCII, and a value that
#: takes more than one block of snappy's framing.
RECORDS = [
    Record(0, _T, b"key", b"value", []),
    Record(1, _T + 1, None, b"no key", []),
    Record(2, _T + 1, b"tombstone", None, []),
    Record(3, _T + 5_000_000, b"", b"", []),
    Record(4, _T - 86_400_000, b"earlier", b"\x00\xff" * 10, [("trace", b"abc"), ("trace", b"def")]),
    Record(5, _T + 2, b"headers", None, [("null", None), ("empty", b"")]),
    Record(6, _T + 3, "schlüssel".encode(), "wert ✓".encode(), [("größe", "✓".encode())]),
    Record(7, _T + 4, b"long", b"".join(b"line %05d of a long value\n" % n for n in range(1400)), []),
    *[Record(8 + n, _T + 10 + n, b"k%d" % (n % 3), b"v%d" % n, []) for n in range(20)],
]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
CLIENTS = ["librdkafka", "java", "aiokafka", "kafka-python"]


def records_by(client: str) -> list[Record]:
    """What the client can send of them: kafka-python knows no null header."""
    if client != "kafka-python":
        return RECORDS
    return [
        record._replace(headers=[(name, value or b"") for name, value in record.headers])
        for record in RECORDS
    ]
