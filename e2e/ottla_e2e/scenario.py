"""The scenario, step by step: from `helm install` to a clean cluster. [A]

Every step states what it expects and waits for it with a bound. An unmet expectation is a `Fault`, which ends the run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

from ottla_e2e import (
    command_line,
    evictions,
    lost_volume,
    memory,
    moved_topic,
    namespaces,
    objects,
    racks,
    scaled_consumers,
    secured_cluster,
    spark_jobs,
)
from ottla_e2e.images import ROOT
from ottla_e2e.kube import NAMESPACE, Kube, Object, condition, ready
from ottla_e2e.objects import CLIENT, CLUSTER, KAFKA
from ottla_e2e.places import Place, force_delete
from ottla_e2e.programs import Log, finish, start
from ottla_e2e.say import Fault, say, step

_TOPIC = "orders"
_GROUP = "billing"
_FIRST_RECORDS, _LATER_RECORDS = 20_000, 500
_KINDS = "pods,services,statefulsets,deployments,jobs,configmaps,poddisruptionbudgets,persistentvolumeclaims"
_ETCD_PODS = f"ottla.dev/cluster={CLUSTER},app.kubernetes.io/component=etcd"
#: A client that runs into its own timeout waits for 10 s and more; 200 ms were measured.
_ROLL_MS = 1000
#: The longest gap while partitions move: no leader stops, so there is less to wait for than in a restart.
_SCALE_GAP_MS = 300
#: A lease of 6 s, if only the lease proves that the leader is dead, and a margin. Without etcd it was 24 s and more.
_FAILOVER_MS = 9000
#: Created by Kubernetes itself, in every namespace.
_OF_KUBERNETES = ("kube-root-ca.crt",)


class Scenario:
    def __init__(self, place: Place, kube: Kube) -> None:
        self._place = place
        self._kube = kube
        self._log = Log(kube, _TOPIC)
        self._partitions = 6

    def run(self) -> None:
        for each in (
            self.install,
            self.show_racks,
            self.create_topic,
            self.write_with_a_stock_client,
            self.watch_a_group,
            self.reset_offsets_once,
            self.scale_consumers_with_their_lag,
            self.kill_leaders_under_writes,
            self.roll_brokers_under_writes,
            self.drain_brokers_under_writes,
            self.replace_etcd_under_writes,
            self.change_the_topic,
            self.move_a_topic,
            self.lose_a_volume_under_writes,
            self.scale_brokers_under_writes,
            self.roll_four_brokers_under_writes,
            self.run_spark_jobs,
            self.secure_a_cluster,
            self.measure_memory,
            self.uninstall,
            self.delete_the_namespace_and_install_elsewhere,
        ):
            title = (each.__name__).replace("_", " ")
            with step(title):
                each()

    # ------------------------------------------------------------------ cluster and topic

    def install(self) -> None:
        say(f"    Cluster Ready {namespaces.install(self._kube):.1f} s after helm install")
        self._kube.apply(objects.programs(), objects.client())
        self._kube.run("wait", "--for=condition=Ready", f"pod/{CLIENT}", "--timeout=60s")
        self._tell_code()
        self._tell_memory("at rest")

    def show_racks(self) -> None:
        racks.run(self._kube)

    def create_topic(self) -> None:
        self._kube.apply(objects.topic(_TOPIC, self._partitions, **{"min.insync.replicas": "2"}))
        status = self._all_in_sync()
        _must(len(status["partitions"]) == 6, f"a status with six partitions, not {status}")
        _must(all(len(row["isr"]) == 3 for row in status["partitions"]), f"three replicas in sync: {status}")
        leaders = sorted({row["leader"] for row in status["partitions"]})
        _must(leaders == [0, 1, 2], f"leaders on all three brokers, not {leaders}")

    def write_with_a_stock_client(self) -> None:
        seen = self._log.write(_FIRST_RECORDS)
        say(f"    {seen['acked']:,} records acknowledged by librdkafka's defaults")
        self._log.check()

    # ------------------------------------------------------------------ the group

    def watch_a_group(self) -> None:
        members = [self._member(f"member-{n}") for n in (1, 2)]
        self._kube.apply(objects.group(_GROUP, _TOPIC))

        def right(status: Object) -> bool:
            read = sorted(each for member in status["members"] for each in member["partitions"])
            return (
                status["state"] == "Stable"
                and status["memberCount"] == 2
                and read == [f"{_TOPIC}-{n}" for n in range(6)]
                and all(member["partitions"] for member in status["members"])
                and status["totalLag"] == 0
            )

        status = self._group_when("two members share six partitions without lag", right)
        names = {member["clientId"]: member["partitions"] for member in status["members"]}
        _must(sorted(names) == ["member-1", "member-2"], f"members by their names, not {names}")
        say(f"    {names}, generation {status['generation']}, lag {status['totalLag']}")
        read = sum(finish(member)["read"] for member in members)
        _must(read == self._log.written, f"{self._log.written} records read by the group, not {read}")
        self._group_when(
            "an empty group", lambda status: status["state"] == "Empty" and not status["members"]
        )
        self._log.write(_LATER_RECORDS)
        self._group_when(f"a lag of {_LATER_RECORDS}", lambda status: status["totalLag"] == _LATER_RECORDS)

    def reset_offsets_once(self) -> None:
        self._kube.apply(objects.group(_GROUP, _TOPIC, {"id": "replay-1", "to": "earliest"}))
        status = self._group_when(
            "the reset is Done and everything is to be read again",
            lambda status: _reset(status) == "Done" and status["totalLag"] == self._log.written,
        )
        done_at = status["offsetReset"]["at"]
        member = self._member("member-3")
        self._group_when(
            "all read again", lambda status: status["totalLag"] == 0 and status["memberCount"] == 1
        )
        read = finish(member)["read"]
        _must(read == self._log.written, f"{self._log.written} records read a second time, not {read}")
        self._group_when("an empty group", lambda status: status["state"] == "Empty")
        time.sleep(7)  # three reconciliations: the reset is still in the spec, and must not be applied again
        status = self._kube.get("consumergroup", _GROUP)["status"]
        _must(status["totalLag"] == 0, f"offsets stay after the reset, but the lag is {status['totalLag']}")
        _must(
            status["offsetReset"]["at"] == done_at, f"one reset, not another at {status['offsetReset']['at']}"
        )

    def scale_consumers_with_their_lag(self) -> None:
        scaled_consumers.run(self._kube)

    # ------------------------------------------------------------------ failures

    def kill_leaders_under_writes(self) -> None:
        with self._writing(every_ms=5):
            self._replace_leader(self._delete)
            self._replace_leader(lambda pod: self._place.kill(self._kube, pod))

    def roll_brokers_under_writes(self) -> None:
        """The operator replaces every broker; a client with default settings does not notice."""
        with self._writing(every_ms=10) as seen:
            began = time.monotonic()
            self._change_cluster({"pod": {"annotations": {"e2e": f"rolled at {began}"}}})
            self._kube.until("all brokers are replaced", self._is_rolled, timeout_s=240)
            self._all_in_sync()
            say(f"    rolled in {time.monotonic() - began:.1f} s")
        _unnoticed(seen)

    def scale_brokers_under_writes(self) -> None:
        """A fourth broker gets its share of the replicas and leaves again; a client does not notice."""
        with self._writing(every_ms=5) as seen:
            self._scale(4)
            self._all_in_sync()
            _has_its_share(command_line.brokers(self._kube), 3)
            self._scale(3)
            rows = self._all_in_sync()["partitions"]
            _must(
                all(len(row["replicas"]) == 3 and 3 not in row["replicas"] for row in rows),
                f"drained: {rows}",
            )
        _unnoticed(seen, _SCALE_GAP_MS)
        pods = [each["metadata"]["name"] for each in self._kube.list("pods")]
        _must(f"{CLUSTER}-broker-3" not in pods, f"no fourth broker any more: {pods}")

    def _scale(self, brokers: int) -> None:
        began = time.monotonic()
        self._change_cluster({"brokers": brokers})

        def scaled() -> bool | None:
            cluster = self._cluster()
            found = condition(cluster, "Scaled")
            seen = found.get("observedGeneration") == cluster["metadata"]["generation"]
            return True if seen and found.get("status") == "True" and self._is_rolled() else None

        self._kube.until(f"the Cluster is laid out for {brokers} brokers", scaled, timeout_s=400)
        say(f"    {brokers} brokers after {time.monotonic() - began:.1f} s")

    def roll_four_brokers_under_writes(self) -> None:
        """One more broker, and partitions that it leads."""
        began = time.monotonic()
        self._change_cluster({"brokers": 4})
        self._kube.until("four brokers are ready", self._is_rolled, timeout_s=120)
        say(f"    the fourth broker was ready after {time.monotonic() - began:.1f} s")
        self._resize_topic(16)
        status = self._all_in_sync()
        leaders = sorted({row["leader"] for row in status["partitions"]})
        _must(leaders == [0, 1, 2, 3], f"leaders on all four brokers, not {leaders}")
        self.roll_brokers_under_writes()

    def move_a_topic(self) -> None:
        moved_topic.run(self._kube)

    def lose_a_volume_under_writes(self) -> None:
        """Two of three replicas are left, enough for acks=all; the third comes back from them."""
        with self._writing(every_ms=10):
            lost_volume.lose(self._kube, 1)
            self._all_in_sync()

    def drain_brokers_under_writes(self) -> None:
        """Evict all brokers as a drain does: each waits until the one before is back in sync."""
        pods = [f"{CLUSTER}-broker-{number}" for number in range(3)]
        with self._writing(every_ms=10) as seen:
            watching = start(self._kube, "replicas.py", "--topic", _TOPIC)
            try:
                time.sleep(1)
                done = evictions.evict_all(self._kube, pods)
                self._kube.until("the Cluster is Ready again", lambda: ready(self._cluster()), timeout_s=120)
                self._all_in_sync()
            finally:
                changes = finish(watching)["fewest_in_sync"]
        for each in done:
            in_sync = evictions.in_sync_at(each.accepted_at, changes)
            say(f"    {each.pod} evicted after {each.waited_s:.1f} s, {in_sync} replicas in sync")
            _must(in_sync == 3, f"an eviction only while all replicas are in sync: {each}, {changes}")
        _must(min(fewest for _, fewest in changes) == 2, f"one broker at a time, but: {changes}")
        _unnoticed(seen)

    def replace_etcd_under_writes(self) -> None:
        """All members get new IPs. Brokers reconnect at once, so failover still works right afterwards."""
        with self._writing(every_ms=10) as seen:
            began = time.monotonic()
            before = self._etcd_ready()
            self._kube.run("delete", "pods", "-l", _ETCD_PODS, "--timeout=60s")
            self._kube.until(
                "every etcd member is replaced",
                lambda: _replaced(before, self._etcd_ready()),
                timeout_s=120,
            )
            say(f"    etcd ready again after {time.monotonic() - began:.1f} s")
            self._replace_leader(lambda pod: self._place.kill(self._kube, pod))
        _must(seen["longest_gap_ms"] <= _FAILOVER_MS, f"no gap of more than {_FAILOVER_MS} ms, but: {seen}")

    @contextmanager
    def _writing(self, *, every_ms: int) -> Iterator[Object]:
        """A stock client writes meanwhile; its results are available at the end, and everything must be there."""
        with self._log.writing(every_ms=every_ms) as seen:
            time.sleep(3)
            yield seen
            time.sleep(2)
        self._log.check()

    def _is_rolled(self) -> bool | None:
        """Ready, and no outdated pod is left."""
        cluster = ready(self._cluster())
        reason = cluster and condition(cluster, "Ready").get("reason")
        return True if reason == "Reconciled" else None

    def _etcd_ready(self) -> dict[str, bool]:
        """Whether each etcd pod is ready, by its uid."""
        return {
            pod["metadata"]["uid"]: any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in pod["status"].get("conditions") or ()
            )
            for pod in self._kube.list("pods", "-l", _ETCD_PODS)
        }

    def _replace_leader(self, kill: Callable[[str], str]) -> None:
        """Kill the leader of partition 0: another leads, and all replicas come back in sync."""
        rows = self._topic()["status"]["partitions"]
        leader, epoch = rows[0]["leader"], rows[0]["leaderEpoch"]
        pod = f"{CLUSTER}-broker-{leader}"
        began = time.monotonic()
        how = kill(pod)
        self._topic_when(
            f"a new leader instead of broker {leader}",
            lambda status: (
                status["partitions"][0]["leaderEpoch"] > epoch and status["partitions"][0]["leader"] >= 0
            ),
        )
        self._kube.until("the Cluster is Ready again", lambda: ready(self._cluster()), timeout_s=120)
        self._all_in_sync()
        say(f"    {pod} {how}; all in sync again after {time.monotonic() - began:.1f} s")

    def _delete(self, pod: str) -> str:
        return force_delete(self._kube, pod)

    # ------------------------------------------------------------------ changes

    def change_the_topic(self) -> None:
        self._resize_topic(8)
        self._all_in_sync()
        seen = self._kube.python(CLIENT, "settings.py", KAFKA, _TOPIC, "retention.ms")
        _must(seen == "3600000", f"retention.ms of 3600000 on the brokers, not {seen}")
        self._resize_topic(4)

        def refused() -> Object | None:
            found = condition(self._topic(), "Ready")
            return found if found.get("reason") == "PartitionDecrease" else None

        say(f"    {self._kube.until('a decrease is refused', refused, timeout_s=60)['message']}")
        _must(self._topic()["status"]["partitionCount"] == 8, "still eight partitions")
        self._resize_topic(8)
        self._topic_when("Ready again", lambda _: True)

    def _resize_topic(self, partitions: int) -> None:
        self._partitions = partitions
        settings = {"min.insync.replicas": "2", "retention.ms": "3600000"}
        self._kube.apply(objects.topic(_TOPIC, partitions, **settings))

    def _change_cluster(self, spec: Object) -> None:
        change = json.dumps({"spec": spec})
        self._kube.run("patch", "clusters.ottla.dev", CLUSTER, "--type=merge", "-p", change)

    def run_spark_jobs(self) -> None:
        spark_jobs.run(self._kube)

    # ------------------------------------------------------------------ memory, and the end

    def secure_a_cluster(self) -> None:
        secured_cluster.run(self._kube)

    def measure_memory(self) -> None:
        self._tell_memory("after all of this")

    def _tell_code(self) -> None:
        """Published figures are of compiled modules; a broker without them is a fault of its image."""
        look = "import urllib.request as web; print(web.urlopen('http://127.0.0.1:9292/metrics').read().decode())"
        for number in range(3):
            pod = f"{CLUSTER}-broker-{number}"
            metrics = self._kube.run("exec", pod, "--", "python3", "-c", look)
            (build,) = [line for line in metrics.splitlines() if line.startswith("ottla_build_info{")]
            _must('code="compiled"' in build, f"compiled modules in {pod}, not {build}")
        say(f"    each broker has {build}")

    def _tell_memory(self, when: str) -> None:
        pods = [
            pod["metadata"]["name"]
            for pod in self._kube.list("pods", "-l", "app.kubernetes.io/name=ottla")
            if pod["status"]["phase"] == "Running"
        ]
        say(f"    memory {when}, from the cgroups' counters:")
        for line in memory.table([memory.of_pod(self._kube, pod) for pod in pods]):
            say(f"    {line}")

    def uninstall(self) -> None:
        self._kube.helm("uninstall", "ottla", "--wait", "--timeout", "3m")
        # Objects that the run created beside the chart: users' resources stay until users delete them, and that works
        # without an operator.
        self._kube.run("delete", "topics,consumergroups,users.ottla.dev", "--all", "--timeout=60s")
        self._kube.run("delete", "jobs,pods", "--all", "--timeout=60s")
        self._kube.run("delete", "pvc/spark-data", "configmap/programs", "--timeout=60s")
        self._kube.until("nothing is left", lambda: None if self._left() else True, timeout_s=90)
        self._kube.run("delete", "-f", str(ROOT / "charts/ottla/crds"), "--timeout=60s")
        self._kube.run("delete", "namespace", NAMESPACE, "--timeout=90s")
        roles = self._kube.run("get", "clusterroles,clusterrolebindings", "-o", "name")
        _must("ottla" not in roles, f"no rights left: {[line for line in roles.split() if 'ottla' in line]}")
        namespaces.until_no_volumes(self._kube)

    def delete_the_namespace_and_install_elsewhere(self) -> None:
        namespaces.delete_and_install_elsewhere(self._kube)

    def _left(self) -> list[str]:
        names = self._kube.run("get", _KINDS, "-o", "name").split()
        return [name for name in names if name.partition("/")[2] not in _OF_KUBERNETES]

    # ------------------------------------------------------------------ helpers

    def _cluster(self) -> Object:
        return self._kube.get("clusters.ottla.dev", CLUSTER)

    def _topic(self) -> Object:
        return self._kube.get("topic", _TOPIC)

    def _all_in_sync(self) -> Object:
        def right(status: Object) -> bool:
            found: bool = status["inSync"] == f"{self._partitions}/{self._partitions}"
            return found

        return self._topic_when(f"{self._partitions} partitions, all replicas in sync", right)

    def _topic_when(self, what: str, right: Any) -> Object:
        return self._status_when("topic", _TOPIC, what, right)

    def _group_when(self, what: str, right: Any) -> Object:
        return self._status_when("consumergroup", _GROUP, what, right)

    def _status_when(self, kind: str, name: str, what: str, right: Any) -> Object:
        """The status of a resource, once it describes the current spec, is Ready, and `right`."""

        def look() -> Object | None:
            found = ready(self._kube.get(kind, name))
            status: Object | None = found and found["status"]
            return status if status is not None and right(status) else None

        return self._kube.until(f"{kind} {name}: {what}", look, timeout_s=120)

    def _member(self, name: str) -> Popen[str]:
        return start(self._kube, "member.py", "--topic", _TOPIC, "--group", _GROUP, "--name", name)


def _reset(status: Object) -> str | None:
    found: str | None = (status.get("offsetReset") or {}).get("state")
    return found


def _replaced(before: Object, now: Object) -> bool | None:
    """Whether all pods were replaced: the same number, different ones, all ready."""
    return True if len(now) == len(before) and not before.keys() & now.keys() and all(now.values()) else None


def _unnoticed(seen: Object, gap_ms: int = _ROLL_MS) -> None:
    _must(seen["longest_gap_ms"] <= gap_ms, f"no gap of more than {gap_ms} ms, but: {seen}")
    _must(seen["slowest_ms"] <= _ROLL_MS, f"no write of more than {_ROLL_MS} ms, but: {seen}")


def _has_its_share(brokers: dict[int, Object], new: int) -> None:
    """Of the replicas of all topics."""
    replicas = {number: each["replicas"] for number, each in brokers.items()}
    share = sum(replicas.values()) // len(replicas) - 1
    _must(replicas[new] >= share, f"at least {share} replicas on broker {new}, not {replicas}")
    say(f"    replicas by broker: {replicas}")


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise Fault(f"expected: {what}")
