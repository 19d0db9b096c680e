"""Metrics of log directories: free and total bytes, and the bytes of topics and partitions in them. [S]

Sizes come from the disk, on a thread, when Prometheus asks; the number of series is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ottla_broker.exposed import OTHER, Family, Sample
from ottla_broker.service.log_dirs import DescribedDir, LogDirService


class DiskMetrics:
    def __init__(self, log_dirs: LogDirService, *, topics_max: int, partitions_max: int) -> None:
        self._log_dirs = log_dirs
        self._topics_max = topics_max
        self._partitions_max = partitions_max
        self._described: list[DescribedDir] = []

    async def refresh(self) -> None:
        self._described = await self._log_dirs.describe(None)

    def families(self) -> Iterator[Family]:
        online = [each for each in self._described if each.error is None]
        known = [each for each in online if each.total_bytes >= 0]
        yield _by_dir("ottla_log_dir_total_bytes", "Size of the volume of a log directory.",
                      [(each.path, each.total_bytes) for each in known])  # fmt: skip
        yield _by_dir("ottla_log_dir_free_bytes", "Free bytes on the volume of a log directory.",
                      [(each.path, each.usable_bytes) for each in known])  # fmt: skip
        yield _by_dir("ottla_log_dir_online", "1 if a log directory is usable.",
                      [(each.path, int(each.error is None)) for each in self._described])  # fmt: skip
        yield _by_dir("ottla_log_dir_log_bytes", "Bytes of all logs in a log directory.",
                      [(each.path, sum(r.size_bytes for r in each.replicas)) for each in online])  # fmt: skip
        yield Family(
            "ottla_topic_log_bytes", "gauge",
            "Bytes of the replicas of a topic in a log directory of this broker.",
            (
                Sample("", (("dir", each.path), ("topic", topic)), size)
                for each in online
                for topic, size in self._by_topic(each)
            ),
        )  # fmt: skip
        replicas = [replica for each in online for replica in each.replicas]
        yield Family(
            "kafka_log_log_size", "gauge", "Bytes of a replica on this broker.",
            (
                Sample("", (("topic", r.tp.topic), ("partition", str(r.tp.partition))), r.size_bytes)
                for r in sorted(replicas, key=lambda r: -r.size_bytes)[: self._partitions_max]
            ),
        )  # fmt: skip

    def _by_topic(self, described: DescribedDir) -> Iterator[tuple[str, int]]:
        """The largest topics, and the sum of the others."""
        sizes: Counter[str] = Counter()
        for replica in described.replicas:
            sizes[replica.tp.topic] += replica.size_bytes
        largest = sizes.most_common(self._topics_max)
        yield from largest
        rest = sum(sizes.values()) - sum(size for _, size in largest)
        if len(sizes) > len(largest):
            yield OTHER, rest


def _by_dir(name: str, doc: str, values: list[tuple[str, int]]) -> Family:
    return Family(name, "gauge", doc, [Sample("", (("dir", path),), value) for path, value in values])
