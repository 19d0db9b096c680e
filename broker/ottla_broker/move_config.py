"""How many partitions a broker copies at once because they move to it: a setting that can change at run time. [P]

The value for one broker counts before the value for all, and that before the controller's own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla_broker.config import SETTINGS
from ottla_broker.topic_config import Definition
from ottla_core.errors import InvalidConfig

MOVES_MAX = "num.concurrent.partition.movements.per.broker"
_AT_MOST = 1000

RUNTIME_MOVES: Mapping[str, Definition] = {
    MOVES_MAX: Definition(
        MOVES_MAX, "int", SETTINGS[MOVES_MAX].default, SETTINGS[MOVES_MAX].doc, (), at_least=1
    )
}


def check_moves(values: Mapping[str, str]) -> None:
    """`InvalidConfig` for what is not a number of moves."""
    if MOVES_MAX in values and int(RUNTIME_MOVES[MOVES_MAX].parse(values[MOVES_MAX])) > _AT_MOST:
        raise InvalidConfig(f"{MOVES_MAX} is at most {_AT_MOST}.")


def moves_limit(configs: Mapping[str, Mapping[str, str]], static: int) -> Callable[[int], int]:
    """The limit of each broker, from the run-time settings by broker id ("" for all)."""
    for_all = int(configs.get("", {}).get(MOVES_MAX, static))

    def of(broker: int) -> int:
        own = configs.get(str(broker))
        return int(own.get(MOVES_MAX, for_all)) if own else for_all

    return of
