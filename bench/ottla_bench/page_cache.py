"""Memory for the page cache that the machine really has, before a write is measured. [A]

In a virtual machine a page that the guest never used, or gave back, is not there: its first touch goes to the
host, and the kernel counts that as the writer's CPU. Measured here: 2.6 ms per MB for new pages and 0.27 for
used ones, ten times the cost of the write, and the first writer pays. So each measured write is
preceded by one of the same size to a temporary file; its pages are free then, and taken next.
"""

from __future__ import annotations

import os
import tempfile

_CHUNK = bytes(1 << 20)


def touch_pages(size_bytes: int) -> None:
    with tempfile.TemporaryFile(prefix="ottla-bench-") as file:
        for position in range(0, size_bytes, len(_CHUNK)):
            os.pwrite(file.fileno(), _CHUNK, position)
