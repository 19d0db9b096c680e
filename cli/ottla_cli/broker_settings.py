"""A broker's settings as it would resolve them, for commands that show them or connect to its etcd. [A]"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla_cli.failure import Failure

if TYPE_CHECKING:
    from ottla_broker.config import Resolved


def pairs_of(given: Iterable[str] | None) -> dict[str, str]:
    """The `--set NAME=VALUE` options as a dict."""
    return dict(pair.partition("=")[::2] for pair in given or ())


def read_broker_settings(path: str | None, flags: Mapping[str, str]) -> Resolved:
    """Settings from flags, environment, file and defaults; Failure if one is not valid."""
    try:
        from ottla_broker.__main__ import read_settings
        from ottla_broker.setting import ConfigError
    except ImportError:
        raise Failure("Broker settings need the broker: pip install 'ottla[broker]'.") from None
    try:
        return read_settings(path, flags, os.environ)
    except ConfigError as refused:
        raise Failure(str(refused), exit_code=2) from None
