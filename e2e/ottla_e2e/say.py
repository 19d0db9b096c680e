"""Progress: one line with the time for every step and observation. [A]"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_BEGAN = time.monotonic()


class Fault(Exception):
    """Something is missing or wrong; the message says what."""


def say(line: str) -> None:
    now = time.strftime("%H:%M:%S")
    print(f"{now} {time.monotonic() - _BEGAN:5.0f} s  {line}", flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """A part of the run: prints its title at the start and its duration at the end."""
    say(f"==> {title}")
    began = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - began:.1f} s")
