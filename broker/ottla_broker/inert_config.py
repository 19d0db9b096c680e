"""Settings of Kafka that Ottla accepts, stores and describes, without effect. [P]

Kafka's tools and consoles set and clear them on the way to something else. Refusing them breaks the tool. Only
settings that tune how fast Kafka does something belong here. A setting that a user relies on for data, security or
limits is refused instead (`topic_config`), because ignoring it would be worse than an error.

The documentation of each setting says that it has no effect, and docs/kafka-settings.md lists them. Called by
`service.config_edits` and `service.configs`. Values are checked as Kafka checks them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ottla_core.errors import InvalidConfig

_NUMBER = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?", re.ASCII)
_NO_THREADS = "one event loop serves all requests, and background.threads bounds the rest"
_NO_BUFFERS = "the cleaner needs no buffer of this kind"


class InertSetting(NamedTuple):
    name: str
    #: Kafka's word for the type.
    type: str
    default: str
    reason: str

    @property
    def documentation(self) -> str:
        return f"Accepted for Kafka's tools and without effect here: {self.reason}."


def _by_name(*settings: InertSetting) -> dict[str, InertSetting]:
    return {setting.name: setting for setting in settings}


BROKER = _by_name(
    InertSetting("num.io.threads", "int", "8", _NO_THREADS),
    InertSetting("num.network.threads", "int", "3", _NO_THREADS),
    InertSetting("num.recovery.threads.per.data.dir", "int", "2", _NO_THREADS),
    InertSetting("num.replica.fetchers", "int", "1", "one stream connects each pair of brokers"),
    InertSetting("log.cleaner.threads", "int", "1", "one thread compacts one log at a time"),
    InertSetting("log.cleaner.io.buffer.size", "int", "524288", _NO_BUFFERS),
    InertSetting("log.cleaner.io.buffer.load.factor", "double", "0.9", _NO_BUFFERS),
)


def check(values: Mapping[str, str]) -> None:
    """`InvalidConfig` for a value that Kafka would refuse too; names that are not in the table are not checked."""
    for name, text in values.items():
        setting = BROKER.get(name)
        if setting is None:
            continue
        if not _NUMBER.fullmatch(text.strip()) or (setting.type != "double" and "." in text):
            raise InvalidConfig(f"{name} must be a number of at least 0.")
