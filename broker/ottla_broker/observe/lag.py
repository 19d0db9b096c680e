"""Consumer lag in records and in seconds, under the names of kafka_exporter. [S]

When Prometheus asks a broker, it asks the leaders for the groups that it coordinates (`service/group_lag.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ottla_broker.exposed import Family, Sample
from ottla_broker.service.group_lag import GroupLags, Lag
from ottla_broker.service.groups import GroupService
from ottla_broker.steps import Slice
from ottla_core.ports.clock import Clock

#: A lag costs about a microsecond in each family.
_LAGS_PER_STEP = 256


class LagMetrics:
    def __init__(self, groups: GroupService, lags: GroupLags, clock: Clock, *, series_max: int) -> None:
        self._groups = groups
        self._leaders = lags
        self._clock = clock
        self._max = series_max
        self._lags: list[Lag] = []
        self._members: dict[str, int] = {}
        self._omitted = 0

    # ------------------------------------------------------------------ collecting

    async def refresh(self) -> None:
        groups = list(self._groups.committed())
        wanted = [(each.group, tp, offset) for each in groups for tp, offset in each.offsets.items()]
        shown = wanted[: self._max]
        behind = await self._leaders.ask_leaders({(tp, offset) for _, tp, offset in shown})
        self._lags = [Lag(group, tp, offset, behind.get((tp, offset))) for group, tp, offset in shown]
        self._members = {each.group: each.members for each in groups[: self._max]}
        self._omitted = len(wanted) - len(shown)

    # ------------------------------------------------------------------ showing

    def families(self) -> Iterator[Family | None]:
        now_ms = self._clock.wall_ms()
        lags = self._lags
        yield _per_partition(
            "kafka_consumergroup_current_offset", "Committed offset of a group.",
            ((lag, lag.committed) for lag in lags),
        )  # fmt: skip
        yield _per_partition(
            "kafka_consumergroup_lag", "Records after the committed offset of a group.",
            ((lag, lag.records) for lag in lags),
        )  # fmt: skip
        yield _per_partition(
            "ottla_consumergroup_lag_seconds",
            "Age of the oldest record after the committed offset of a group; 0 if there is none.",
            ((lag, lag.seconds(now_ms)) for lag in lags),
        )
        sums: Counter[tuple[str, str]] = Counter()
        offsets: Counter[tuple[str, str]] = Counter()
        done = Slice(_LAGS_PER_STEP)
        for lag in lags:
            if done.over():
                yield None
            sums[lag.group, lag.tp.topic] += lag.records or 0
            offsets[lag.group, lag.tp.topic] += lag.committed
        yield _per_topic("kafka_consumergroup_lag_sum", "Lag of a group in all partitions of a topic.", sums)
        yield _per_topic(
            "kafka_consumergroup_current_offset_sum",
            "Sum of the committed offsets of a group in a topic.",
            offsets,
        )
        yield Family(
            "kafka_consumergroup_members", "gauge", "Members of a group.",
            (Sample("", (("consumergroup", group),), count) for group, count in self._members.items()),
        )  # fmt: skip
        yield Family(
            "ottla_metrics_lags_omitted", "gauge",
            "Committed offsets on this broker without lag metrics, beyond metrics.lags.max.",
            [Sample("", (), self._omitted)],
        )  # fmt: skip


def _per_partition(name: str, doc: str, values: Iterable[tuple[Lag, float | None]]) -> Family:
    return Family(
        name,
        "gauge",
        doc,
        (
            Sample(
                "",
                (("consumergroup", lag.group), ("topic", lag.tp.topic), ("partition", str(lag.tp.partition))),
                value,
            )
            for lag, value in values
            if value is not None
        ),
    )


def _per_topic(name: str, doc: str, values: Counter[tuple[str, str]]) -> Family:
    return Family(
        name,
        "gauge",
        doc,
        (
            Sample("", (("consumergroup", group), ("topic", topic)), value)
            for (group, topic), value in values.items()
        ),
    )
