"""A broker's settings as it would resolve them, for commands that show them or connect to its etcd. [A]"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla_cli.failure import Failure

if TYPE_CHECKING:
    from ottla_broker.config import EtcdConfig, Resolved


def pairs_of(given: Iterable[str] | None) -> dict[str, str]:
    """The `--set NAME=VALUE` options as a dict."""
    return dict(pair.partition("=")[::2] for pair in given or ())


def read_broker_settings(path: str | None, flags: Mapping[str, str]) -> Resolved:
    """Settings from flags, environment, file and defaults; Failure if one is not valid."""
    with _failures():
        from ottla_broker.__main__ import read_settings

        return read_settings(path, flags, os.environ)


def read_store_settings(path: str | None, flags: Mapping[str, str]) -> tuple[EtcdConfig, str]:
    """Only the connection to etcd, from the same sources, and the cluster's name."""
    with _failures():
        from ottla_broker import __main__ as broker

        return broker.read_store_settings(path, flags, os.environ)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        from ottla_broker.setting import ConfigError
    except ImportError:
        raise Failure("Broker settings need the broker: pip install 'ottla[broker]'.") from None
    try:
        yield
    except ConfigError as refused:
        raise Failure(str(refused), exit_code=2) from None
