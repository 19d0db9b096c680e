"""Names of topics and groups for the shell's completion. [A]

The shell waits for it at every press of the key, so it gives up quickly, and offers nothing if no broker answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

import typer

from ottla_cli.connecting import DEFAULT_BOOTSTRAP, admin
from ottla_client import Admin

_TIMEOUT_S = 1.5
_NAMES_MAX = 500


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    async def names(client: Admin) -> list[str]:
        return await client.list_topics()

    return _starting_with(incomplete, names, context)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    async def names(client: Admin) -> list[str]:
        return [each.group for each in await client.list_groups()]

    return _starting_with(incomplete, names, context)


def _starting_with(
    incomplete: str, names: Callable[[Admin], Awaitable[list[str]]], context: typer.Context
) -> list[str]:
    logging.disable(logging.CRITICAL)  # anything on standard error would mix with the command line
    bootstrap = context.params.get("bootstrap") or os.environ.get("OTTLA_BOOTSTRAP") or DEFAULT_BOOTSTRAP

    async def ask() -> list[str]:
        async with asyncio.timeout(_TIMEOUT_S), admin(bootstrap) as client:
            return await names(client)

    try:
        found = asyncio.run(ask())
    except Exception:
        return []
    return sorted(name for name in found if name.startswith(incomplete))[:_NAMES_MAX]
