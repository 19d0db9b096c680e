"""From an API key to its handler, imported on first use: a broker that only moves records loads three
files. [S]"""

from __future__ import annotations

import importlib
from functools import cache
from typing import NamedTuple, cast

from ottla_broker.edge.kafka.request import Handler
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.edge.needs import KAFKA, Need


class Entry(NamedTuple):
    handle: Handler
    #: The next request may be handled while this one's answer is still being waited for.
    overlaps: bool
    #: Changes nothing, so it is cancelled when its client disconnects.
    read_only: bool
    needs: tuple[Need, ...]


@cache
def entry(key: int) -> Entry:
    """The handler of a key in `APIS`."""
    api = APIS[key]
    module = importlib.import_module(f"ottla_broker.edge.kafka.handlers.k{key:02}_{api.name}")
    return Entry(
        cast(Handler, module.handle),
        bool(getattr(module, "OVERLAPS", False)),
        bool(getattr(module, "READ_ONLY", False)),
        KAFKA[api.name],
    )
