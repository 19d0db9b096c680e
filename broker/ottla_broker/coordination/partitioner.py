"""Which partition of an internal topic a key belongs to. [P]

The same rule as Kafka's, so that its tools find a group's records where they look: Java's hash of the name, its
absolute value, modulo the number of partitions.
"""

from __future__ import annotations

_INT_MIN = -(1 << 31)


def coordinator_partition(key: str, partitions: int) -> int:
    hashed = java_hash(key)
    return (0 if hashed == _INT_MIN else abs(hashed)) % partitions


def java_hash(text: str) -> int:
    """`String.hashCode` over UTF-16 code units, as a signed number of 32 bits."""
    hashed = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(encoded), 2):
        hashed = (31 * hashed + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed & 0x80000000 else hashed
