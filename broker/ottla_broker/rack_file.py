"""`rack.file`: the rack of this broker, read once at its start. [A]

For machines that know their rack only when the process starts: on Kubernetes a pod learns it with its node.
"""

from __future__ import annotations

from dataclasses import replace

from ottla_broker.config import ProcessConfig
from ottla_broker.setting import WORD, ConfigError, shorten

_FILE_BYTES_MAX = 1024


def with_rack(config: ProcessConfig) -> ProcessConfig:
    """The same with `rack` from the file, if one is named; ConfigError if it cannot be used. Empty: no rack."""
    path = config.rack_file
    if path is None:
        return config
    if config.rack is not None:
        raise ConfigError("broker.rack and rack.file both name the rack; set one of them.")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(_FILE_BYTES_MAX).strip()
    except OSError as failed:
        raise ConfigError(f"rack.file = {path} cannot be read: {failed.strerror or failed}.") from None
    if not text:
        return config
    try:
        return replace(config, rack=WORD.parse(text))
    except ValueError:
        raise ConfigError(
            f"rack.file = {path} has {shorten(text)}; write {WORD.allowed}, or nothing."
        ) from None
