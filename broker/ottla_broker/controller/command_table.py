"""From a command's name to its class: one file each in `commands/`, loaded on first use. [S]"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any, cast

from ottla_broker.controller import commands
from ottla_broker.controller.command import Command


def command_names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(commands.__path__)]


@cache
def command_class(name: str) -> type[Command[Any]]:
    """The class of a name in `command_names()`."""
    module = importlib.import_module(f"{commands.__name__}.{name}")
    return cast("type[Command[Any]]", module.COMMAND)
