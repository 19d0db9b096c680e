"""Keeps the Secrets of secured Clusters: CAs, certificates of brokers and Users, the operator's login. [S]

`certificate_plan.py` decides what is renewed. A Secret that exists is changed only for that: whoever replaces a CA in
its Secret keeps it. Called by `clusters.py` and `users.py`.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla_core.ports.clock import Clock
from ottla_operator import secured
from ottla_operator.access_spec import OPERATOR_USER, Access
from ottla_operator.apply import Applier
from ottla_operator.certificate_plan import Wanted, replaces, why_new_ca, why_renew
from ottla_operator.observe import Observer
from ottla_operator.pod_parts import metadata
from ottla_operator.specs import Meta

_CERTIFICATE, _KEY, _CA = "tls.crt", "tls.key", "ca.crt"
_PREVIOUS = "previous.crt"
_TLS = "kubernetes.io/tls"

Data = dict[str, bytes]


class Authority(NamedTuple):
    """A CA of a Cluster."""

    certificate: bytes
    key: bytes
    #: The CA before it, which is still trusted.
    previous: bytes

    @property
    def trusted(self) -> bytes:
        return self.certificate + self.previous


class Credentials:
    def __init__(self, observer: Observer, applier: Applier, clock: Clock) -> None:
        self._observer = observer
        self._applier = applier
        self._clock = clock

    async def keep(self, meta: Meta, access: Access, brokers: int) -> list[str]:
        """Everything that the brokers of this Cluster mount; sentences about what was made or renewed."""
        said: list[str] = []
        authority = await self.authority(meta, secured.ca_secret(meta), said)
        await self._publish(meta, secured.ca_certificate_secret(meta), authority)
        wanted = Wanted(f"{meta.name}-brokers", secured.hosts(meta, access, brokers))
        name = secured.broker_certificate_secret(meta)
        await self.certificate(
            meta, name, authority, wanted, metadata(meta, name, "broker"), said, server=True
        )
        if access.takes_client_certificates and access.client_ca is None:
            clients = await self.authority(meta, secured.clients_ca_secret(meta), said)
            await self._publish(meta, secured.clients_ca_certificate_secret(meta), clients)
        if access.needs_login:
            await self._keep_login(meta)
        return said

    async def authority(self, meta: Meta, name: str, said: list[str]) -> Authority:
        from ottla_operator.certificate_maker import common_name, make_ca, read

        data = await self.read(meta.namespace, name) or {}
        held = read(data.get(_CERTIFICATE))
        why = why_new_ca(held, self._now_s())
        if why is not None or held is None or not data.get(_KEY):
            made = make_ca(common_name(name), self._now_s())
            data = {_CERTIFICATE: made.certificate, _KEY: made.key, _PREVIOUS: data.get(_CERTIFICATE, b"")}
            about = metadata(meta, name, "broker")
            await self.write(about, data, exists=held is not None)
            said.append(f"CA {name} was made. {why or ''}".strip())
            data = await self.read(meta.namespace, name) or data  # another operator may have been first
        return Authority(data[_CERTIFICATE], data[_KEY], data.get(_PREVIOUS, b""))

    async def certificate(
        self,
        meta: Meta,
        name: str,
        authority: Authority,
        wanted: Wanted,
        about: Mapping[str, Any],
        said: list[str],
        *,
        server: bool,
        trusted: bytes | None = None,
    ) -> Data:
        """A Secret with a certificate, its key, and `trusted` CAs (default: the one that signs)."""
        trusted = authority.trusted if trusted is None else trusted
        from ottla_operator.certificate_maker import Pair, issue, read

        now_s = self._now_s()
        data = await self.read(meta.namespace, name)
        ca, old = read(authority.certificate), read(authority.previous)
        authorities = [] if ca is None else [ca.key]
        if ca is not None and old is not None and not replaces(ca, now_s):
            authorities.append(old.key)
        held = read((data or {}).get(_CERTIFICATE))
        why = why_renew(held, wanted, authorities, now_s)
        if why is None and data is not None and data.get(_KEY):
            if data.get(_CA) == trusted:
                return data
            kept = {**data, _CA: trusted}
        else:
            made = issue(Pair(authority.certificate, authority.key), wanted, now_s, server=server)
            kept = {_CERTIFICATE: made.certificate, _KEY: made.key, _CA: trusted}
            said.append(f"Certificate {name} was made. {why or ''}".strip())
        await self.write(about, kept, exists=data is not None, type=_TLS)
        return kept

    async def _publish(self, meta: Meta, name: str, authority: Authority) -> None:
        data = await self.read(meta.namespace, name)
        if data is None or data.get(_CA) != authority.trusted:
            about = metadata(meta, name, "broker")
            await self.write(about, {_CA: authority.trusted}, exists=data is not None)

    async def _keep_login(self, meta: Meta) -> None:
        name = secured.operator_secret(meta)
        if await self.read(meta.namespace, name) is None:
            password = secrets.token_urlsafe(32)
            users = f"{OPERATOR_USER}:{password}\n"
            data = {"username": OPERATOR_USER, "password": password, "users": users}
            about = metadata(meta, name, "broker")
            await self.write(about, {key: text.encode() for key, text in data.items()}, exists=False)

    # ------------------------------------------------------------------ Secrets

    async def read(self, namespace: str, name: str) -> Data | None:
        found = await self._observer.secret(namespace, name)
        return None if found is None else {key: b64decode(text) for key, text in found.items()}

    async def write(
        self, about: Mapping[str, Any], data: Data, *, exists: bool, type: str = "Opaque"
    ) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": dict(about),
            "type": type,
            "data": {key: b64encode(content).decode() for key, content in data.items()},
        }
        if exists:
            await self._applier.apply(body)
        else:
            await self._applier.create(body)  # False: another operator was first, and its content counts

    def _now_s(self) -> float:
        return self._clock.wall_ms() / 1000
