"""Executes plans: splits stages into transactions, and fences each by the controller's epoch. [S]

Called by `service.py`. It must never decide what to write, and never repeat a write: when a reply is lost
(`StoreError`) or something was refused, the service reads the current state and plans again.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ottla_broker.controller.planner import Plan, Stage
from ottla_broker.metadata.sections.controller import CONTROLLER
from ottla_core.ports.store import (
    BRANCHES_MAX,
    CreateRevisionIs,
    MetadataStore,
    Outcome,
    StoreError,
)

#: Concurrent transactions: etcd takes several into one fsync, and more would only queue there.
IN_FLIGHT_MAX = 4


class Result(NamedTuple):
    #: Everything was written. False: a guard or a compare failed, and no later stage was started.
    done: bool
    #: The last revision that was written, 0 if none.
    revision: int


async def carry_out(store: MetadataStore, epoch: int, plan: Plan) -> Result:
    """Write a plan as the controller of `epoch`. StoreError: some of it may have happened, or not."""
    revision = 0
    for stage in plan.stages:
        outcomes = await _write_stage(store, epoch, stage)
        revision = max([revision, *(o.revision for o in outcomes if any(o.taken))])
        if not all(o.all_taken for o in outcomes):
            return Result(False, revision)
    return Result(True, revision)


async def _write_stage(store: MetadataStore, epoch: int, stage: Stage) -> list[Outcome]:
    guard = (CreateRevisionIs(CONTROLLER.key, epoch), *stage.guard)
    chunks = [stage.branches[i : i + BRANCHES_MAX] for i in range(0, len(stage.branches), BRANCHES_MAX)]
    if len(chunks) == 1:
        return [await store.transact(guard, chunks[0])]
    waiting, outcomes, errors = iter(chunks), list[Outcome](), list[StoreError]()

    async def work() -> None:
        for chunk in waiting:
            if errors or not all(o.guard_held for o in outcomes):
                return
            try:
                outcomes.append(await store.transact(guard, chunk))
            except StoreError as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(IN_FLIGHT_MAX, len(chunks))):
            group.create_task(work())
    if errors:
        raise errors[0]
    return outcomes
