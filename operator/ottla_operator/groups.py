"""Reconciles one ConsumerGroup: settings, the requested offset reset, state, lag; and its deletion. [S]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla_core.errors import InvalidConfig, RequestError
from ottla_operator import group_pins as pins
from ottla_operator import group_settings as settings
from ottla_operator.brokers import Brokers, BrokersAway
from ottla_operator.cast import GROUP, Tools
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
    targets_from,
)
from ottla_operator.group_scaler import INTERVAL_S, GroupScaler, scaled_by_owner
from ottla_operator.metrics import DRIFT, GROUP_LAG, GROUP_LAG_SECONDS, GROUP_MEMBERS, forget_group
from ottla_operator.plan import Claim
from ottla_operator.specs import GroupSpec, InvalidSpec, Meta, OffsetReset
from ottla_operator.status import kept, not_ready, reason_of, with_conditions

#: Lag changes constantly, so a group is reconciled more often than a topic.
SETTLED_S = 10.0
SOON_S = 3.0


class GroupLook:
    def __init__(self, tools: Tools, *, settled_s: float = SETTLED_S) -> None:
        self._tools = tools
        self._settled_s = settled_s
        self._scaler = GroupScaler(tools)

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(GROUP, key)
        if body is None or Meta.of(body).deleting:
            return None
        meta = Meta.of(body)
        delay_s = SOON_S
        try:
            spec = GroupSpec.of(body)
            refusal = self._tools.cast.refusal(meta, spec.cluster)
            if refusal is None:
                return await self._reconcile(meta, spec, body)
            condition = refusal
        except InvalidSpec as refused:
            condition, delay_s = not_ready("InvalidSpec", str(refused)), self._settled_s
        except BrokersAway as away:
            condition = not_ready("BrokersAway", str(away))
        except RequestError as refused:
            condition = not_ready(reason_of(refused.name), refused.message)
        forget_group(key)
        await self._tools.report(meta, body, [condition], kept(body.get("status")))
        return delay_s

    async def _reconcile(self, meta: Meta, spec: GroupSpec, body: Mapping[str, Any]) -> float:
        topics = _topics_of(spec)
        seen: SeenGroup = await self._ask(meta, spec, lambda brokers: brokers.group(spec.group, topics))
        owner = self._older(meta, spec)
        refusal = None
        if owner is None and not meta.paused:
            try:
                seen = await self._apply_settings(meta, spec, body, seen)
            except InvalidConfig as refused:
                refusal = refused.message
        row = (body.get("status") or {}).get("offsetReset")
        if spec.reset is not None and must_act(spec.reset, row) in ("begin", "resume") and not meta.paused:
            # The cached resource may be older than the operator's last write, and a reset must not be done twice.
            fresh = await self._tools.observer.resource(GROUP, meta.namespace, meta.name)
            if fresh is None or Meta.of(fresh).generation != meta.generation:
                return SOON_S
            body = fresh
            row = (fresh.get("status") or {}).get("offsetReset")
            row = await self._reset(meta, spec, spec.reset, fresh, seen, row)
            seen = await self._ask(meta, spec, lambda brokers: brokers.group(spec.group, topics))
        todo = must_act(spec.reset, row)
        scaling, scale = None, None
        if owner is not None and spec.scale is not None:
            scaling = scaled_by_owner(seen.group, owner)
        elif not meta.paused:
            scaling, scale = await self._scaler.step(meta, spec, seen, body.get("status"))
        applied = settings.condition_of(spec, seen, owner, refusal)
        # A refused or foreign setting is the reason why no pin is honoured; SettingsApplied says so.
        pinned = pins.condition_of(spec, seen) if owner is None and refusal is None else None
        reset = reset_condition(spec.reset, row, todo)
        ready = condition_of(seen, reset)
        facts = {
            **facts_of(seen, spec.topics),
            "offsetReset": row,
            "settings": self._set(meta, spec, body, seen, owner),
        }
        facts["scale"] = scale
        await self._tools.report(meta, body, [ready, applied, pinned, scaling, reset], facts)
        self._count(meta, facts)
        unsettled = todo in ("begin", "resume") or ready.reason == "Rebalancing"
        unsettled = unsettled or (applied is not None and applied.holds is None)
        unsettled = unsettled or (pinned is not None and pinned.reason == "Moving")
        if unsettled:
            return SOON_S
        return self._settled_s if spec.scale is None else min(self._settled_s, INTERVAL_S)

    def _count(self, meta: Meta, facts: Mapping[str, Any]) -> None:
        if self._tools.cast.get(GROUP, meta.key) is not None:  # it may have been deleted meanwhile
            GROUP_LAG.labels(*meta.key).set(facts["totalLag"])
            if facts["lagSeconds"] is not None:
                GROUP_LAG_SECONDS.labels(*meta.key).set(facts["lagSeconds"])
            GROUP_MEMBERS.labels(*meta.key).set(facts["memberCount"])

    # ------------------------------------------------------------------ settings

    def _older(self, meta: Meta, spec: GroupSpec) -> Claim | None:
        """An older resource for the same group."""
        owner = self._tools.cast.owner(meta.namespace, spec)
        return owner if owner is not None and owner.uid != meta.uid else None

    async def _apply_settings(
        self, meta: Meta, spec: GroupSpec, body: Mapping[str, Any], seen: SeenGroup
    ) -> SeenGroup:
        """Apply the declared settings; returns the group as it is then."""
        status = body.get("status")
        made = settings.changes(spec, seen.settings, status)
        if not made:
            return seen
        drift = settings.is_drift(meta, spec, status)
        await self._ask(meta, spec, lambda brokers: brokers.set_group(spec.group, made))
        if drift:
            DRIFT.labels(GROUP).inc()
        await self._tools.applier.event(meta, "DriftRepaired" if drift else "Applied", settings.words(made))
        after: SeenGroup = await self._ask(
            meta, spec, lambda brokers: brokers.group(spec.group, _topics_of(spec))
        )
        return after

    def _set(
        self, meta: Meta, spec: GroupSpec, body: Mapping[str, Any], seen: SeenGroup, owner: Claim | None
    ) -> dict[str, str] | None:
        """`status.settings`: the settings on the brokers that this resource owns."""
        if owner is not None:
            return None
        mine = settings.declared(spec) or settings.remembered(body.get("status"))
        return {name: seen.settings[name] for name in mine if name in seen.settings} or None

    async def remove(self, body: Mapping[str, Any]) -> None:
        """Unset the settings of a deleted resource. Raises errors that are worth a retry."""
        meta = Meta.of(body)
        self._scaler.forget(meta)
        try:
            spec = GroupSpec.of(body)
        except InvalidSpec:
            return
        if self._older(meta, spec) is not None or meta.paused:
            return  # the settings belong to another resource
        if not settings.declared(spec) and not settings.remembered(body.get("status")):
            return
        if not await self._tools.cluster_stays(meta, spec.cluster):
            return

        async def finish(brokers: Brokers) -> None:
            made = settings.removal(await brokers.group_settings(spec.group))
            if made:
                await brokers.set_group(spec.group, made)

        await self._ask(meta, spec, finish)

    # ------------------------------------------------------------------ the reset

    async def _reset(
        self,
        meta: Meta,
        spec: GroupSpec,
        reset: OffsetReset,
        body: Mapping[str, Any],
        seen: SeenGroup,
        row: Mapping[str, Any] | None,
    ) -> Mapping[str, Any] | None:
        """One step of the state machine in group_plan.py; returns the new `status.offsetReset`."""
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
        # R1: write the status first, and only if the resource still has the version that was read; then commit.
        status = body.get("status")
        facts = {
            **facts_of(seen, spec.topics),
            "offsetReset": row,
            "settings": settings.remembered(status) or None,
        }
        status = with_conditions(meta, status, [condition_of(seen)], self._tools.now(), facts)
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
        return await self._tools.links.ask(*spec.cluster.place(meta.namespace), question)


def _topics_of(spec: GroupSpec) -> list[str]:
    """Topics to look at besides those that the group reads."""
    reset = spec.reset
    named = () if reset is None else (*(reset.topics or ()), *(topic for topic, _ in reset.offsets))
    return sorted({*spec.topics, *named, *(topic for topic, _ in spec.pins)})
