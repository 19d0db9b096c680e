"""Options of commands that place or move partitions: `--assignment 0=1,2,3`, `--to 1,2,3`, `--yes`. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from ottla_cli.failure import Failure
from ottla_cli.quantities import parse_size

Assignment = Annotated[
    list[str] | None,
    typer.Option(
        "--assignment",
        "-a",
        metavar="P=B,B,…",
        help="Brokers of partition P, the preferred leader first; may be repeated.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Copy at most this many bytes per second from and to each broker, such as 50MB.",
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return when the moves have begun.")]


def rate_of(text: str | None) -> int | None:
    """`--throttle` in bytes per second."""
    if text is None:
        return None
    try:
        rate = parse_size(text)
    except ValueError as error:
        raise Failure(f"--throttle: {error}", exit_code=2) from None
    if not rate:
        raise Failure("--throttle: with a rate of 0 no partition would ever move.", exit_code=2)
    return rate


def brokers_of(text: str, option: str) -> tuple[int, ...]:
    """`1,2,3` as broker ids."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise Failure(f"{option}: {text!r} is not a list of broker ids, such as 1,2,3.", exit_code=2)
    return tuple(int(word) for word in words)


def assignments_of(texts: Sequence[str] | None) -> dict[int, tuple[int, ...]]:
    """`0=1,2,3` and so on, by partition."""
    found: dict[int, tuple[int, ...]] = {}
    for text in texts or ():
        partition, equals, brokers = text.partition("=")
        if not equals or not (partition.isascii() and partition.isdigit()):
            raise Failure(
                f"--assignment: {text!r} is not of the form PARTITION=BROKERS, such as 0=1,2,3.", exit_code=2
            )
        if int(partition) in found:
            raise Failure(f"--assignment: partition {partition} is named twice.", exit_code=2)
        found[int(partition)] = brokers_of(brokers, "--assignment")
    return found


def rotated(brokers: Sequence[int], partitions: Sequence[int]) -> Mapping[int, tuple[int, ...]]:
    """The same brokers for all partitions; each partition prefers the next of them as leader."""
    turns = [(*brokers[i:], *brokers[:i]) for i in range(len(brokers))]
    return {partition: turns[n % len(turns)] for n, partition in enumerate(partitions)}
