"""The C library's heap: give freed memory back to the operating system. [A]

glibc keeps freed memory below the heap top, and raises its mmap threshold up to 32 MB when a mapped block is
freed. So after a peak of large responses the process keeps its size until the heap is trimmed.
"""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Takes milliseconds for hundreds of megabytes, without the GIL: call it on a thread."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library
