"""Entry point of the broker process: reads settings, builds the real ports, runs one `Broker` until a signal. [A]

    python -m ottla_broker [--config FILE] [--set name=value ...]

Ends with a code of `exit_codes.py` and, if something went wrong, one sentence on standard error. A second
signal ends it at once, with 128 + its number.

Imports are inside functions on purpose: a wrong setting is reported in 100 ms, and what a broker never uses is
never loaded (`ottla_core.light_imports`). The time from exec to ready is published.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla_broker.config import EtcdConfig, Resolved


def _say(sentence: str) -> None:
    sys.stderr.write(f"ottla-broker: {sentence}\n")
    sys.stderr.flush()


def _arguments(argv: Sequence[str] | None) -> tuple[str | None, dict[str, str], str | None, bool]:
    import argparse

    parser = argparse.ArgumentParser(prog="ottla-broker", description="Run one Ottla broker.")
    parser.add_argument(
        "--config", metavar="FILE", help="TOML, or Kafka-style .properties (also OTTLA_CONFIG)"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting; wins over variables and file",
    )
    parser.add_argument(
        "--ready-file", metavar="FILE", help="written when the broker is ready: JSON with all addresses"
    )
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop when standard input closes, for example because the parent process ended",
    )
    given = parser.parse_args(argv)
    flags: dict[str, str] = {}
    for pair in given.set:
        name, separator, value = pair.partition("=")
        if not separator:
            parser.error(f"--set takes name=value, not {pair!r}")
        flags[name.strip()] = value
    return given.config, flags, given.ready_file, given.exit_with_parent


def read_settings(config_path: str | None, flags: Mapping[str, str], environ: Mapping[str, str]) -> Resolved:
    """Settings as a broker of these flags and this environment has them. Also behind `ottla configs preview`."""
    from ottla_broker.config import resolve

    path, text = _configuration(config_path, environ)
    return resolve(flags, environ, text, file_name=path)


def read_store_settings(
    config_path: str | None, flags: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[EtcdConfig, str]:
    """The connection to etcd as a broker of these flags and this environment has it, and the cluster's name."""
    from ottla_broker.config import resolve_store

    path, text = _configuration(config_path, environ)
    return resolve_store(flags, environ, text, file_name=path)


def _configuration(path: str | None, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """The path and the text of the configuration file; empty and None if there is none."""
    from ottla_broker.setting import ConfigError

    path = path or environ.get("OTTLA_CONFIG") or None
    if path is None:
        return "", None
    try:
        with open(path, encoding="utf-8") as file:
            return path, file.read()
    except (OSError, UnicodeDecodeError) as failed:
        raise ConfigError(f"The configuration file {path} cannot be read: {failed}.") from None


def main(argv: Sequence[str] | None = None) -> int:
    # What a start makes is there to stay: looking through it for garbage takes a tenth of the start and finds none.
    # `process` lets the collector in when the broker is ready.
    gc.disable()
    config_path, flags, ready_file, exit_with_parent = _arguments(argv)
    from ottla_broker.exit_codes import ExitCode
    from ottla_broker.setting import ConfigError

    try:
        resolved = read_settings(config_path, flags, os.environ)
    except ConfigError as refused:
        _say(str(refused))
        return ExitCode.BAD_CONFIG
    from ottla_core.light_imports import use_bare_packages, without_terminal_colours

    use_bare_packages()
    with without_terminal_colours():
        from ottla_broker import process
    return process.run(resolved, ready_file=ready_file, exit_with_parent=exit_with_parent, say=_say)


if __name__ == "__main__":
    sys.exit(main())
