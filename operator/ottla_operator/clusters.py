"""Reconciles one Cluster: apply its objects, replace outdated pods, report. [S]"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ottla_core.errors import RequestError
from ottla_operator import cluster_secret, internal_tls, network_policy, secured
from ottla_operator.broker_settings import check_settings
from ottla_operator.brokers import BrokersAway, SeenCluster
from ottla_operator.cast import CLUSTER, Tools
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.credentials import Credentials
from ottla_operator.kube import KubeError
from ottla_operator.load_balancers import LoadBalancers, missing
from ottla_operator.metrics import DRIFT
from ottla_operator.nodes import Nodes
from ottla_operator.observe import SeenBrokers
from ottla_operator.pod_parts import Images
from ottla_operator.resources import broker_settings, objects_of
from ottla_operator.rolling import Finished, Pod, Restart, Step, Wait, next_step
from ottla_operator.scaler import Scaler
from ottla_operator.scaling import Step as ScalingStep
from ottla_operator.specs import InvalidSpec, Meta
from ottla_operator.status import Condition, kept, not_ready, ready
from ottla_operator.volume_growth import RESIZING, with_old_templates
from ottla_operator.volumes import Volumes

SETTLED_S = 30.0
SOON_S = 2.0
#: Status codes that say nothing about the object: no answer, or a temporary refusal.
_NO_ANSWER = (0, 401, 429, 503, 504)
#: Generation, number of pods, phase of TLS between brokers, addresses of load balancers.
Applied = tuple[int, int, str, tuple[str, ...]]
_NEVER: tuple[Applied, float] = (-1, -1, "", ()), 0.0


class ClusterLook:
    def __init__(self, tools: Tools, images: Images, *, settled_s: float = SETTLED_S) -> None:
        self._tools = tools
        self._images = images
        self._settled_s = settled_s
        #: (Cluster uid, broker) -> log directories whose loss was reported, to warn once.
        self._replaced: dict[tuple[str, int], frozenset[str]] = {}
        #: Cluster uid -> what was applied last, and when.
        self._applied: dict[str, tuple[Applied, float]] = {}
        #: The same for its certificates and logins.
        self._kept: dict[str, tuple[Applied, float]] = {}
        self._credentials = Credentials(tools.observer, tools.applier, tools.clock)
        self._scaler = Scaler(tools)
        self._nodes = Nodes(tools)
        self._load_balancers = LoadBalancers(tools)
        self._volumes = Volumes(tools)
        self._secrets = cluster_secret.Due(tools.clock.monotonic)

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(CLUSTER, key)
        if body is None or Meta.of(body).deleting:
            # Kubernetes deletes its objects by their owner references.
            await self._tools.links.forget(key)
            return None
        meta = Meta.of(body)
        try:
            spec = ClusterSpec.of(body)
            check_settings(broker_settings(meta, spec), own_image=spec.image is not None)
        except InvalidSpec as refused:
            return await self._keep(meta, body, not_ready("InvalidSpec", str(refused)))
        spec = await self._load_balancers.resolve(meta, spec, body)
        if meta.paused:
            return await self._inspect(meta, spec, body, None, None)
        scaling = await self._scaler.step(meta, spec, body)
        refusal = await self._apply(meta, spec, body, scaling.pods)
        await self._scaler.execute(meta, body, scaling)
        return await self._inspect(meta, spec, body, refusal, scaling)

    async def _keep(self, meta: Meta, body: Mapping[str, Any], condition: Condition) -> float:
        await self._tools.report(meta, body, [condition], kept(body.get("status")))
        return self._settled_s

    async def _apply(
        self, meta: Meta, spec: ClusterSpec, body: Mapping[str, Any], pods: int
    ) -> Condition | None:
        """Apply all objects. If the API server refuses one, the others are still applied; the condition names it."""
        phase = await self._phase(meta, spec)
        this = meta.generation, pods, phase, spec.access.addresses
        applied, at = self._applied.get(meta.uid, _NEVER)
        now = self._tools.clock.monotonic()
        if applied == this and now - at < self._settled_s / 2:
            return None  # while pods start, reconciliations are frequent
        await self._keep_secret(meta)
        if (forbidden := await self._keep_credentials(meta, spec, this)) is not None:
            return forbidden
        if (forbidden := await self._nodes.keep(meta, spec.rack)) is not None:
            return forbidden
        refused: list[str] = []
        known = (body.get("status") or {}).get("observedGeneration") == meta.generation
        await self._drop_policies(meta, spec)
        for wanted in objects_of(meta, spec, self._images, pods, phase):
            what = f"{wanted['kind']} {wanted['metadata']['name']}"
            before = await self._tools.observer.current(wanted)
            try:
                after = await self._tools.applier.apply(with_old_templates(wanted, before))
            except KubeError as failed:
                if failed.code in _NO_ANSWER:
                    raise
                refused.append(f"{what}: {failed}")
                continue
            if known and applied == this and _version(before) != _version(after):
                # A controller's status update also changes the version; only a new generation is a spec change.
                if before is not None and _generation(before) == _generation(after) != 0:
                    continue
                DRIFT.labels(CLUSTER).inc()
                await self._tools.applier.event(
                    meta, "DriftRepaired", f"{what} was changed or deleted by another client; restored."
                )
        if refused:
            return not_ready("Refused", f"The API server refused {' '.join(refused)}")
        self._applied[meta.uid] = this, now
        return None

    async def _phase(self, meta: Meta, spec: ClusterSpec) -> str:
        """Of TLS between the brokers: a running Cluster changes it in two rolling restarts."""
        wanted, last = spec.access.internal_tls, self._applied.get(meta.uid)
        if not wanted and last is not None and last[0][2] == internal_tls.OFF:
            return internal_tls.OFF
        before = await self._tools.observer.annotation(meta, internal_tls.PHASE)
        rolled = False
        if before == internal_tls.PREPARED:
            seen = await self._tools.observer.brokers(meta)
            rolled = seen.settled and bool(seen.pods) and all(pod.current and pod.ready for pod in seen.pods)
        return internal_tls.next_phase(wanted, before, rolled=rolled)

    async def _keep_credentials(self, meta: Meta, spec: ClusterSpec, this: Applied) -> Condition | None:
        """Certificates and the operator's login, now and then; a condition if the operator may not."""
        if not spec.access.is_secured and this[2] == internal_tls.OFF:
            return None
        kept, at = self._kept.get(meta.uid, _NEVER)
        now = self._tools.clock.monotonic()
        if kept == this and now - at < cluster_secret.RENEW_S:
            return None
        try:
            said = await self._credentials.keep(meta, spec.access, this[1])
        except KubeError as failed:
            if failed.code != 403:
                raise
            return not_ready(
                "Forbidden",
                f"{failed} Allow the operator to use Secrets: operator.secrets=true in its chart.",
            )
        for sentence in said:
            await self._tools.applier.event(meta, "CertificateMade", sentence)
        self._kept[meta.uid] = this, now
        return None

    async def _drop_policies(self, meta: Meta, spec: ClusterSpec) -> None:
        if spec.access.network_policy:
            return
        for policy in network_policy.policies(meta, spec.access, etcd=True):
            there = await self._tools.observer.current(policy)
            owners = [] if there is None else there["metadata"].get("ownerReferences") or []
            if there is not None and any(each.get("uid") == meta.uid for each in owners):
                await self._tools.applier.delete({**policy, "metadata": there["metadata"]})

    async def _keep_secret(self, meta: Meta) -> None:
        if self._secrets.is_due(meta):
            await self._tools.applier.create(cluster_secret.secret(meta, secrets.token_hex(32)))
            self._secrets.done(meta)

    async def _inspect(
        self,
        meta: Meta,
        spec: ClusterSpec,
        body: Mapping[str, Any],
        refusal: Condition | None,
        scaling: ScalingStep | None,
    ) -> float:
        seen = await self._tools.observer.brokers(meta)
        cluster = await self._ask_cluster(meta) if any(pod.ready for pod in seen.pods) else None
        step = await self._roll(meta, spec, seen, cluster)
        if scaling is not None and scaling.condition.reason == "Refused":
            refusal = refusal or not_ready("ScalingRefused", scaling.condition.message)
        condition = refusal or missing(meta, spec) or self._condition(meta, spec, seen, cluster, step)
        facts = {
            "clusterId": cluster.cluster_id if cluster else (body.get("status") or {}).get("clusterId"),
            "controller": cluster.controller if cluster else -1,
            "scaledTo": scaling.scaled_to if scaling else (body.get("status") or {}).get("scaledTo"),
            "readyBrokers": sum(1 for pod in seen.pods if pod.ready),
            "bootstrap": secured.bootstrap(meta, spec.access, spec.brokers),
            "brokers": broker_rows(seen.pods, cluster, body.get("status")),
        }
        if not spec.storage.ephemeral:
            await self._warn_of_empty_volumes(meta, lost_directories(cluster, body.get("status")))
        volumes = None if meta.paused else await self._volumes.keep(meta, spec, body)
        conditions = [condition, scaling.condition if scaling else None, volumes]
        await self._tools.report(meta, body, conditions, facts)
        if refusal is not None:
            return self._settled_s
        if self._applied.get(meta.uid, _NEVER)[0][2] == internal_tls.PREPARED:
            return SOON_S  # the second step follows when all brokers have certificates
        scaled = scaling is None or scaling.condition.holds
        grown = volumes is None or volumes.reason != RESIZING
        settled = condition.holds and isinstance(step, Finished) and scaled and grown
        return self._settled_s if settled else SOON_S

    async def _warn_of_empty_volumes(self, meta: Meta, lost: Mapping[int, frozenset[str]]) -> None:
        for broker, directories in lost.items():
            if self._replaced.get((meta.uid, broker)) != directories:
                self._replaced[meta.uid, broker] = directories
                message = (
                    f"Broker {broker} started without its log directory {', '.join(sorted(directories))}: a volume "
                    "was replaced or emptied. Its replicas are copied again from brokers that are in sync; records "
                    "that only it had are lost."
                )
                await self._tools.applier.event(meta, "VolumeReplaced", message, warning=True)

    async def _ask_cluster(self, meta: Meta) -> SeenCluster | None:
        try:
            return await self._tools.links.ask(*meta.key, lambda brokers: brokers.cluster())
        except (BrokersAway, RequestError):
            return None

    async def _roll(
        self, meta: Meta, spec: ClusterSpec, seen: SeenBrokers, cluster: SeenCluster | None
    ) -> Step:
        if meta.paused or not seen.settled:
            return Wait(
                "Paused." if meta.paused else "The StatefulSet controller has not seen the last change yet."
            )
        if all(pod.current for pod in seen.pods):
            return Finished()
        hosted = None
        if cluster is not None:
            try:
                hosted = await self._tools.links.ask(*meta.key, lambda brokers: brokers.hosted())
            except (BrokersAway, RequestError):
                hosted = None
        controller, alive = (cluster.controller, cluster.brokers) if cluster else (None, ())
        step = next_step(seen.pods, spec.brokers, hosted, controller, alive)
        if isinstance(step, Restart):
            await self._tools.applier.event(meta, "Restarting", f"{step.pod.name}: {step.why}")
            await self._tools.applier.restart(meta.namespace, step.pod)
        return step

    @staticmethod
    def _condition(
        meta: Meta, spec: ClusterSpec, seen: SeenBrokers, cluster: SeenCluster | None, step: Step
    ) -> Condition:
        up = sum(1 for pod in seen.pods if pod.ready)
        if up < spec.brokers:
            outdated = seen.settled and any(not pod.current for pod in seen.pods)
            reason = "Rolling" if outdated else "Starting"
            return not_ready(reason, f"{up} of {spec.brokers} brokers are ready. {seen.trouble}".strip())
        if cluster is None:
            return not_ready("BrokersAway", "All pods are ready, but no broker answers.")
        if isinstance(step, Restart):
            return ready(f"{step.pod.name} is being restarted.", "Rolling")
        if isinstance(step, Wait) and not meta.paused:
            return ready(f"Outdated brokers wait for their restart. {step.why}", "Rolling")
        return ready(f"All {spec.brokers} brokers are ready.")


def broker_rows(
    pods: Sequence[Pod], cluster: SeenCluster | None, status: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """`status.brokers`. Keeps the log directories of an offline broker, to compare them after its restart."""
    known = _known_directories(status)
    rows = []
    for pod in pods:
        row: dict[str, Any] = {
            "id": pod.broker, "pod": pod.name, "ready": pod.ready, "current": pod.current,
        }  # fmt: skip
        directories = (cluster.directories.get(pod.broker) if cluster else None) or known.get(pod.broker)
        if directories:
            row["directories"] = list(directories)
        rows.append(row)
    return rows


def lost_directories(
    cluster: SeenCluster | None, status: Mapping[str, Any] | None
) -> dict[int, frozenset[str]]:
    """Brokers that are online without a log directory that they had before."""
    present = cluster.directories if cluster else {}
    lost = {
        broker: frozenset(known) - frozenset(present[broker])
        for broker, known in _known_directories(status).items()
        if present.get(broker)
    }
    return {broker: missing for broker, missing in lost.items() if missing}


def _known_directories(status: Mapping[str, Any] | None) -> dict[int, tuple[str, ...]]:
    rows = (status or {}).get("brokers") or ()
    return {row["id"]: tuple(row.get("directories") or ()) for row in rows}


def _version(body: Mapping[str, Any] | None) -> str | None:
    return None if body is None else str(body["metadata"].get("resourceVersion"))


def _generation(body: Mapping[str, Any]) -> int:
    return int(body["metadata"].get("generation", 0))
