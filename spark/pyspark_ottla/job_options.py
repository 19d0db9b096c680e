"""Options of the format ottla that the user of a job adds on its command line. [S]

    spark-submit archive.py ... --option failOnDataLoss=false --options-file /etc/secrets/brokers.properties

The jobs (`spark/jobs`) are single files for spark-submit; what they share is here, because this package is installed
wherever they run. A file has a line NAME=VALUE for each option. It is the place for passwords: arguments are visible in
the list of processes and in Spark's UI.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla_client.security import Security
from pyspark_ottla.given import OptionProblem
from pyspark_ottla.options import (
    check_option,
    is_connection_option,
    is_read_option,
    is_write_option,
    security_of,
    write_options,
)

#: The job's own arguments decide these.
_OF_THE_JOB = frozenset(
    [
        "bootstrap.servers",
        "kafka.bootstrap.servers",
        "subscribe",
        "subscribepattern",
        "assign",
        "includeheaders",
        "topic",
        "writetimestamps",
        "sinkid",
        "batchid",
        "path",
        "checkpointlocation",
        "queryname",
    ]
)
#: Options with two names, of which the jobs use the second.
_ALIASES = {"isolationlevel": "kafka.isolation.level"}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The added options, without passwords in the text of a job."""

    given: Mapping[str, str] = field(default_factory=dict, repr=False)

    def reading(self, own: Mapping[str, str]) -> dict[str, str]:
        """The job's own options for reading, and those that were added, which override them."""
        return _merged(own, {name: value for name, value in self.given.items() if is_read_option(name)})

    def reading_results(self, bootstrap: str, topic: str) -> dict[str, str]:
        """For a batch read of what a job has written. Of the added options only those of the connection apply."""
        own = {"bootstrap.servers": bootstrap, "subscribe": topic, "kafka.isolation.level": "read_committed"}
        return _merged(own, {name: value for name, value in self.given.items() if is_connection_option(name)})

    def security(self) -> Security:
        """For a job that is a client itself."""
        return security_of(self.given)

    def writing(self, own: Mapping[str, str]) -> dict[str, str]:
        return _merged(own, {name: value for name, value in self.given.items() if is_write_option(name)})

    def writing_batch(self, own: Mapping[str, str], sink: str, batch: int) -> dict[str, str]:
        """For a batch write that may be repeated: a repeated one adds nothing. Unless the user chose at-least-once,
        which has no sinks."""
        options = self.writing(own)
        if write_options(options).exactly_once:
            options |= {"sinkId": sink, "batchId": str(batch)}
        return options


def _merged(own: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    names = {_ALIASES.get(name.lower(), name.lower()) for name in added}
    return {name: value for name, value in own.items() if name.lower() not in names} | dict(added)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the format ottla, such as failOnDataLoss=false; repeatable",
    )
    parser.add_argument(
        "--options-file",
        action="append",
        default=[],
        metavar="FILE",
        help="file with lines NAME=VALUE, for options with passwords; repeatable",
    )


def take(parser: argparse.ArgumentParser, given: dict[str, Any], *, reads: bool, writes: bool) -> JobOptions:
    """Remove both arguments from `given`. Ends the program, with a sentence, if one is wrong."""
    texts, files = given.pop("option"), given.pop("options_file")
    try:
        return parsed(texts, files, reads=reads, writes=writes)
    except (OptionProblem, OSError) as wrong:
        parser.error(str(wrong))


def parsed(texts: Sequence[str], files: Sequence[str], *, reads: bool, writes: bool) -> JobOptions:
    """Files first: an argument overrides a line. Raises OptionProblem or OSError."""
    found: dict[str, str] = {}
    for file in files:
        for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                # Without the line itself: it may have a password.
                _add(found, line, f"{file}, line {number}, is not NAME=VALUE.")
    for text in texts:
        _add(found, text, f"--option takes NAME=VALUE; got {text!r}.")
    for name, value in found.items():
        if name.lower() in _OF_THE_JOB:
            raise OptionProblem(f"--option cannot set {name}: the job's other arguments do.")
        check_option(name, value, reads=reads, writes=writes)
    security_of(found)  # they may contradict each other
    return JobOptions(found)


def _add(found: dict[str, str], text: str, problem: str) -> None:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise OptionProblem(problem)
    found[name.strip()] = value.strip()
