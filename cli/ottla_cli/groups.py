"""`ottla groups`: list consumer groups, show their members and lag, delete them. [A]"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from ottla_cli.connecting import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin, run, similar
from ottla_cli.failure import Failure
from ottla_cli.groups_reset import reset_offsets
from ottla_cli.quantities import plural, show_count
from ottla_cli.screen import confirm, note, print_json, say, show, table
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
    Stable = "Stable"
    Dead = "Dead"


_Groups = Annotated[list[str], typer.Argument(metavar="GROUP", help="One or more groups.")]


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
        typer.Option("--state", case_sensitive=False, help="Only groups in this state; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List groups.

    $ ottla groups list
    $ ottla groups list 'billing*' --state Stable --json
    """

    async def work() -> list[dict[str, Any]]:
        async with admin(bootstrap) as client:
            found = await client.list_groups(states=[str(each) for each in state or ()])
        return [
            {
                "group": each.group,
                "state": each.state,
                "type": each.group_type,
                "protocol_type": each.protocol_type,
            }
            for each in found
            if not patterns or any(fnmatchcase(each.group, pattern) for pattern in patterns)
        ]

    rows = run(work())
    if as_json:
        print_json(rows)
    elif rows:
        show(
            table(
                ("group", "state", "type"), ([row[key] for key in ("group", "state", "type")] for row in rows)
            )
        )
    elif patterns or state:
        note("No group matches.")
    else:
        note("There are no groups yet; `ottla consume TOPIC --group NAME` creates one.")


@app.command()
def describe(
    groups: _Groups,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Show members instead of partitions.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show state, members, and the lag of each partition.

    Lag is the end offset of the partition minus the committed offset, or `-`
    if nothing is committed.

    $ ottla groups describe billing
    $ ottla groups describe billing --members
    $ ottla groups describe billing --json | jq '.[].lag'
    """

    async def work() -> list[tuple[GroupDescription, _Lags]]:
        async with admin(bootstrap) as client:
            described = await client.describe_groups(groups)
            for each in described:
                if each.state == "Dead":
                    raise Failure(await no_such_group(client, each.group))
            return [(each, await client.group_lag(each.group)) for each in described]

    found = run(work())
    if as_json:
        print_json([_as_json(group, lags) for group, lags in found])
        return
    for number, (group, lags) in enumerate(found):
        if number:
            say("")
        _show(group, lags, only_members=members)


async def no_such_group(client: Admin, group: str) -> str:
    close = similar(group, [each.group for each in await client.list_groups()])
    if close:
        return f"There is no group {group!r}. Did you mean {' or '.join(repr(name) for name in close)}?"
    return f"There is no group {group!r}. `ottla groups list` lists all groups."


def total_lag(lags: _Lags) -> int:
    return sum(each.lag or 0 for each in lags.values())


def _show(group: GroupDescription, lags: _Lags, *, only_members: bool) -> None:
    facts = [group.state, plural(len(group.members), "member")]
    if group.protocol:
        facts.append(f"assignor {group.protocol}")
    facts += [f"coordinator {group.coordinator_id}", f"lag {show_count(total_lag(lags))}"]
    say(f"{group.group}: {', '.join(facts)}")
    if only_members:
        if group.members:
            show(table(("member", "client", "host", "instance", "partitions#", "reads"), _member_rows(group)))
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
        rows.append([tp.topic, tp.partition, lag.committed, lag.end, lag.lag, *who])
    if rows:
        show(table(("topic", "partition#", "committed#", "end#", "lag#", "member", "host"), rows))
    idle = [member for member in group.members if not member.partitions]
    if idle and group.state == "Stable":
        note(f"{plural(len(idle), 'member')} without a partition: more members than partitions.")


def _member_rows(group: GroupDescription) -> list[list[object]]:
    rows: list[list[object]] = []
    for member in group.members:
        by_topic: dict[str, list[int]] = {}
        for tp in member.partitions:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        reads = " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items())
        rows.append(
            [
                member.member_id,
                member.client_id,
                member.client_host,
                member.group_instance_id,
                len(member.partitions),
                reads or None,
            ]
        )
    return rows


def _as_json(group: GroupDescription, lags: _Lags) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol,
        "generation": group.generation,
        "coordinator_id": group.coordinator_id,
        "lag": total_lag(lags),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "leads": member.member_id == group.leader_id,
                "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in member.partitions],
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
                "member_id": lag.member_id,
            }
            for tp, lag in lags.items()
        ],
    }


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
