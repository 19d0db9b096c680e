"""One look at a ConsumerGroup: its state and lag into the status, and the offset reset that was asked for. [S]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla_core.errors import RequestError
from ottla_operator.brokers import BrokersAway
from ottla_operator.cast import CLUSTER, GROUP, Tools
from ottla_operator.group_plan import (
    Record,
    SeenGroup,
    begin_reset,
    condition_of,
    facts_of,
    must_act,
    reset_condition,
    reset_topics,
    resume_reset,
    row_of,
    settings_condition,
    targets_from,
)
from ottla_operator.specs import GroupSpec, InvalidSpec, Meta, OffsetReset
from ottla_operator.status import kept, not_ready, reason_of, with_conditions

#: Lag is what people watch, so a group is looked at more often than a topic.
SETTLED_S = 10.0
SOON_S = 3.0


class GroupLook:
    def __init__(self, tools: Tools, *, settled_s: float = SETTLED_S) -> None:
        self._tools = tools
        self._settled_s = settled_s

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(GROUP, key)
        if body is None or Meta.of(body).deleting:
            return None
        meta = Meta.of(body)
        delay_s = SOON_S
        try:
            spec = GroupSpec.of(body)
            if self._tools.cast.get(CLUSTER, (meta.namespace, spec.cluster)) is not None:
                return await self._reconcile(meta, spec, body)
            missing = f"There is no Cluster {spec.cluster!r} in namespace {meta.namespace}."
            condition = not_ready("NoCluster", missing)
        except InvalidSpec as refused:
            condition, delay_s = not_ready("InvalidSpec", str(refused)), self._settled_s
        except BrokersAway as away:
            condition = not_ready("BrokersAway", str(away))
        except RequestError as refused:
            condition = not_ready(reason_of(refused.name), refused.message)
        await self._tools.report(meta, body, [condition], kept(body.get("status")))
        return delay_s

    async def _reconcile(self, meta: Meta, spec: GroupSpec, body: Mapping[str, Any]) -> float:
        topics = sorted({*spec.topics, *_topics_of(spec.reset)})
        seen: SeenGroup = await self._ask(meta, spec, lambda brokers: brokers.group(spec.group, topics))
        row = (body.get("status") or {}).get("offsetReset")
        if spec.reset is not None and must_act(spec.reset, row) in ("begin", "resume") and not meta.paused:
            # What the cache holds may be older than our own last write, and this must not be done twice.
            fresh = await self._tools.observer.resource(GROUP, meta.namespace, meta.name)
            if fresh is None or Meta.of(fresh).generation != meta.generation:
                return SOON_S
            body = fresh
            row = (fresh.get("status") or {}).get("offsetReset")
            row = await self._reset(meta, spec, spec.reset, fresh, seen, row)
            seen = await self._ask(meta, spec, lambda brokers: brokers.group(spec.group, topics))
        todo = must_act(spec.reset, row)
        ready = condition_of(seen)
        others = settings_condition(spec, seen), reset_condition(spec.reset, row, todo)
        await self._tools.report(meta, body, [ready, *others], {**facts_of(seen), "offsetReset": row})
        return SOON_S if todo in ("begin", "resume") or not ready.holds else self._settled_s

    async def _reset(
        self,
        meta: Meta,
        spec: GroupSpec,
        reset: OffsetReset,
        body: Mapping[str, Any],
        seen: SeenGroup,
        row: Mapping[str, Any] | None,
    ) -> Mapping[str, Any] | None:
        """One step of the machine in group_plan.py; the new `status.offsetReset`."""
        match must_act(reset, row):
            case "begin":
                record = begin_reset(reset, seen, await self._targets(meta, spec, reset, seen), row)
            case "resume":
                record = resume_reset(row or {}, seen)
            case _:
                return row
        if not record.same:
            row = row_of(reset, record, self._tools.now())
            await self._tell(meta, reset, record)
        if not record.commit:
            return row
        # R1: written down first, against the very version that was read; only then the commit.
        facts = {**facts_of(seen), "offsetReset": row}
        status = with_conditions(meta, body.get("status"), [condition_of(seen)], self._tools.now(), facts)
        if not await self._tools.applier.status(meta, status, version=body["metadata"]["resourceVersion"]):
            return row
        offsets = {move.tp: move.new for move in record.moves}
        await self._ask(meta, spec, lambda brokers: brokers.commit(spec.group, offsets))
        after = await self._ask(meta, spec, lambda brokers: brokers.group(spec.group, list(spec.topics)))
        outcome = resume_reset(row or {}, after)
        if outcome.state == "Done":
            await self._tell(meta, reset, outcome)
            row = row_of(reset, outcome, self._tools.now())
        return row

    async def _targets(
        self, meta: Meta, spec: GroupSpec, reset: OffsetReset, seen: SeenGroup
    ) -> dict[tuple[str, int], int]:
        topics = reset_topics(spec, reset, seen)
        partitions = sorted(tp for tp in seen.ends if tp[0] in topics)
        found: Mapping[tuple[str, int], int] = {}
        if reset.time_ms is not None:
            time_ms = reset.time_ms
            found = await self._ask(meta, spec, lambda brokers: brokers.offsets_at(partitions, time_ms))
        return targets_from(reset, partitions, found, seen)

    async def _tell(self, meta: Meta, reset: OffsetReset, record: Record) -> None:
        bad = record.state in ("Refused", "Failed", "Interrupted")
        message = f"{reset.id}: {record.message}"
        await self._tools.applier.event(meta, f"OffsetReset{record.state}", message, warning=bad)

    async def _ask(self, meta: Meta, spec: GroupSpec, question: Any) -> Any:
        return await self._tools.links.ask(meta.namespace, spec.cluster, question)


def _topics_of(reset: OffsetReset | None) -> list[str]:
    if reset is None:
        return []
    return [*(reset.topics or ()), *(topic for topic, _ in reset.offsets)]
