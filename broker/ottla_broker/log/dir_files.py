"""One log directory: its identity, its checkpoints and the partition folders in it. [S]

Owned by `LogDirs`. Knows nothing of what is inside a partition's folder but its `partition.metadata`. An `OSError`
from any method means that the directory has failed; the owner takes it offline.

* D1: the clean-stop marker is removed, for sure, before any log is opened: what follows may not be clean.
* D2: a folder goes by its topic id. One without a readable id, or with another than is asked for, is set aside under
  a `-stray` name: never joined, never deleted unasked (rule 4 of the design).
* D3: checkpoints are keyed by name, as in Kafka, so an extra file has the topic ids of the marks. It is written
  last: marks that a death left behind are then those of another topic id, and not believed.
* D4: a torn directory stays torn over any number of restarts, until the cluster knows it: only then is it noted
  under which boot it was opened.
* D5: a directory that has failed leaves a note of it. At the next start it is torn, whatever it looks like, and what
  is not known to be durable is written again (`renewing.py`): after a failed fsync the page cache shows what no later
  one will write.
* D6: if recovery has to truncate more than a killed process leaves half-written, records may be lost that were
  acknowledged: the directory is marked torn before the truncation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias
from uuid import UUID

from ottla_broker.log.checkpoint import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    BadCheckpoint,
    Offsets,
    decode_offsets,
    encode_offsets,
)
from ottla_broker.log.files import PARTITION_METADATA
from ottla_broker.log.properties import (
    BadProperties,
    DirectoryIdentity,
    decode_meta,
    decode_partition_metadata,
    encode_meta,
    encode_partition_metadata,
)
from ottla_broker.log.recovery import CleanStop
from ottla_core.ids import TopicPartition
from ottla_core.ports.disk import Disk

META_PROPERTIES = "meta.properties"
#: Kafka's name; ours holds the facts of every log besides.
CLEAN_STOP = ".kafka_cleanshutdown"
#: The kernel's boot id at the last start: if it is unchanged, everything written is still in memory or on disk.
BOOT_ID = "boot-id"
#: The topic id of each partition whose marks the checkpoints hold.
CHECKPOINT_IDS = "checkpoint-topic-ids"
#: There if the directory has failed while it was used (D5).
FAILED = "failed"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
#: A copy that is to take the place of the partition's folder in another directory (`dir_moves`).
FUTURE_SUFFIX = "-future"
#: How often the partition was moved between directories. Of two folders of one partition the one with more is right.
MOVE_COUNT = "move-count"
_NAME_BYTES_MAX = 255

#: None: the folder has no readable id.
TopicIds: TypeAlias = dict[TopicPartition, UUID | None]


class ForeignDirectory(Exception):
    """The directory belongs to another cluster or broker, or to a newer release. Nothing in it was touched."""


class Folder(NamedTuple):
    """A partition's folder that was found at start."""

    path: str
    #: None: there is no readable partition.metadata.
    topic_id: UUID | None


class LogDir:
    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        #: None until the directory has joined a cluster.
        self.identity: DirectoryIdentity | None = None
        #: Set when the directory has failed; it is not used any more then.
        self.error: Exception | None = None
        #: False if its contents could not be listed, and so are unknown.
        self.is_known = False
        #: The tail of its logs may be missing (design rule 2): no clean stop, and the machine was restarted since.
        self.is_torn = False
        #: It has failed in an earlier incarnation (D5).
        self.has_failed = False
        self.folders: dict[TopicPartition, Folder] = {}
        #: Partitions that were to be moved here when the broker stopped.
        self.expected: list[TopicPartition] = []
        self.recovery_points: Offsets = {}
        self.log_starts: Offsets = {}
        self.high_watermarks: Offsets = {}
        #: Logs that were closed cleanly and not opened since.
        self.clean: dict[TopicPartition, CleanStop] = {}
        #: D3, as on disk; None while there is no such file.
        self._marks_of: TopicIds | None = None
        #: To be written down as the last boot (D4).
        self._boot_id: bytes | None = None
        self._this_boot = b""
        self._disk = disk

    def open(self, broker_id: int, boot_id: bytes) -> None:
        """Check whose directory it is, and read what it says about its partitions."""
        self._disk.make_dirs(self.path)
        names = self._disk.list(self.path)
        self._identify(names, broker_id)
        self._judge_last_stop(names, boot_id)
        for name in names:
            if name.endswith(DELETE_SUFFIX):
                self._disk.remove_tree(f"{self.path}/{name}")
            elif name.endswith(FUTURE_SUFFIX):
                self._disk.remove_tree(f"{self.path}/{name}")
                if (tp := parse_folder(name.rpartition(".")[0])) is not None:
                    self.expected.append(tp)
            elif (tp := parse_folder(name)) is not None:
                folder = f"{self.path}/{name}"
                self.folders[tp] = Folder(folder, self._read_topic_id(folder))
        self._marks_of = self._read_ids()
        self.recovery_points = self.read_offsets(RECOVERY_POINTS)
        self.log_starts = self.read_offsets(LOG_STARTS)
        self.high_watermarks = self.read_offsets(HIGH_WATERMARKS)
        self.is_known = True

    def _identify(self, names: list[str], broker_id: int) -> None:
        path = f"{self.path}/{META_PROPERTIES}"
        if META_PROPERTIES not in names:
            if any(parse_folder(name) for name in names):
                raise ForeignDirectory(
                    f"{self.path} has partitions but no {META_PROPERTIES}: their cluster is unknown."
                )
            return
        try:
            self.identity = decode_meta(self._disk.read_file(path))
        except BadProperties as error:
            raise ForeignDirectory(f"{path} cannot be used: {error}") from error
        if self.identity.broker_id != broker_id:
            raise ForeignDirectory(
                f"{self.path} belongs to broker {self.identity.broker_id}, but this is broker {broker_id}."
            )

    def _judge_last_stop(self, names: list[str], boot_id: bytes) -> None:
        was_clean = CLEAN_STOP in names
        before = self._disk.read_file(f"{self.path}/{BOOT_ID}") if BOOT_ID in names else None
        if was_clean:
            self.clean = self._read_clean_stop()
            self._disk.remove(f"{self.path}/{CLEAN_STOP}")  # D1
            self._disk.sync_dir(self.path)
        self.has_failed = FAILED in names
        if self.has_failed:
            self.clean, was_clean = {}, False
        is_same_boot = bool(boot_id) and before == boot_id and not self.has_failed
        self.is_torn = self.identity is not None and not was_clean and not is_same_boot
        self._boot_id = boot_id if before != boot_id else None
        self._this_boot = boot_id
        if not self.is_torn:
            self.note_boot()

    def note_boot(self) -> None:
        """D4, and the end of D5."""
        if self._boot_id is not None:
            self._disk.write_file(f"{self.path}/{BOOT_ID}", self._boot_id)
            self._boot_id = None
        if self.has_failed:
            self._disk.remove(f"{self.path}/{FAILED}")
            self.has_failed = False

    def note_damage(self) -> None:
        """D6. Without a note of the boot it is torn at the next start too, until the cluster knows it."""
        if not self.is_torn and self.identity is not None:
            with suppress(FileNotFoundError):
                self._disk.remove(f"{self.path}/{BOOT_ID}")
            self._disk.sync_dir(self.path)
            self.is_torn, self._boot_id = True, self._this_boot

    def note_failure(self) -> None:
        """D5. Not synced: after a power loss the directory is torn anyway, and the page cache empty."""
        if self.identity is not None:
            with suppress(
                OSError
            ):  # Where nothing can be written, nothing can be used at the next start either.
                self._disk.write_file(f"{self.path}/{FAILED}", b"", sync=False)

    def join(self, identity: DirectoryIdentity) -> None:
        """Make a new directory part of a cluster, or check that it is."""
        if self.identity is None:
            self._disk.write_file(f"{self.path}/{META_PROPERTIES}", encode_meta(identity))
            self._sync_ancestors()
            self.identity = identity
        elif self.identity.cluster_id != identity.cluster_id:
            raise ForeignDirectory(
                f"{self.path} belongs to cluster {self.identity.cluster_id}, not to {identity.cluster_id}."
            )

    def _sync_ancestors(self) -> None:
        """A new directory may have been made with its parents; a power loss must not take one of them."""
        above = self.path
        while above not in ("", "/"):
            above = above.rpartition("/")[0] or ("/" if above.startswith("/") else "")
            try:
                self._disk.sync_dir(above or ".")
            except PermissionError:
                return  # Not ours to list, so not ours to have made.

    def read_offsets(self, name: str) -> Offsets:
        try:
            found = decode_offsets(self._disk.read_file(f"{self.path}/{name}"))
        except (FileNotFoundError, BadCheckpoint):
            # Without recovery points everything is scanned; the other marks are found again from the logs.
            return {}
        return {tp: offset for tp, offset in found.items() if self._is_of(tp)}

    def _is_of(self, tp: TopicPartition) -> bool:
        """D3: whether the marks of this name belong to the folder on this disk."""
        folder, ids = self.folders.get(tp), self._marks_of
        return folder is not None and (ids is None or ids.get(tp) == folder.topic_id)

    def _read_ids(self) -> TopicIds | None:
        try:
            ids = json.loads(self._disk.read_file(f"{self.path}/{CHECKPOINT_IDS}"))["ids"]
            return {
                _folder_or_raise(name): None if text is None else UUID(text) for name, text in ids.items()
            }
        except FileNotFoundError:
            return None  # Never written: then neither was anything of another topic.
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}  # Then no mark is believed.

    def _read_clean_stop(self) -> dict[TopicPartition, CleanStop]:
        try:
            logs = json.loads(self._disk.read_file(f"{self.path}/{CLEAN_STOP}"))["logs"]
            return {_folder_or_raise(name): CleanStop(*map(int, facts)) for name, facts in logs.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}  # Then all logs are scanned: slower, never wrong.

    def _read_topic_id(self, folder: str) -> UUID | None:
        try:
            return decode_partition_metadata(self._disk.read_file(f"{folder}/{PARTITION_METADATA}"))
        except (FileNotFoundError, NotADirectoryError, BadProperties):
            return None

    # ------------------------------------------------------------------ folders

    def make_folder(self, tp: TopicPartition, topic_id: UUID) -> str:
        """A new, empty folder. Not synced: the log's first flush does it, and before that nothing is promised."""
        path = self._make(tp, topic_id, str(tp))
        self.folders[tp] = Folder(path, topic_id)
        return path

    def make_future(self, tp: TopicPartition, topic_id: UUID, tag: UUID) -> str:
        """A folder for a copy, under a name that no start takes for the partition's."""
        return self._make(tp, topic_id, _tagged(tp, tag, FUTURE_SUFFIX))

    def _make(self, tp: TopicPartition, topic_id: UUID, name: str) -> str:
        if self._marks_of is not None and self._marks_of.get(tp) == topic_id:
            # The partition was moved away and comes back: the checkpoints on disk may be those of the former log.
            self.write_ids({known: its_id for known, its_id in self._marks_of.items() if known != tp})
        path = f"{self.path}/{name}"
        self._disk.make_dirs(path)
        self._disk.write_file(f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id), sync=False)
        return path

    def arrive(self, tp: TopicPartition, future: str, folder: Folder) -> None:
        """The copy gets the partition's name. To be synced."""
        self._disk.rename(future, folder.path)
        self.folders[tp] = folder

    def leave(self, tp: TopicPartition, path: str, tag: UUID) -> str:
        """The folder of a partition that has arrived elsewhere: rename it for later removal; return its new path."""
        target = f"{self.path}/{_tagged(tp, tag, DELETE_SUFFIX)}"
        self._disk.rename(path, target)
        return target

    def move_count(self, path: str) -> int:
        try:
            return int(self._disk.read_file(f"{path}/{MOVE_COUNT}"))
        except (FileNotFoundError, ValueError):
            return 0

    def set_aside(self, tp: TopicPartition, tag: UUID) -> None:
        """D2. An empty folder loses nothing: the broker died while it created it."""
        folder = self.folders.pop(tp)
        self.forget(tp)
        if not self._disk.list(folder.path):
            self._disk.remove_tree(folder.path)
            return
        self._disk.rename(folder.path, f"{self.path}/{_tagged(tp, tag, STRAY_SUFFIX)}")
        self._disk.sync_dir(self.path)

    def doom(self, tp: TopicPartition, tag: UUID) -> str:
        """Rename a folder for later removal; return its new path."""
        folder = self.folders.pop(tp)
        self.forget(tp)
        target = f"{self.path}/{_tagged(tp, tag, DELETE_SUFFIX)}"
        self._disk.rename(folder.path, target)
        return target

    def forget(self, tp: TopicPartition) -> None:
        """What the checkpoints say about a partition dies with it: another may get its name."""
        for marks in (self.recovery_points, self.log_starts, self.high_watermarks):
            marks.pop(tp, None)
        self.clean.pop(tp, None)

    # ------------------------------------------------------------------ checkpoints

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._disk.write_file(f"{self.path}/{name}", encode_offsets(offsets))

    def topic_ids(self) -> TopicIds:
        return {tp: folder.topic_id for tp, folder in self.folders.items()}

    def write_ids(self, ids: TopicIds) -> None:
        """D3: after all marks that were noted at the same moment as these."""
        if ids != self._marks_of:
            named = {str(tp): None if topic_id is None else str(topic_id) for tp, topic_id in ids.items()}
            content = json.dumps({"version": 0, "ids": named}, separators=(",", ":"))
            self._disk.write_file(f"{self.path}/{CHECKPOINT_IDS}", content.encode())
            self._marks_of = ids

    def write_clean_stop(self) -> None:
        """The last step: from now on, the next start trusts `clean`."""
        logs = {str(tp): list(facts) for tp, facts in self.clean.items()}
        content = json.dumps({"version": 0, "brokerEpoch": -1, "logs": logs}, separators=(",", ":"))
        self._disk.write_file(f"{self.path}/{CLEAN_STOP}", content.encode())


def parse_folder(name: str) -> TopicPartition | None:
    """The partition whose folder this is; None for anything else."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isascii() or not partition.isdecimal():
        return None
    return TopicPartition(topic, int(partition))


def _folder_or_raise(name: str) -> TopicPartition:
    found = parse_folder(name)
    if found is None:
        raise ValueError(name)
    return found


def _tagged(tp: TopicPartition, tag: UUID, suffix: str) -> str:
    """`<topic>-<partition>.<uuid><suffix>`, the topic shortened if the name would be too long for a file system."""
    end = f"-{tp.partition}.{tag.hex}{suffix}"
    return tp.topic[: _NAME_BYTES_MAX - len(end)] + end
