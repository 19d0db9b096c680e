"""`ottla cluster throttle`: the rate of throttled moves, for all brokers. [A]"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla_cli.assignments import rate_of
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run
from ottla_cli.quantities import plural, show_size
from ottla_cli.screen import print_json, say
from ottla_client import move_throttle


def throttle(
    rate: Annotated[str, typer.Argument(metavar="RATE|off", help="Bytes per second, such as 50MB; or off.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change the rate of moves that began with --throttle, or remove all throttles.

    The rate is for each broker, once for what it sends and once for what it
    receives. Only replicas that are not in sync are throttled.

    $ ottla cluster throttle 100MB
    $ ottla cluster throttle off
    """
    wanted = None if rate == "off" else rate_of(rate)

    async def work() -> int:
        async with admin(bootstrap) as client:
            if wanted is None:
                return await move_throttle.clear_all(client)
            brokers = [each.id for each in (await client.describe_brokers(sizes=False)).brokers]
            await move_throttle.set_rate(client, brokers, wanted)
            return len(brokers)

    count = run(work())
    if as_json:
        print_json({"rate": wanted})
    elif wanted is None:
        say(f"No replica is throttled; {plural(count, 'topic')} had throttled replicas.")
    else:
        say(f"{plural(count, 'broker')} copy throttled replicas at {show_size(wanted)}/s.")
