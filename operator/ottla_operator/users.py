"""Reconciles one User: its Secret, its credentials and ACLs on the brokers; and its deletion. [S]

The Secret belongs to the User and is deleted with it by Kubernetes. A Secret that somebody else made is used if it has
a password, and never changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ottla_core.errors import RequestError
from ottla_operator import secured
from ottla_operator.access_spec import Access
from ottla_operator.brokers import Brokers, BrokersAway
from ottla_operator.cast import CLUSTER, USER, Tools
from ottla_operator.certificate_plan import Wanted
from ottla_operator.credentials import Credentials, Data
from ottla_operator.kube import KubeError
from ottla_operator.metrics import DRIFT
from ottla_operator.pod_parts import MANAGED_BY
from ottla_operator.specs import InvalidSpec, Meta, texts_of
from ottla_operator.status import Condition, kept, not_ready, reason_of
from ottla_operator.user_plan import condition_of, facts_of, is_drift, plan, plan_removal, words
from ottla_operator.user_spec import TLS, UserSpec

SETTLED_S = 30.0
SOON_S = 3.0


class _Unusable(Exception):
    """The Secret cannot be used; the condition says why."""

    def __init__(self, condition: Condition) -> None:
        super().__init__(condition.message)
        self.condition = condition


class UserLook:
    def __init__(self, tools: Tools, *, settled_s: float = SETTLED_S) -> None:
        self._tools = tools
        self._settled_s = settled_s
        self._credentials = Credentials(tools.observer, tools.applier, tools.clock)
        #: Uids of resources whose user was made; the status may lag behind.
        self._made: set[str] = set()

    async def look(self, key: tuple[str, str]) -> float | None:
        body = self._tools.cast.get(USER, key)
        if body is None or Meta.of(body).deleting:
            return None  # `remove` handles deletions
        meta = Meta.of(body)
        try:
            spec = UserSpec.of(body)
            refusal = self._tools.cast.refusal(meta, spec.cluster)
            if refusal is not None:
                return await self._keep(meta, body, refusal, SOON_S)
            owner = self._tools.cast.owner(meta.namespace, spec)
            if owner is not None and owner.uid != meta.uid:
                said = f"{spec.user} belongs to the older User resource {owner.namespace}/{owner.name}."
                return await self._keep(meta, body, not_ready("Conflict", said), SOON_S)
            if meta.paused:
                return await self._keep(meta, body, not_ready("Paused", "Paused."), self._settled_s)
            return await self._reconcile(meta, spec, body)
        except InvalidSpec as refused:
            return await self._keep(meta, body, not_ready("InvalidSpec", str(refused)), self._settled_s)
        except _Unusable as unusable:
            return await self._keep(meta, body, unusable.condition, self._settled_s)
        except KubeError as failed:
            if failed.code != 403:
                raise
            said = f"{failed} Allow the operator to use Secrets: operator.secrets=true in its chart."
            return await self._keep(meta, body, not_ready("Forbidden", said), self._settled_s)
        except BrokersAway as away:
            return await self._keep(meta, body, not_ready("BrokersAway", str(away)), SOON_S)
        except RequestError as refused:
            condition = not_ready(reason_of(refused.name), refused.message)
            return await self._keep(meta, body, condition, SOON_S if refused.retriable else self._settled_s)

    async def _reconcile(self, meta: Meta, spec: UserSpec, body: Mapping[str, Any]) -> float:
        access = self._access(meta, spec)
        password, version = await self._secret(meta, spec, access)
        is_new = version != (body.get("status") or {}).get("secretVersion")
        seen = await self._ask(meta, spec, lambda brokers: brokers.user(spec.user))
        actions = plan(spec, seen, password, is_new=is_new)
        drift = is_drift(meta, body.get("status"), actions, is_new=is_new)
        self._made.add(meta.uid)
        for action in actions:
            await self._ask(meta, spec, lambda brokers, action=action: brokers.change_user(action))
            if drift:
                DRIFT.labels(USER).inc()
            reason = "DriftRepaired" if drift else "Applied"
            await self._tools.applier.event(meta, reason, words(action))
        if actions:
            seen = await self._ask(meta, spec, lambda brokers: brokers.user(spec.user))
        condition = condition_of(spec, access.authentications)
        await self._tools.report(meta, body, [condition], facts_of(spec, seen, version))
        return self._settled_s

    def _access(self, meta: Meta, spec: UserSpec) -> Access:
        cluster = self._tools.cast.get(CLUSTER, spec.cluster.place(meta.namespace)) or {}
        found = cluster.get("spec") or {}
        return Access.of(found, texts_of(found.get("config")))

    # ------------------------------------------------------------------ the Secret

    async def _secret(self, meta: Meta, spec: UserSpec, access: Access) -> tuple[str | None, str]:
        """The password, for SCRAM, and the version of the Secret; made or renewed if it has to be."""
        there = await self._tools.observer.secret_object(meta.namespace, spec.secret)
        is_ours = there is None or any(
            each.get("uid") == meta.uid for each in there["metadata"].get("ownerReferences") or ()
        )
        if spec.authentication == TLS:
            await self._keep_certificate(meta, spec, access, is_ours=is_ours)
        elif is_ours:
            await self._keep_password(meta, spec)
        there = await self._tools.observer.secret_object(meta.namespace, spec.secret)
        data = await self._credentials.read(meta.namespace, spec.secret) or {}
        if there is None:
            raise _Unusable(not_ready("Pending", f"Secret {spec.secret} is not there yet."))
        version = str(there["metadata"].get("resourceVersion", ""))
        if spec.authentication == TLS:
            return None, version
        password = data.get("password", b"").decode(errors="replace").strip()
        if not password:
            said = f"Secret {spec.secret} exists, and has no password. Add one, or choose another secretName."
            raise _Unusable(not_ready("SecretInUse", said))
        return password, version

    async def _keep_password(self, meta: Meta, spec: UserSpec) -> None:
        data = await self._credentials.read(meta.namespace, spec.secret)
        trusted = await self._trusted(meta, spec)
        password = (data or {}).get("password", b"").decode() or secrets.token_urlsafe(24)
        login = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{spec.user}" password="{password}";'
        )
        wanted: Data = {
            "username": spec.user.encode(),
            "password": password.encode(),
            "sasl.jaas.config": login.encode(),
        }
        if trusted:
            wanted["ca.crt"] = trusted
        if data is None or any(data.get(key) != content for key, content in wanted.items()):
            await self._credentials.write(self._about(meta, spec), wanted, exists=data is not None)

    async def _keep_certificate(self, meta: Meta, spec: UserSpec, access: Access, *, is_ours: bool) -> None:
        if not is_ours:
            said = f"Secret {spec.secret} exists and belongs to something else. Choose another secretName."
            raise _Unusable(not_ready("SecretInUse", said))
        if access.client_ca is not None or not access.takes_client_certificates:
            raise _Unusable(
                not_ready(
                    "NoClientCa",
                    "The operator cannot sign client certificates for this Cluster: it needs a listener with "
                    "authentication tls, and no clientCa of its own.",
                )
            )
        namespace, cluster = spec.cluster.place(meta.namespace)
        owner = Meta.of(
            self._tools.cast.get(CLUSTER, (namespace, cluster)) or {"metadata": {"name": cluster}}
        )
        made: list[str] = []
        authority = await self._credentials.authority(owner, secured.clients_ca_secret(owner), made)
        await self._credentials.certificate(
            meta,
            spec.secret,
            authority,
            Wanted(spec.user),
            self._about(meta, spec),
            made,
            server=False,
            trusted=await self._trusted(meta, spec),
        )
        for sentence in made:
            await self._tools.applier.event(meta, "CertificateMade", sentence)

    async def _trusted(self, meta: Meta, spec: UserSpec) -> bytes:
        """The CAs by which a client knows the brokers; empty if the operator does not make them."""
        namespace, cluster = spec.cluster.place(meta.namespace)
        body = self._tools.cast.get(CLUSTER, (namespace, cluster)) or {}
        own = ((body.get("spec") or {}).get("listeners") or {}).get("certificate") or {}
        found = await self._credentials.read(namespace, own.get("secretName") or f"{cluster}-ca-cert")
        return (found or {}).get("ca.crt", b"")

    @staticmethod
    def _about(meta: Meta, spec: UserSpec) -> dict[str, Any]:
        return {
            "name": spec.secret,
            "namespace": meta.namespace,
            "labels": {"app.kubernetes.io/name": "ottla", "ottla.dev/user": meta.name[:63], **MANAGED_BY},
            "ownerReferences": [meta.owner_reference()],
        }

    async def _ask(self, meta: Meta, spec: UserSpec, question: Any) -> Any:
        return await self._tools.links.ask(*spec.cluster.place(meta.namespace), question)

    async def _keep(self, meta: Meta, body: Mapping[str, Any], condition: Condition, delay_s: float) -> float:
        """Report the condition and keep the facts of the previous status."""
        await self._tools.report(meta, body, [condition], kept(body.get("status")))
        return delay_s

    # ------------------------------------------------------------------ after the resource was deleted

    async def remove(self, body: Mapping[str, Any]) -> None:
        """Delete credentials and ACLs of a deleted resource. Raises errors that are worth a retry.

        They stay if the resource never made the user, or another one names it.
        """
        meta = Meta.of(body)
        try:
            spec = UserSpec.of(body)
        except InvalidSpec:
            return
        was_made = meta.uid in self._made or bool((body.get("status") or {}).get("userName"))
        owner = self._tools.cast.owner(meta.namespace, spec)
        is_others = owner is not None and owner.uid != meta.uid
        stays = meta.paused or not was_made or is_others
        if stays or not await self._tools.cluster_stays(meta, spec.cluster):
            self._made.discard(meta.uid)
            return

        async def finish(brokers: Brokers) -> None:
            for action in plan_removal(spec, await brokers.user(spec.user)):
                await brokers.change_user(action)

        await self._ask(meta, spec, finish)
        self._made.discard(meta.uid)
