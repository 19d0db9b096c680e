"""The C library's heap: give freed memory back to the operating system. [A]

glibc keeps what is freed below its top, and raises the size from which it maps memory separately up to 32 MB as soon as
one such block is freed. So after a peak of large answers the process stays as large as it was, until it is trimmed.
"""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Takes some milliseconds for hundreds of megabytes, without the interpreter's lock: call it on a thread."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # another C library, which has its own ways
