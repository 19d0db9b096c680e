"""Sources of settings: a TOML file, a Kafka-style properties file, `OTTLA_…` variables. [P]

Each reader turns its text into name -> value, both text. It knows the notation and nothing about any setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ottla_broker.setting import ConfigError, nearest, shorten

PREFIX = "OTTLA_"
#: Variables that are ours and no settings: the file itself, and the command line's defaults.
NOT_SETTINGS = frozenset({"OTTLA_CONFIG", "OTTLA_BOOTSTRAP", "OTTLA_DATA", "OTTLA_PURE", "OTTLA_ROLE"})

#: A Kubernetes Service named `ottla…` puts these into every pod beside it.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)")


def variable_of(name: str) -> str:
    """`num.partitions` -> `OTTLA_NUM_PARTITIONS`. One to one, because no setting's name has an underscore."""
    return PREFIX + name.upper().replace(".", "_")


def read_environ(
    environ: Mapping[str, str], known: Iterable[str]
) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """name -> (value, variable), and a warning for each `OTTLA_…` variable without a setting.

    A warning and no error: the environment is shared with other programs, and Kubernetes writes into it too.
    """
    names = {variable_of(name): name for name in known}
    found: dict[str, tuple[str, str]] = {}
    warnings = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if (name := names.get(variable)) is not None:
            found[name] = (environ[variable], variable)
        elif not _SERVICE_LINK.fullmatch(variable):
            warnings.append(f"The variable {variable} matches no setting{nearest(variable, names)}")
    return found, tuple(warnings)


def read_file(text: str, file_name: str) -> dict[str, str]:
    """By the file's name: `.properties` as Kafka writes them, everything else is TOML."""
    if file_name.endswith(".properties"):
        return _read_properties(text, file_name)
    return _read_toml(text, file_name)


def _read_toml(text: str, file_name: str) -> dict[str, str]:
    import tomllib  # 20 ms, and most brokers are configured by flags or variables

    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise ConfigError(f"{file_name} is not valid TOML: {broken}.") from None
    found: dict[str, str] = {}
    _flatten(tree, "", found, file_name)
    return found


def _flatten(table: Mapping[str, Any], prefix: str, into: dict[str, str], file_name: str) -> None:
    """`[log] retention.ms = 1` and `"log.retention.ms" = 1` mean the same."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            _flatten(value, f"{name}.", into, file_name)
            continue
        if name in into:
            raise ConfigError(f"{file_name} sets {name} twice.")
        into[name] = _text(name, value, file_name)


def _text(name: str, value: Any, file_name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text(name, part, file_name) for part in value)
    raise ConfigError(f"{name} in {file_name} must be text, a number, true, false or a list of these.")


def _read_properties(text: str, file_name: str) -> dict[str, str]:
    """`key=value` lines with # and ! comments. No escapes: Kafka's own files have none."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"Line {number} of {file_name} is not key=value: {shorten(line)}.")
        found[name.strip()] = value.strip()
    return found
