"""A broker's settings as it would see them, for commands that look at them or need its way to etcd. [A]"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla_cli.failure import Failure

if TYPE_CHECKING:
    from ottla_broker.config import Resolved


def pairs_of(given: Iterable[str] | None) -> dict[str, str]:
    """What several `--set NAME=VALUE` say."""
    return dict(pair.partition("=")[::2] for pair in given or ())


def read_broker_settings(path: str | None, flags: Mapping[str, str]) -> Resolved:
    """From flags, this environment, a file and defaults; a Failure says what is wrong with them."""
    try:
        from ottla_broker.__main__ import read_settings
        from ottla_broker.setting import ConfigError
    except ImportError:
        raise Failure("Broker settings need the broker: pip install 'ottla[broker]'.") from None
    try:
        return read_settings(path, flags, os.environ)
    except ConfigError as refused:
        raise Failure(str(refused), exit_code=2) from None
