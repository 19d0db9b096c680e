"""`ottla groups`: list consumer groups, show their members and lag, delete them. [A]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from ottla_cli.choices import listed
from ottla_cli.completing import complete_group
from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run, similar
from ottla_cli.failure import Failure
from ottla_cli.groups_reset import reset_offsets
from ottla_cli.quantities import plural, show_age, show_count
from ottla_cli.screen import confirm, note, print_json, say, show, table
from ottla_cli.watching import Watch, repeated
from ottla_client import Admin, TopicPartition
from ottla_client.group_admin import GroupDescription, PartitionLag

app = typer.Typer(no_args_is_help=True)
app.command("reset-offsets")(reset_offsets)

_Lags = dict[TopicPartition, PartitionLag]


class State(StrEnum):
    """Group states, with Kafka's names."""

    Empty = "Empty"
    PreparingRebalance = "PreparingRebalance"
    CompletingRebalance = "CompletingRebalance"
    Assigning = "Assigning"
    Reconciling = "Reconciling"
    Stable = "Stable"
    Dead = "Dead"


class Type(StrEnum):
    """Group types, with Kafka's names: `consumer` is broker-side (KIP-848)."""

    classic = "classic"
    consumer = "consumer"


_Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP", help="One or more groups.", autocompletion=complete_group),
]
#: Groups whose lag is asked for at the same time.
_LAGS_AT_ONCE = 8


@app.callback()
def _group() -> None:
    """Show, reset and delete consumer groups.

    $ ottla groups list
    $ ottla groups describe billing
    $ ottla groups reset-offsets billing --topic orders --to earliest
    """


@app.command("list")
def list_(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN", help="Only names that match, such as 'billing*'.")
    ] = None,
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            case_sensitive=False,
            help=f"Only groups in this state: {listed(State)}; may be repeated.",
        ),
    ] = None,
    type_: Annotated[
        list[Type] | None,
        typer.Option("--type", case_sensitive=False, help="Only groups of this type; may be repeated."),
    ] = None,
    lag: Annotated[
        bool, typer.Option("--lag", "-l", help="Show the lag of each group, the largest first.")
    ] = False,
    watch: Watch = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List groups. Those of type consumer are assigned by the broker.

    $ ottla groups list
    $ ottla groups list --lag --watch
    $ ottla groups list 'billing*' --state Stable --json
    $ ottla groups list --type consumer
    """

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.list_groups(
                states=[str(each) for each in state or ()], types=[str(each) for each in type_ or ()]
            )
            rows: list[dict[str, Any]] = [
                {
                    "group": each.group,
                    "state": each.state,
                    "type": each.group_type,
                    "protocol_type": each.protocol_type,
                }
                for each in found
                if not patterns or any(fnmatchcase(each.group, pattern) for pattern in patterns)
            ]
            if lag:
                lags = await _lags(client, [row["group"] for row in rows])
                rows = [{**row, **found} for row, found in zip(rows, lags, strict=True)]
                rows.sort(key=lambda row: -row["lag"])
        return rows

    def shown(clear: Callable[[], None]) -> None:
        rows = run(work())
        clear()
        _list(rows, lag=lag, filtered=bool(patterns or state or type_), as_json=as_json)

    repeated(shown, watch=watch)


def _list(rows: list[dict[str, Any]], *, lag: bool, filtered: bool, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    elif rows:
        names = ("group", "state", "type", *(("topics", "partitions", "lag", "behind") if lag else ()))
        signs = {"topics": "~", "partitions": "#", "lag": "#", "behind": "#"}
        cells = [
            {**row, "topics": ", ".join(row.get("topics", ())), "behind": _age(row.get("lag_s"))}
            for row in rows
        ]
        columns = [f"{name}{signs.get(name, '')}" for name in names]
        show(table(columns, ([row[key] for key in names] for row in cells)))
    elif filtered:
        note("No group matches.")
    else:
        note("There are no groups yet; `ottla consume TOPIC --group NAME` creates one.")


async def _lags(client: Admin, groups: list[str]) -> list[dict[str, Any]]:
    """Topics, partitions with a committed offset, total lag and greatest lag in seconds of each group."""
    free = asyncio.Semaphore(_LAGS_AT_ONCE)

    async def one(group: str) -> dict[str, Any]:
        async with free:
            found = await client.group_lag(group)
        topics = list(dict.fromkeys(tp.topic for tp in found))
        return {
            "topics": topics,
            "partitions": len(found),
            "lag": total_lag(found),
            "lag_s": greatest_lag_s(found),
        }

    return await asyncio.gather(*map(one, groups))


@app.command()
def describe(
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="GROUP", help="One or more groups.", autocompletion=complete_group),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="All groups.")] = False,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Show members instead of partitions.")
    ] = False,
    watch: Watch = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show state, members, and the lag of each partition.

    Lag is the end offset of the partition minus the committed offset, or `-`
    if nothing is committed; in seconds, it is the age of the oldest record
    that is not committed.

    $ ottla groups describe billing
    $ ottla groups describe billing --members
    $ ottla groups describe --all --watch
    $ ottla groups describe billing --json | jq '.[].lag'
    """

    if all_ == bool(groups):
        raise Failure("Name groups, or give --all.", exit_code=2)

    async def work() -> list[tuple[GroupDescription, _Lags]]:
        async with admin(bootstrap) as client:
            wanted = groups or [each.group for each in await client.list_groups()]
            described = await client.describe_groups(wanted) if wanted else []
            for each in described:
                if each.state == "Dead" and not all_:
                    raise Failure(await no_such_group(client, each.group))
            return [(each, await client.group_lag(each.group)) for each in described if each.state != "Dead"]

    def shown(clear: Callable[[], None]) -> None:
        found = run(work())
        clear()
        if as_json:
            print_json([_as_json(group, lags) for group, lags in found])
            return
        for number, (group, lags) in enumerate(found):
            if number:
                say("")
            _show(group, lags, only_members=members)
        if not found:
            note("There are no groups yet; `ottla consume TOPIC --group NAME` creates one.")

    repeated(shown, watch=watch)


async def no_such_group(client: Admin, group: str) -> str:
    close = similar(group, [each.group for each in await client.list_groups()])
    if close:
        return f"There is no group {group!r}. Did you mean {' or '.join(repr(name) for name in close)}?"
    return f"There is no group {group!r}. `ottla groups list` lists all groups."


def total_lag(lags: _Lags) -> int:
    return sum(each.lag or 0 for each in lags.values())


def greatest_lag_s(lags: _Lags) -> float | None:
    """None if it is not known of any partition."""
    return max((each.seconds for each in lags.values() if each.seconds is not None), default=None)


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else show_age(seconds)


def _show(group: GroupDescription, lags: _Lags, *, only_members: bool) -> None:
    facts = [group.state, plural(len(group.members), "member")]
    if group.is_broker_side:
        facts[1:1] = ["type consumer", f"epoch {group.generation}"]
    if group.protocol:
        facts.append(f"assignor {group.protocol}")
    facts += [f"coordinator {group.coordinator_id}", f"lag {show_count(total_lag(lags))}"]
    say(f"{group.group}: {', '.join(facts)}")
    if group.assignor_failure:
        say(f"{group.assignor_failure}. The group uses {group.protocol} instead.")
    if only_members:
        if group.members and group.is_broker_side:
            columns = ("member", "instance", "host", "epoch#", "partitions#", "reads~", "moves~")
            show(table(columns, _broker_side_rows(group)))
        elif group.members:
            show(
                table(("member", "client", "host", "instance", "partitions#", "reads~"), _member_rows(group))
            )
        return
    names = {member.member_id: member for member in group.members}
    rows = []
    for tp, lag in lags.items():
        member = names.get(lag.member_id or "")
        who = (
            [None, None]
            if member is None
            else [member.group_instance_id or member.member_id, member.client_host]
        )
        seconds = None if lag.seconds is None else f"{lag.seconds:.1f}"
        rows.append([tp.topic, tp.partition, lag.committed, lag.end, lag.lag, seconds, *who])
    if rows:
        show(table(("topic", "partition#", "committed#", "end#", "lag#", "lag s#", "member~", "host"), rows))
    idle = [member for member in group.members if not member.partitions]
    if idle and group.state == "Stable":
        note(f"{plural(len(idle), 'member')} without a partition: more members than partitions.")


def _member_rows(group: GroupDescription) -> list[list[object]]:
    return [
        [
            member.member_id,
            member.client_id,
            member.client_host,
            member.group_instance_id,
            len(member.partitions),
            _by_topic(member.partitions) or None,
        ]
        for member in group.members
    ]


def _broker_side_rows(group: GroupDescription) -> list[list[object]]:
    """`moves` is what the member is about to get (+) and to give up (-)."""
    rows: list[list[object]] = []
    for member in group.members:
        current, target = set(member.partitions), set(member.target)
        gains, loses = _by_topic(sorted(target - current)), _by_topic(sorted(current - target))
        moves = " ".join(text for text in (gains and f"+{gains}", loses and f"-{loses}") if text)
        rows.append(
            [
                member.member_id,
                member.group_instance_id,
                member.client_host,
                member.member_epoch,
                len(member.partitions),
                _by_topic(member.partitions) or None,
                moves or None,
            ]
        )
    return rows


def _by_topic(partitions: Iterable[TopicPartition]) -> str:
    numbers: dict[str, list[int]] = {}
    for tp in partitions:
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return " ".join(f"{topic}:{','.join(map(str, found))}" for topic, found in numbers.items())


def _as_json(group: GroupDescription, lags: _Lags) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "type": group.group_type,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol,
        "assignor_failure": group.assignor_failure or None,
        "generation": group.generation,
        "assignment_epoch": group.assignment_epoch if group.is_broker_side else None,
        "coordinator_id": group.coordinator_id,
        "lag": total_lag(lags),
        "lag_s": greatest_lag_s(lags),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "leads": member.member_id == group.leader_id,
                "partitions": _listed(member.partitions),
                "target": _listed(member.target) if group.is_broker_side else None,
                "member_epoch": member.member_epoch if group.is_broker_side else None,
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": lag.committed,
                "end": lag.end,
                "lag": lag.lag,
                "lag_s": lag.seconds,
                "member_id": lag.member_id,
            }
            for tp, lag in lags.items()
        ],
    }


def _listed(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]


@app.command()
def delete(
    groups: _Groups,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete groups with their committed offsets. The groups must have no members.

    $ ottla groups delete billing
    """

    async def work() -> None:
        async with admin(bootstrap) as client:
            for each in await client.describe_groups(groups):
                if each.state == "Dead":
                    raise Failure(await no_such_group(client, each.group))
            confirm(f"Delete {', '.join(groups)} and all committed offsets?", yes=yes)
            await client.delete_groups(groups)

    run(work())
    if as_json:
        print_json({"deleted": groups})
        return
    for group in groups:
        say(f"Group {group} deleted.")
