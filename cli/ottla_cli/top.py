"""`ottla top`: brokers, busy topics, groups with lag and busy clients, refreshed every two seconds. [A]

It reads the brokers' metrics over HTTP. Metadata has no address for them, so the port is the gRPC port plus 100, as in
every default, unless `--metrics` names the addresses.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run
from ottla_cli.failure import Failure
from ottla_cli.metrics_text import Page, read_page
from ottla_cli.quantities import show_age, show_count, show_size
from ottla_cli.screen import has_colours, print_json, table, width_of
from ottla_cli.tables import Table
from ottla_cli.top_view import WANTED, Look, Scrape, look, shares
from ottla_core.real.clock import RealClock

_GRPC_TO_HTTP = 100
_SCRAPE_TIMEOUT_S = 3.0
#: Of one broker's page: series are bounded by the brokers, this only guards against something else at the port.
_PAGE_MAX_BYTES = 64 * 1024 * 1024
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
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="HOST:PORT,…",
            help="Addresses of the brokers' metrics; by default the gRPC port plus 100.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show brokers, topics by rate, groups by lag, and the busiest clients.

    Rates are those of the last interval. It ends with Ctrl-C.

    $ ottla top
    $ ottla top --once --interval 10
    $ ottla top --json | jq '.groups[] | select(.lag_s > 60)'
    """
    once = once or as_json or not sys.stdout.isatty()
    run(_top(bootstrap, metrics, interval, once=once, as_json=as_json))


async def _top(bootstrap: str, metrics: str | None, interval: float, *, once: bool, as_json: bool) -> None:
    clock = RealClock()
    before = await _scraped(await _addresses(bootstrap, metrics))
    if not once:
        sys.stdout.write(_ALTERNATE)
    try:
        while True:
            await clock.sleep(interval)
            addresses = await _addresses(bootstrap, metrics)
            now = await _scraped(addresses)
            found = look(list(addresses), before, now)
            before = now
            if as_json:
                print_json(found.as_json())
            elif once:
                typer.echo("\n".join(_lines(found, width_of(sys.stdout), None)))
            else:
                size = shutil.get_terminal_size()
                lines = _lines(found, size.columns, size.lines - 1)
                # Rewritten line by line: clearing the screen first would flicker.
                sys.stdout.write(_HOME + "".join(f"{line}\x1b[K\r\n" for line in lines) + _CLEAR_REST)
                sys.stdout.flush()
            if once:
                return
    finally:
        if not once:
            sys.stdout.write(_NORMAL)
            sys.stdout.flush()


async def _addresses(bootstrap: str, metrics: str | None) -> dict[int, str]:
    """Where the metrics of each broker are, offline ones included (with an empty address)."""
    async with admin(bootstrap) as client:
        brokers = (await client.describe_brokers(sizes=False)).brokers
    if metrics is not None:
        named = [each.strip() for each in metrics.split(",") if each.strip()]
        if len(named) != len(brokers):
            raise Failure(
                f"--metrics names {len(named)} addresses, the cluster has {len(brokers)} brokers; "
                "list one for each, in the order of their ids.",
                exit_code=2,
            )
        return dict(zip(sorted(each.id for each in brokers), named, strict=True))
    return {
        each.id: f"{each.host}:{each.port + _GRPC_TO_HTTP}" if each.online and each.host else ""
        for each in brokers
    }


async def _scraped(addresses: Mapping[int, str]) -> Scrape:
    pages = await asyncio.gather(*(_page(address) for address in addresses.values()))
    found = {id_: page for id_, page in zip(addresses, pages, strict=True) if page is not None}
    if not found:
        where = ", ".join(address for address in addresses.values() if address)
        raise Failure(
            f"No broker serves metrics at {where or 'any address'}. "
            "Name the addresses (http.listener) with --metrics HOST:PORT,…"
        )
    return Scrape(time.monotonic(), found)


async def _page(address: str) -> Page | None:
    """None if the broker is offline, or does not answer."""
    if not address:
        return None
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_SCRAPE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(f"GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
                raw = bytearray()
                while part := await reader.read(1 << 16):
                    raw += part
                    if len(raw) > _PAGE_MAX_BYTES:
                        return None
            finally:
                writer.close()
    except (OSError, ValueError):
        return None
    head, _, body = bytes(raw).partition(b"\r\n\r\n")
    return read_page(body.decode("utf-8", "replace"), WANTED) if b" 200 " in head[:20] else None


# ------------------------------------------------------------------ showing


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
