"""The topics that `ottla consume` reads: names, or regular expressions. [A]"""

from __future__ import annotations

from dataclasses import dataclass

from ottla_cli.connecting import describe_topics, usage
from ottla_cli.failure import Failure
from ottla_cli.record_filter import topics_of
from ottla_client import Admin, TopicDescription


@dataclass(frozen=True, slots=True)
class Chosen:
    patterns: list[str]
    regex: bool


async def chosen_topics(client: Admin, chosen: Chosen) -> list[TopicDescription]:
    """The topics, or a Failure that says what to do."""
    if not chosen.regex:
        return await describe_topics(client, topics_of(chosen.patterns, (), regex=False))
    there = await client.list_topics()
    names = usage(topics_of, chosen.patterns, there, regex=True)
    if not names:
        raise Failure(
            f"No topic matches {' or '.join(map(repr, chosen.patterns))}; `ottla topics list` lists all."
        )
    return await describe_topics(client, names)
