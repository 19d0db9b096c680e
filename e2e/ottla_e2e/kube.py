"""kubectl and helm as a user would call them, with a bound on every wait. [A]"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ottla_e2e.say import Fault, say

T = TypeVar("T")
Object = dict[str, Any]

#: Namespace of the run's pods, separate from the node's own.
NAMESPACE = "ottla-e2e"
#: For a second install.
OTHER_NAMESPACE = "ottla-e2e-other"
_COMMAND_S = 120


class Kube:
    """One Kubernetes cluster, one namespace."""

    def __init__(
        self,
        kubectl: str,
        environ: Mapping[str, str],
        context: str | None = None,
        namespace: str = NAMESPACE,
    ) -> None:
        self.namespace = namespace
        self._of = kubectl, environ, context
        self._environ = {**os.environ, **environ}
        self._kubectl = [kubectl, *(["--context", context] if context else []), "--namespace", namespace]
        helm = str(Path(sys.executable).parent / "helm")
        self._helm = [helm, *(["--kube-context", context] if context else []), "--namespace", namespace]

    @property
    def environ(self) -> dict[str, str]:
        """For a shell that runs kubectl and helm on this cluster."""
        folder = os.path.dirname(self._of[0])
        path = self._environ.get("PATH", os.defpath)
        return {**self._of[1], "PATH": f"{folder}:{path}" if folder else path}

    def within(self, namespace: str) -> Kube:
        """The same Kubernetes cluster, another namespace."""
        return Kube(*self._of, namespace)

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = _COMMAND_S) -> str:
        return self._run([*self._kubectl, *arguments], stdin, timeout_s)

    def helm(self, *arguments: str, timeout_s: float = 300) -> str:
        return self._run([*self._helm, *arguments], None, timeout_s)

    def spark_submit(self, *arguments: str, folder: Path, timeout_s: float = 180) -> str:
        """Submit an application in cluster mode from this machine; returns when its driver's pod exists."""
        server = self.run("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
        settings = {
            "spark.kubernetes.namespace": self.namespace,
            "spark.kubernetes.submission.waitAppCompletion": "false",
            **({"spark.kubernetes.context": self._of[2]} if self._of[2] else {}),
        }
        flags = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        # The script spark-submit beside Python would look for PySpark in the first python3 of PATH.
        (home,) = find_spec("pyspark").submodule_search_locations  # type: ignore[union-attr, misc]
        program = f"SPARK_HOME={home}", f"{home}/bin/spark-submit"
        submit = ["env", *program, "--master", f"k8s://{server}", "--deploy-mode", "cluster"]
        return self._run([*submit, *flags, *arguments], None, timeout_s, folder)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A kubectl that runs in the background; it ends when its standard input is closed."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*self._kubectl, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=self._environ
        )

    def apply(self, *objects: Object) -> None:
        self.run("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self.run("get", kind, name, "-o", "json"))
        return found

    def list(self, kinds: str, *arguments: str) -> list[Object]:
        found: list[Object] = json.loads(self.run("get", kinds, "-o", "json", *arguments))["items"]
        return found

    def python(self, pod: str, program: str, *arguments: str, timeout_s: float = _COMMAND_S) -> Any:
        """Run one of the programs from `pods/` in a pod; returns its last line, which is JSON."""
        out = self.run("exec", pod, "--", "python3", f"/programs/{program}", *arguments, timeout_s=timeout_s)
        return json.loads(out.strip().splitlines()[-1])

    def until(self, what: str, look: Callable[[], T | None], *, timeout_s: float) -> T:
        """The first result of `look` that is not None."""
        deadline = time.monotonic() + timeout_s
        failed: Exception | None = None
        while True:
            try:
                seen = look()
                if seen is not None:
                    return seen
            except (Fault, KeyError) as error:
                failed = error
            if time.monotonic() > deadline:
                raise Fault(f"not seen within {timeout_s:.0f} s: {what}" + (f" ({failed})" if failed else ""))
            time.sleep(0.5)

    def _run(
        self, command: Sequence[str], stdin: str | None, timeout_s: float, folder: Path | None = None
    ) -> str:
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=self._environ,
                check=False,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            raise Fault(f"timed out after {timeout_s:.0f} s: {' '.join(command[:12])}") from None
        if done.returncode:
            raise Fault(f"{' '.join(command[:12])}: {done.stderr.strip() or done.stdout.strip()[-2000:]}")
        return done.stdout

    # ------------------------------------------------------------------ when something went wrong

    def tell_all(self) -> None:
        """Everything that helps to understand a failure, on standard output."""
        for arguments in (
            [
                "get",
                "clusters.ottla.dev,topics,consumergroups,users.ottla.dev,rebalances,pods,services,pvc,jobs",
                "-o",
                "wide",
            ],
            ["get", "events", "--sort-by=.lastTimestamp"],
            ["describe", "clusters.ottla.dev,topics,consumergroups,users.ottla.dev,rebalances"],
            ["describe", "pods"],
            ["get", "pods,events", "--namespace", "kube-system"],
        ):
            self._tell(arguments)
        try:
            pods = [each["metadata"]["name"] for each in self.list("pods")]
        except Fault:
            return
        for pod in pods:
            self._tell(["logs", pod, "--all-containers", "--tail=60"])
            self._tell(["logs", pod, "--all-containers", "--tail=60", "--previous"], quiet=True)

    def _tell(self, arguments: Sequence[str], *, quiet: bool = False) -> None:
        try:
            out = self.run(*arguments, timeout_s=30)
        except Fault as failed:
            out = "" if quiet else str(failed)
        if out.strip():
            say(f"--- kubectl {' '.join(arguments)}")
            print(out, flush=True)


def ready(found: Object) -> Object | None:
    """The resource, if it is Ready with its current spec."""
    return found if condition(found, "Ready").get("status") == "True" else None


def condition(found: Object, kind: str) -> Object:
    """A condition of a resource; empty if there is none for the current spec."""
    status = found.get("status") or {}
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return {}
    return next((each for each in status.get("conditions") or () if each["type"] == kind), {})
