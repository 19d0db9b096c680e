"""A partition with three copies, and what is in the files of each."""

from __future__ import annotations

from pathlib import Path

from attack.victim import Victim, write
from cluster.steady_writer import read_all
from ottla_core.records.batch import complete_batches, verify

RECORDS = 60
VALUE = bytes(range(256)) * 160
ALL = [0, 1, 2]


class Copy:
    """A follower's files of a topic with one partition."""

    def __init__(self, victim: Victim, topic: str) -> None:
        self.victim, self.topic = victim, topic
        victim.create(topic, 1, 3, min_insync_replicas="2", segment_bytes=str(1 << 20))
        write(victim.cluster.kafka_bootstrap, topic, RECORDS, VALUE)
        self.leader = victim.leaders(topic)[0]
        self.follower = next(number for number in ALL if number != self.leader)
        victim.until(lambda: self.log_bytes(self.follower) == self.log_bytes(self.leader), "replication")

    def folder(self, broker_id: int) -> Path:
        return Path(self.victim.cluster.brokers[broker_id].log_dir) / f"{self.topic}-0"

    def segments(self, broker_id: int) -> list[Path]:
        return sorted(self.folder(broker_id).glob("*.log"))

    def log_bytes(self, broker_id: int) -> list[bytes]:
        """Contents by segment; segments may be cut at other places, so all together."""
        return [b"".join(path.read_bytes() for path in self.segments(broker_id))]

    def restart(self) -> None:
        self.victim.cluster.restart(self.follower)
        self.victim.pids = self.victim.cluster.pids

    @property
    def values(self) -> list[bytes]:
        return [VALUE] * RECORDS

    def is_repaired(self) -> bool:
        return self.is_same(self.follower, self.leader)

    def is_same(self, copy: int, other: int) -> bool:
        """All are in sync, and the files of one broker are whole and hold what the other's do."""
        return (
            self.victim.in_sync(self.topic)[0] == ALL
            and self.log_bytes(copy) == self.log_bytes(other)
            and _is_whole(self.segments(copy))
        )

    def until_repaired(self) -> float:
        return self.victim.until(self.is_repaired, f"repair of {self.topic} on broker {self.follower}", 60)

    def check_led_by_it(self) -> None:
        """Everything is there when the repaired copy leads, too."""
        victim = self.victim
        assert victim.cluster.stop_broker(self.leader) == 0
        try:
            others = [number for number in ALL if number != self.leader]
            bootstrap = ",".join(victim.cluster.brokers[number].kafka for number in others)
            found = read_all(bootstrap, self.topic, 1)
            assert found == self.values
        finally:
            victim.cluster.restart(self.leader)
            victim.pids = victim.cluster.pids
        victim.until(lambda: victim.in_sync(self.topic)[0] == ALL, "all are in sync again", 60)


def _is_whole(segments: list[Path]) -> bool:
    """Every batch has its CRC, offsets follow each other, and nothing is behind the last one."""
    expected = 0
    for path in segments:
        data = path.read_bytes()
        end = 0
        for position, header in complete_batches(data):
            if not verify(data, position, header) or header.base_offset != expected:
                return False
            expected, end = header.next_offset, position + header.size
        if end != len(data):
            return False
    return expected >= RECORDS


def flip(copy: Copy, broker_id: int) -> None:
    """Within the records of the first segment: the header is as it was, the CRC is not."""
    path = copy.segments(broker_id)[0]
    with path.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 0x20]))
