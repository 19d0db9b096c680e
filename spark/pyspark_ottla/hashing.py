"""Kafka's partition of each key, for a column of keys at once. [P]

The result equals `ottla_client.partitioner.partition_for_key` for every key; a property test compares the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ottla_client.partitioner import murmur2

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)
#: Longer keys are hashed one by one: each step of the loop over words costs the same for one key as for thousands.
_BYTES_MAX = 256


def hashes(data: NDArray[np.uint8], start: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.uint32]:
    """murmur2 of `data[start:start + size]` for each pair."""
    h = _SEED ^ size.astype(np.uint32)
    words = size >> 2
    long = size > _BYTES_MAX
    words[long] = 0
    active = np.flatnonzero(words)
    word = 0
    while active.size:
        k = _word(data, start[active] + 4 * word) * _M
        k = (k ^ (k >> np.uint32(24))) * _M
        h[active] = h[active] * _M ^ k
        word += 1
        active = active[words[active] > word]
    for tail in (1, 2, 3):
        some = np.flatnonzero((size & 3 == tail) & ~long)
        if some.size:
            at = start[some] + 4 * words[some]
            for octet in range(tail):
                h[some] ^= data[at + octet].astype(np.uint32) << np.uint32(8 * octet)
            h[some] *= _M
    h = (h ^ (h >> np.uint32(13))) * _M
    h ^= h >> np.uint32(15)
    for row in np.flatnonzero(long):
        h[row] = murmur2(data[start[row] : start[row] + size[row]].tobytes())
    return h


def _word(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The little-endian words at these positions, which are not aligned."""
    made = data[at].astype(np.uint32)
    for octet in (1, 2, 3):
        made |= data[at + octet].astype(np.uint32) << np.uint32(8 * octet)
    return made


def partitions_of_keys(keys: Any, partitions: int) -> NDArray[np.int64]:
    """The partition of each element of a binary Arrow array; meaningless where it is null."""
    edges = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    held = keys.buffers()[2]
    data = np.frombuffer(held, np.uint8) if held is not None else np.zeros(0, np.uint8)
    start = edges[:-1].astype(np.int64)
    found = hashes(data, start, edges[1:] - start)
    return (found & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
