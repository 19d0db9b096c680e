"""An API server and brokers in memory, for the looks: enough of both to be contradicted by."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ottla_client.rebalance import Broker, Placed
from ottla_client.rebalance_pace import Layout
from ottla_core.errors import InvalidConfig, InvalidReplicationFactor, UnknownMemberId
from ottla_operator import rebalance_plan, user_plan
from ottla_operator.apply import Applier
from ottla_operator.brokers import Beat, BrokersAway, SeenCluster
from ottla_operator.cast import Cast, Tools
from ottla_operator.group_plan import Partition, SeenGroup
from ottla_operator.kube import PLURALS, KubeError, path_of
from ottla_operator.observe import Observer
from ottla_operator.plan import (
    Action,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    PlaceTopic,
    ResizeTopic,
    SeenPartition,
    SeenTopic,
)
from ottla_operator.rolling import Hosted
from ottla_operator.scaling import Step
from ottla_operator.user_plan import (
    ITERATIONS,
    MECHANISM,
    AddAcls,
    DropPasswords,
    RemoveAcls,
    SeenUser,
    SetPassword,
    SetQuotas,
)


class MemoryKube:
    """Objects by path. Apply merges the top level, replaces below, and only counts a version if something changed."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[str, str]] = []
        #: Reasons of those that are Warnings.
        self.warnings: list[str] = []
        #: Path -> the errors that the next patches of it are refused with.
        self.refusals: dict[str, list[KubeError]] = {}
        self.patches: list[tuple[str, str]] = []
        self.deleted: list[str] = []
        #: Plural names of kinds that may not be listed.
        self.forbidden: set[str] = set()
        self._version = 10

    async def close(self) -> None:
        pass

    async def get(self, path: str) -> dict[str, Any] | None:
        return copy.deepcopy(self.objects.get(path))

    async def list(
        self, path: str, *, label_selector: str | None = None, metadata_only: bool = False
    ) -> list[dict[str, Any]]:
        if path.rsplit("/", 1)[1] in self.forbidden:
            raise KubeError(403, f"{path} is forbidden.")
        wanted = dict(pair.split("=") for pair in (label_selector or "").split(",") if pair)
        found = [each for at, each in self.objects.items() if at.startswith(f"{path}/")]
        return [each for each in found if wanted.items() <= (each["metadata"].get("labels") or {}).items()]

    async def request(
        self, verb: str, path: str, body: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        if verb == "post":
            assert body is not None
            if body["kind"] == "Event":
                self.events.append((body["reason"], body["message"]))
                if body["type"] == "Warning":
                    self.warnings.append(body["reason"])
                return dict(body)
            if (there := f"{path}/{body['metadata']['name']}") in self.objects:
                raise KubeError(409, "already exists")
            self.objects[there] = copy.deepcopy(dict(body))
            return dict(body)
        if verb == "delete":
            self.deleted.append(path.rsplit("/", 1)[1])
            self.objects.pop(path, None)
            return {}
        assert verb == "patch" and body is not None
        self.patches.append((path, options.get("content_type", "")))
        if self.refusals.get(path):
            raise self.refusals[path].pop(0)
        if options.get("content_type") == "application/merge-patch+json":
            self.objects[path] = _merged(self.objects[path], body)
            return copy.deepcopy(self.objects[path])
        if path.endswith("/status"):
            return self._status(path.removesuffix("/status"), body)
        before = self.objects.get(path)
        after = copy.deepcopy(dict(body))
        after["metadata"] = {**(before or {}).get("metadata", {}), **after["metadata"]}
        if before is not None:
            after = {**before, **after}
        if after != before:
            after["metadata"]["resourceVersion"] = self._next()
        self.objects[path] = after
        return copy.deepcopy(after)

    def _status(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        there = self.objects.get(path)
        if there is None:
            raise KubeError(404, "not found")
        version = body["metadata"].get("resourceVersion")
        if version is not None and version != there["metadata"]["resourceVersion"]:
            raise KubeError(409, "conflict")
        there["status"] = copy.deepcopy(body["status"])
        there["metadata"]["resourceVersion"] = self._next()
        return there

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    def put(self, body: dict[str, Any]) -> None:
        meta = body["metadata"]
        path = path_of(body["apiVersion"], body["kind"], meta["namespace"], meta["name"])
        self.objects[path] = copy.deepcopy(body)

    def find(self, kind: str, name: str) -> dict[str, Any]:
        plural = next(plural for (_, each), plural in PLURALS.items() if each == kind)
        return next(o for path, o in self.objects.items() if path.endswith(f"/{plural}/{name}"))


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping) or not isinstance(before, Mapping):
        return copy.deepcopy(patch)
    made = {key: value for key, value in before.items() if key not in patch}
    made |= {key: _merged(before.get(key), value) for key, value in patch.items() if value is not None}
    return made


class MemoryBrokers:
    """Topics and one group, on three brokers."""

    def __init__(self) -> None:
        self.topics: dict[str, SeenTopic] = {}
        self.seen_group = SeenGroup("billing", "Empty")
        self.done: list[Action] = []
        self.commits: list[dict[Partition, int]] = []
        self.settings_made: list[dict[str, str | None]] = []
        self.min_isr = 2
        self.directories = {number: (f"dir-{number}",) for number in range(3)}
        self.cordoned: set[int] = set()
        self.cancelled: list[tuple[str, int]] = []
        self.users: dict[str, SeenUser] = {}
        self.passwords: dict[str, str] = {}
        #: Brokers in the cluster's record; those in `directories` are online.
        self.members = set(self.directories)

    async def topic(self, name: str) -> SeenTopic | None:
        return self.topics.get(name)

    async def do(self, action: Action) -> None:
        self.done.append(action)
        match action:
            case CreateTopic(name, partitions, replicas, config, assignment):
                if (replicas or 1) > 3:
                    raise InvalidReplicationFactor(f"{replicas} replicas, and 3 brokers.")
                made = self._partitions(partitions, replicas or 3)
                self.topics[name] = SeenTopic(name, f"id-{len(self.done)}", False, made, dict(config))
                self._place(name, assignment)
            case GrowTopic(name, total, assignment):
                there = self.topics[name]
                self.topics[name] = replace(there, partitions=self._partitions(total, there.replicas))
                self._place(name, assignment)
            case AlterTopic(name, changes):
                there = self.topics[name]
                merged = {**there.overrides, **changes}
                kept = {key: value for key, value in merged.items() if value is not None}
                self.topics[name] = replace(there, overrides=kept)
            case PlaceTopic(name, targets):
                self._place(name, targets)
            case ResizeTopic(name, count):
                if count > 3:
                    raise InvalidReplicationFactor(f"{count} replicas, and 3 brokers.")
                there = self.topics[name]
                self._place(name, {each.partition: tuple(range(count)) for each in there.partitions})
            case DeleteTopic(name):
                del self.topics[name]

    def _place(self, name: str, targets: Mapping[int, tuple[int, ...]]) -> None:
        there = self.topics[name]
        moved = tuple(
            replace(each, replicas=(to := targets.get(each.partition, each.replicas)), isr=to)
            for each in there.partitions
        )
        self.topics[name] = replace(there, partitions=moved)

    async def layout(self) -> Layout:
        partitions = [
            Placed(topic.name, each.partition, each.replicas)
            for topic in self.topics.values()
            for each in topic.partitions
        ]
        brokers = tuple(Broker(each, cordoned=each in self.cordoned) for each in sorted(self.members))
        return Layout(brokers, frozenset(self.directories), tuple(partitions))

    async def scale(self, step: Step) -> None:
        self.cordoned |= set(step.cordon)
        self.cordoned -= {*step.uncordon, *step.unregister}
        self.members -= set(step.unregister)
        for move in step.moves:
            self._place(move.topic, {move.partition: move.after})

    async def rebalance(self, step: rebalance_plan.Step) -> None:
        self.cordoned |= set(step.cordon)
        self.cancelled += step.cancel
        for move in step.moves:
            self._place(move.topic, {move.partition: move.after})

    @staticmethod
    def _partitions(count: int, replicas: int) -> tuple[SeenPartition, ...]:
        hosts = tuple(range(replicas))
        return tuple(SeenPartition(n, hosts[n % replicas], 0, hosts, hosts) for n in range(count))

    async def group(self, group: str, topics: Sequence[str]) -> SeenGroup:
        return self.seen_group

    async def offsets_at(self, partitions: Sequence[Partition], time_ms: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 2)

    async def commit(self, group: str, offsets: Mapping[Partition, int]) -> None:
        if self.seen_group.members:
            raise UnknownMemberId("The group has members.")
        self.commits.append(dict(offsets))
        self.seen_group = replace(self.seen_group, committed={**self.seen_group.committed, **offsets})

    async def group_settings(self, group: str) -> dict[str, str]:
        return dict(self.seen_group.settings)

    async def set_group(self, group: str, changes: Mapping[str, str | None]) -> None:
        if changes.get("consumer.session.timeout.ms") == "1":
            raise InvalidConfig("The brokers take 6000 to 1800000.")
        self.settings_made.append(dict(changes))
        merged = {**self.seen_group.settings, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        self.seen_group = replace(self.seen_group, settings=kept)

    async def user(self, user: str) -> SeenUser:
        return self.users.get(user, SeenUser())

    async def change_user(self, action: user_plan.Action) -> None:
        there = self.users.get(action.user, SeenUser())
        match action:
            case SetPassword(user, password):
                self.passwords[user] = password
                made = replace(there, mechanisms={**there.mechanisms, MECHANISM: ITERATIONS})
            case DropPasswords(_, mechanisms):
                left = {name: each for name, each in there.mechanisms.items() if name not in mechanisms}
                made = replace(there, mechanisms=left)
            case AddAcls(_, rules):
                made = replace(there, acls=there.acls | set(rules))
            case RemoveAcls(_, rules):
                made = replace(there, acls=there.acls - set(rules))
            case SetQuotas(_, values, remove):
                left = {name: each for name, each in there.quotas.items() if name not in remove}
                made = replace(there, quotas={**left, **values})
        self.users[action.user] = made

    async def cluster(self) -> SeenCluster:
        return SeenCluster("cluster-id", 0, tuple(self.directories), dict(self.directories))

    async def beat(self) -> Beat:
        topics = {topic.name: hash(topic.partitions) for topic in self.topics.values()}
        return Beat(tuple(self.directories), 0, topics, len(topics))

    async def hosted(self) -> list[Hosted]:
        return [
            Hosted(f"{topic.name}-{each.partition}", each.replicas, each.isr, self.min_isr)
            for topic in self.topics.values()
            for each in topic.partitions
        ]


class MemoryLinks:
    def __init__(self, brokers: MemoryBrokers) -> None:
        self.brokers: MemoryBrokers | None = brokers
        self.forgotten: list[tuple[str, str]] = []

    async def ask(self, namespace: str, cluster: str, question: Callable[[Any], Awaitable[Any]]) -> Any:
        if self.brokers is None:
            raise BrokersAway("The brokers of main do not answer.")
        return await question(self.brokers)

    async def forget(self, key: tuple[str, str]) -> None:
        self.forgotten.append(key)

    async def close(self) -> None:
        self.brokers = None


class HandClock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class World:
    """All of it together; `put` is `kubectl apply` and the watch at once."""

    def __init__(self) -> None:
        self.kube = MemoryKube()
        self.brokers = MemoryBrokers()
        self.links = MemoryLinks(self.brokers)
        self.clock = HandClock()
        self.cast = Cast()
        kube: Any = self.kube
        links: Any = self.links
        self.tools = Tools(self.cast, Observer(kube), Applier(kube, self.clock), links, self.clock)

    def put(self, body: dict[str, Any]) -> tuple[str, str]:
        self.kube.put(body)
        self.sync(body["kind"], body["metadata"]["name"])
        return body["metadata"]["namespace"], body["metadata"]["name"]

    def sync(self, kind: str, name: str) -> dict[str, Any]:
        """The watch catches up."""
        found = self.kube.find(kind, name)
        self.cast.put(kind, copy.deepcopy(found))
        return found

    def status(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.sync(kind, name).get("status") or {}
        return found

    def condition(self, kind: str, name: str, type_: str = "Ready") -> tuple[str, str]:
        row = next(each for each in self.status(kind, name)["conditions"] if each["type"] == type_)
        return row["status"], row["reason"]
