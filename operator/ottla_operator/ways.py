"""How the operator connects to the brokers of a Cluster: with its own login if they have one, else plaintext. [A]

The login is in a Secret of the Cluster. The CA goes into a file, because the client takes files.
"""

from __future__ import annotations

import hashlib
import tempfile
from base64 import b64decode
from pathlib import Path

from ottla_client import Security
from ottla_operator.brokers import Way
from ottla_operator.cast import CLUSTER, Cast
from ottla_operator.kube import KubeError
from ottla_operator.observe import Observer
from ottla_operator.resources import Names
from ottla_operator.secured import GRPC_PORT, OPERATOR_PORT


class Ways:
    def __init__(self, observer: Observer, cast: Cast, bootstrap: str | None) -> None:
        """`bootstrap` replaces the addresses of all Clusters."""
        self._observer = observer
        self._cast = cast
        self._bootstrap = bootstrap
        self._folder: Path | None = None
        self._is_forbidden = False

    async def of(self, namespace: str, cluster: str) -> list[Way]:
        names = Names(namespace, cluster)
        plain: Way = (self._bootstrap or names.bootstrap_address(GRPC_PORT), None)
        security = await self._login(namespace, cluster)
        if security is None:
            return [plain]
        return [(self._bootstrap or names.bootstrap_address(OPERATOR_PORT), security), plain]

    async def _login(self, namespace: str, cluster: str) -> Security | None:
        body = self._cast.get(CLUSTER, (namespace, cluster)) or {}
        spec = body.get("spec") or {}
        if self._is_forbidden and not {"listeners", "authorization"} & set(spec):
            return None
        try:
            login = await self._observer.secret(namespace, f"{cluster}-operator")
            if login is None:
                return None
            own = ((spec.get("listeners") or {}).get("certificate") or {}).get("secretName")
            found = await self._observer.secret(namespace, own or f"{cluster}-ca-cert") or {}
        except KubeError as failed:
            if failed.code == 403:  # an operator without rights on Secrets knows no logins
                self._is_forbidden = True
                return None
            raise
        trusted = b64decode(found.get("ca.crt", ""))
        return Security(
            "SASL_SSL",
            ssl_ca_location=self._file(trusted) if trusted else None,
            sasl_username=b64decode(login["username"]).decode(),
            sasl_password=b64decode(login["password"]).decode(),
        )

    def _file(self, content: bytes) -> str:
        """A few hundred bytes that are no secret; one file for each CA that this process has seen."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ottla-operator-"))
        path = self._folder / f"{hashlib.sha256(content).hexdigest()[:16]}.pem"
        if not path.exists():
            path.write_bytes(content)
        return str(path)
