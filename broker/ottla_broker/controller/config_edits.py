"""Configuration changes as functions of the current settings: applied by the controller, under its lock. [P]

Two clients that each append to a list, or set different names, must both succeed; so brokers send the
edit to the controller, never its result. An edit is idempotent, so
the controller can retry it after a lost reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ottla_broker import inert_config
from ottla_broker.config import SETTINGS
from ottla_broker.group_config import definition as group_definition
from ottla_broker.inert_config import InertSetting
from ottla_broker.move_config import RUNTIME_MOVES, check_moves
from ottla_broker.requests import ConfigChange
from ottla_broker.throttle_config import RATES, check_rates
from ottla_broker.topic_config import Definition, definition, definitions, no_such_setting
from ottla_core.errors import InvalidConfig, InvalidRequest

#: Current settings -> new settings.
Edit: TypeAlias = Callable[[Mapping[str, str]], dict[str, str]]

SERVER_NAMES = {synonym.name: d for d in definitions() for synonym in d.synonyms}
#: Settings of a broker that can change at run time, besides the defaults of topics.
RUNTIME: Mapping[str, Definition | InertSetting] = {**RATES, **RUNTIME_MOVES, **inert_config.BROKER}


def replacement(values: Mapping[str, str]) -> Edit:
    """Replace all settings by these."""
    return lambda old: dict(values)


def topic_edit(changes: Sequence[ConfigChange]) -> Edit:
    return lambda old: changed(old, changes, definition)


def broker_edit(changes: Sequence[ConfigChange]) -> Edit:
    def edit(old: Mapping[str, str]) -> dict[str, str]:
        made = changed(old, changes, server_definition)
        inert_config.check(made)
        check_rates(made)
        check_moves(made)
        return made

    return edit


def group_edit(changes: Sequence[ConfigChange]) -> Edit:
    return lambda old: changed(old, changes, group_definition)


def edit_of(
    edit: Callable[[Sequence[ConfigChange]], Edit],
    changes: Sequence[ConfigChange] | None,
    values: Mapping[str, str] | None,
) -> Edit:
    """Either changes of the settings, or the complete settings."""
    if values is not None:
        return replacement(values)
    if changes is None:
        raise InvalidRequest("The request has neither changes nor values.")
    return edit(changes)


def server_definition(name: str) -> Definition | InertSetting:
    found = SERVER_NAMES.get(name) or RUNTIME.get(name)
    if found is None:
        if name in SETTINGS:
            raise InvalidConfig(
                f"{name} cannot change at run time: set it in the broker's file and restart it."
            )
        raise no_such_setting("broker", name, SERVER_NAMES)
    return found


def changed(
    values: Mapping[str, str],
    changes: Sequence[ConfigChange],
    find: Callable[[str], Definition | InertSetting],
) -> dict[str, str]:
    """The settings after all changes; an unknown name or an invalid change is refused. Deleting a setting
    that is not set changes nothing, whatever its name: Kafka's tools clear settings without asking what is set."""
    made = dict(values)
    for change in changes:
        if change.kind == "delete":
            made.pop(change.name, None)
            continue
        setting = find(change.name)
        if change.value is None:
            raise InvalidConfig(f"{change.name} needs a value.")
        if change.kind == "set":
            made[change.name] = change.value
        elif setting.type != "list":
            raise InvalidConfig(f"{change.name} is not a list: set it instead of changing parts of it.")
        else:
            parts = [p.strip() for p in made.get(change.name, setting.default).split(",") if p.strip()]
            given = [p.strip() for p in change.value.split(",") if p.strip()]
            if change.kind == "append":
                parts += [p for p in given if p not in parts]
            else:
                parts = [p for p in parts if p not in given]
            made[change.name] = ",".join(parts)
            if not parts and not setting.default:
                del made[change.name]  # A cleared list of throttled replicas leaves nothing behind.
    return made
