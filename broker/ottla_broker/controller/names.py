"""Which topic names are allowed: Kafka's rules. [P]"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ottla_core.errors import InvalidTopicException, RequestError, UnknownTopicOrPartition

#: Folder names are `<topic>-<partition>` with suffixes like `.<32 characters>-delete`: 255 bytes in all.
NAME_LENGTH_MAX = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


def check_topic_name(name: str) -> None:
    """`InvalidTopicException` with the reason unless the name is one that Kafka would accept."""
    if not name:
        raise InvalidTopicException("A topic name must not be empty.")
    if name in (".", ".."):
        raise InvalidTopicException(f"A topic cannot be named {name!r}.")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicException(
            f"The topic name has {len(name)} characters; {NAME_LENGTH_MAX} are allowed: {name[:60]!r}…"
        )
    if not _LEGAL.match(name):
        raise InvalidTopicException(
            f"The topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'."
        )


def no_such_topic(name: str) -> RequestError:
    """The error for a topic that does not exist; InvalidTopicException if its name is not legal."""
    try:
        check_topic_name(name)
    except InvalidTopicException as never:
        return never
    return UnknownTopicOrPartition(f"There is no topic {name!r}.")


def collision_key(name: str) -> str:
    """Metric names replace '.' by '_', so two topics with the same key would share their metrics."""
    return name.replace(".", "_")


def check_collision(name: str, taken: Mapping[str, str]) -> None:
    """Refuse a name that differs only in '.' against '_' from one in `taken`: collision key -> name."""
    other = taken.get(collision_key(name), name)
    if other != name:
        raise InvalidTopicException(
            f"The topic name {name!r} collides with {other!r}: '.' and '_' count as one."
        )
