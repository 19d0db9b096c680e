"""What commands that talk to brokers share: common options, clients, and errors as sentences. [A]

Every such command runs its coroutine through `run`, the only place where an error
of the client or of a broker becomes a `Failure`.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer

from ottla_cli.failure import Failure
from ottla_cli.interrupts import INTERRUPTED, Interrupts
from ottla_cli.profiles import security
from ottla_cli.quantities import setting_value
from ottla_client import Admin, TopicDescription
from ottla_client.errors import ClientError, RequestError, UnknownTopicOrPartition

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9192"
#: Distinct warnings that one command shows.
_WARNINGS_MAX = 20

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT,…",
        help="gRPC address of one or more brokers.",
        envvar="OTTLA_BOOTSTRAP",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for scripts.")]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; errors become one sentence, and Ctrl-C ends it in bounded time without a traceback."""
    _show_warnings()
    try:
        with Interrupts() as interrupts:
            return asyncio.run(interrupts.watched(work))
    except FAILURES as error:
        raise Failure(reason(error)) from None
    except UnicodeEncodeError as wrong:
        raise Failure(f"{wrong.object!r} is not UTF-8; names must be.", exit_code=2) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


#: What a client raises if brokers do not answer, or refuse.
FAILURES = (RequestError, ClientError, TimeoutError)


def reason(error: Exception) -> str:
    """One of FAILURES as a sentence."""
    if isinstance(error, RequestError):
        return sentence(error)
    return str(error) or "No broker answered in time; check `ottla cluster status`."


def _show_warnings() -> None:
    """Show the warnings that the client logs while it retries, each sentence once."""
    seen: set[str] = set()

    def is_news(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        # The command itself reports records that were not written, with an exit code.
        if text in seen or (record.name.startswith("ottla_client.") and record.levelno == logging.ERROR):
            return False
        seen.add(text)
        return len(seen) < _WARNINGS_MAX

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("ottla: %(message)s"))
    handler.addFilter(is_news)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def sentence(error: RequestError) -> str:
    """The broker's sentence, followed by Kafka's name of the error, which users can search for."""
    text = error.message.rstrip()
    if error.name in text:
        return text
    return f"{text} ({error.name})" if text.endswith(("?", "!")) else f"{text.rstrip('.')}. ({error.name})"


def usage(parse: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """The result, or a usage error with the sentence of the ValueError."""
    try:
        return parse(*arguments, **named)
    except ValueError as wrong:
        raise Failure(str(wrong), exit_code=2) from None


def admin(bootstrap: str) -> Admin:
    return usage(Admin, bootstrap, security=security())


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` arguments as a mapping."""
    found = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise Failure(f"{option} takes name=value, not {text!r}.", exit_code=2)
        found[name.strip()] = value
    return found


def settings(texts: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` arguments; values may be durations (7d) and sizes (1GB)."""
    return {name: setting_value(name, value) for name, value in pairs(texts, option).items()}


async def describe_topic(client: Admin, topic: str) -> TopicDescription:
    """The topic, or a Failure that suggests similar names."""
    return (await describe_topics(client, [topic]))[0]


async def describe_topics(client: Admin, topics: list[str]) -> list[TopicDescription]:
    try:
        return await client.describe_topics(topics)
    except UnknownTopicOrPartition:
        there = await client.list_topics(include_internal=True)
        missing = next((topic for topic in topics if topic not in there), topics[0])
        raise Failure(no_such_topic(missing, there)) from None


def similar(name: str, there: list[str]) -> list[str]:
    """Suggestions for a misspelt name: the closest one, and others only if they are about as close."""
    by_lower = {each.lower(): each for each in there}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, each, name.lower()).ratio() for each in close]
    return [by_lower[each] for each, ratio in zip(close, ratios, strict=True) if ratio >= ratios[0] - 0.03]


def no_such_topic(topic: str, there: list[str]) -> str:
    """An error sentence with suggestions."""
    close = similar(topic, there)
    if close:
        return f"There is no topic {topic!r}. Did you mean {' or '.join(repr(name) for name in close)}?"
    listed = "`ottla topics list` lists all topics" if there else "The cluster has no topics yet"
    return f"There is no topic {topic!r}. {listed}; `ottla topics create {topic}` creates it."


def check_partitions(topic: TopicDescription, wanted: list[int] | None) -> list[int]:
    """The requested partitions, or all."""
    there = [each.partition for each in topic.partitions]
    for partition in wanted or []:
        if partition not in there:
            raise Failure(
                f"Topic {topic.name!r} has no partition {partition}; it has {_span(there)}.", exit_code=1
            )
    return sorted(set(wanted)) if wanted else there


def _span(numbers: list[int]) -> str:
    return "only 0" if len(numbers) == 1 else f"0 to {len(numbers) - 1}"
