"""`ottla top`: brokers, busy topics, groups with lag and busy clients, refreshed every two seconds. [A]

It reads the brokers' metrics over gRPC, so it needs no other port, and has the TLS and login of every command. A
look that fails after the first is shown as its sentence above the last tables, and the next one follows.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap
import time
from typing import Annotated

import typer

from ottla_cli.connecting import DEFAULT_BOOTSTRAP, FAILURES, AsJson, Bootstrap, admin, reason, run
from ottla_cli.failure import Failure
from ottla_cli.metrics_text import read_page
from ottla_cli.quantities import show_age, show_count, show_size
from ottla_cli.screen import has_colours, print_json, table, width_of
from ottla_cli.tables import Table
from ottla_cli.top_view import WANTED, Look, Scrape, look, shares
from ottla_client import Admin
from ottla_core.ports.clock import Clock
from ottla_core.real.clock import RealClock

#: One look: a broker that was just killed must not freeze the screen for longer.
_LOOK_TIMEOUT_S = 5.0
#: Of one broker's answer, so that the others are shown.
_BROKER_TIMEOUT_S = 3.0
#: Rows of a section that is not shown on a terminal.
_ALL_ROWS = 1000
_HOME, _CLEAR_REST = "\x1b[H", "\x1b[J"
_ALTERNATE, _NORMAL = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", help="Time between two looks.", min=0.5)
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", "-1", help="Show one interval and end, as without a terminal.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show brokers, topics by rate, groups by lag, and the busiest clients.

    Rates are those of the last interval. It ends with Ctrl-C, and goes on if brokers fail meanwhile.

    $ ottla top
    $ ottla top --once --interval 10
    $ ottla top --json | jq '.groups[] | select(.lag_s > 60)'
    """
    once = once or as_json or not sys.stdout.isatty()
    run(_top(bootstrap, interval, once=once, as_json=as_json))


async def _top(bootstrap: str, interval: float, *, once: bool, as_json: bool) -> None:
    clock = RealClock()
    async with admin(bootstrap) as client:
        _, before = await _scraped(client)
        if once:
            await clock.sleep(interval)
            brokers, now = await _scraped(client)
            found = look(brokers, before, now)
            if as_json:
                print_json(found.as_json())
            else:
                typer.echo("\n".join(_lines(found, width_of(sys.stdout), None)))
            return
        sys.stdout.write(_ALTERNATE)
        try:
            await refresh(client, clock, before, interval)
        finally:
            sys.stdout.write(_NORMAL)
            sys.stdout.flush()


async def refresh(client: Admin, clock: Clock, before: Scrape, interval: float) -> None:
    """Until Ctrl-C."""
    found: Look | None = None
    while True:
        await clock.sleep(interval)
        failed = None
        try:
            brokers, now = await _scraped(client)
        except (*FAILURES, Failure) as error:
            failed = str(error) if isinstance(error, Failure) else reason(error)
        else:
            found, before = look(brokers, before, now), now
        size = shutil.get_terminal_size()
        lines = screen_lines(found, failed, size.columns, size.lines - 1)
        # Rewritten line by line: clearing the screen first would flicker.
        sys.stdout.write(_HOME + "".join(f"{line}\x1b[K\r\n" for line in lines) + _CLEAR_REST)
        sys.stdout.flush()


async def _scraped(client: Admin) -> tuple[list[int], Scrape]:
    """The ids of all brokers, offline ones included, and the metrics of those that answer."""
    async with asyncio.timeout(_LOOK_TIMEOUT_S):
        brokers = [each.id for each in (await client.describe_brokers(sizes=False)).brokers]
        pages = await client.describe_metrics(WANTED, timeout_s=_BROKER_TIMEOUT_S)
    if not pages:
        raise Failure("No broker answered with its metrics in time; check `ottla cluster status`.")
    return brokers, Scrape(time.monotonic(), {id_: read_page(text, WANTED) for id_, text in pages.items()})


# ------------------------------------------------------------------ showing


def screen_lines(found: Look | None, failed: str | None, width: int, height: int) -> list[str]:
    """The last look, below the reason why there is no newer one."""
    notice = [] if failed is None else [*textwrap.wrap(f"{time.strftime('%H:%M:%S')}  {failed}", width), ""]
    shown = [] if found is None else _lines(found, width, max(1, height - len(notice)))
    return [*notice, *shown][:height]


def _lines(found: Look, width: int, height: int | None) -> list[str]:
    """At most `height` lines; without a height all rows."""
    sections = [_topics(found), _groups(found), _clients(found)]
    brokers = _brokers(found)
    head = _summary(found)
    if height is None:
        rows = [_ALL_ROWS] * 3
    else:
        # Each section has an empty line and a header.
        fixed = 1 + 2 + len(found.brokers) + 2 * sum(bool(each.rows) for each in sections)
        rows = shares(height - fixed, [len(each.rows) for each in sections])
    colours = has_colours(sys.stdout)
    lines = [head]
    for made, most in [(brokers, _ALL_ROWS), *zip(sections, rows, strict=True)]:
        if made.rows:
            cut = Table(made.columns, made.rows[:most], made.dim[:most])
            lines += ["", *cut.lines(width, colours=colours)]
    return lines if height is None else lines[:height]


def _summary(found: Look) -> str:
    online = [each for each in found.brokers if each.memory_bytes is not None]
    controller = next((str(each.broker) for each in found.brokers if each.controller), "none")
    facts = [f"{len(online)} of {len(found.brokers)} brokers", f"controller {controller}"]
    facts.append(
        f"{show_count(found.under_replicated)} partitions under-replicated"
        if found.under_replicated
        else "all replicas in sync"
    )
    return f"{time.strftime('%H:%M:%S')}  {', '.join(facts)}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{show_size(value)}/s"


def _brokers(found: Look) -> Table:
    return table(
        ("broker#", "CPU#", "memory#", "leaders#", "written#", "read#", "logs#", "disk#", ""),
        (
            (each.broker, "-" if each.cpu is None else f"{each.cpu:.0%}",
             "offline" if each.memory_bytes is None else show_size(each.memory_bytes), each.leaders,
             _rate(each.in_bytes_s), _rate(each.out_bytes_s),
             None if each.log_bytes is None else show_size(each.log_bytes),
             None if each.disk_used is None else f"{each.disk_used:.0%}", "controller" if each.controller else "")
            for each in found.brokers
        ),
    )  # fmt: skip


def _topics(found: Look) -> Table:
    return table(
        ("topic", "records/s#", "written#", "read#", "size#"),
        (
            (each.topic, show_count(each.records_s), _rate(each.in_bytes_s), _rate(each.out_bytes_s),
             show_size(each.log_bytes))
            for each in found.topics
        ),
    )  # fmt: skip


def _groups(found: Look) -> Table:
    return table(
        ("group", "topic", "members#", "lag#", "behind#"),
        (
            (each.group, each.topic, each.members, show_count(each.lag),
             None if each.lag_s is None else show_age(each.lag_s))
            for each in found.groups
        ),
    )  # fmt: skip


def _clients(found: Look) -> Table:
    return table(
        ("client", "protocol", "open#", "requests/s#", "sent#", "received#"),
        (
            (each.client, each.protocol, each.connections, show_count(each.requests_s), _rate(each.in_bytes_s),
             _rate(each.out_bytes_s))
            for each in found.clients
        ),
    )  # fmt: skip
