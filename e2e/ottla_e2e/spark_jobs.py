"""A step of the scenario: jobs submitted in cluster mode, with the files of manifests/spark, as docs/spark.md says. [A]

The activity pipeline counts right; the archive job continues after its driver was deleted and has each record once; an
executor whose image lacks the package says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ottla_e2e import objects
from ottla_e2e.images import ROOT, pull_policy, reference
from ottla_e2e.kube import Kube, ready
from ottla_e2e.objects import GRPC
from ottla_e2e.say import Fault, say

_EVENTS, _SPAN_S = 20_000, 180
#: For one node with two cores that also runs brokers.
_SMALL = {
    "spark.kubernetes.driver.request.cores": "100m",
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.kubernetes.container.image.pullPolicy": pull_policy(),
    "spark.task.maxFailures": "1",
}
_METRICS = (
    "from urllib.request import urlopen; print(urlopen('http://localhost:4040/metrics/{}').read().decode())"
)


def run(kube: Kube) -> None:
    topics = {"events": 4, "page-counts": 1}
    kube.apply(*(objects.topic(name, partitions) for name, partitions in topics.items()), *objects.spark())
    for name in topics:
        _until_ready(kube, name)
    _generate(kube, seed=1)
    _count_activity(kube)
    _archive(kube)
    _explain_a_bare_executor(kube)


def _until_ready(kube: Kube, topic: str) -> None:
    kube.until(f"topic {topic} is Ready", lambda: ready(kube.get("topic", topic)), timeout_s=120)


def _generate(kube: Kube, seed: int) -> None:
    command = ["python3", "/opt/jobs/generate.py", "--bootstrap-servers", GRPC, "--topic", "events"]
    command += ["--seed", str(seed), "--events", str(_EVENTS), "--span-s", str(_SPAN_S)]
    _job(kube, f"generate-{seed}", command)


def _count_activity(kube: Kube) -> None:
    activity = ["--events", "events", "--results", "page-counts", "--parquet", "/data/page-counts"]
    activity += ["--checkpoint", "/data/checkpoints/activity", "--available-now"]
    _submit(kube, "activity", "activity.py", activity)
    pods = kube.until("two executors run", lambda: _executors(kube, "activity"), timeout_s=300)
    say(f"    executors: {', '.join(pods) or 'none'}")
    _must(_ended(kube, "activity") == "Succeeded", "the job activity to succeed")
    check = ["python3", "/programs/check_activity.py", "--bootstrap", GRPC, "--topic", "page-counts"]
    check += ["--parquet", "/data/page-counts", "--events", str(_EVENTS), "--span-s", str(_SPAN_S)]
    seen = _job(kube, "check-activity", check)
    _must(seen["parquet_right"] and seen["topic_right"], f"the same counts as by hand: {seen}")
    say(f"    {seen['windows']} counts of {seen['events']:,} events, right in the topic and in Parquet")


def _archive(kube: Kube) -> None:
    """Its driver is deleted while it waits for more; a second run with the same checkpoint has the rest."""
    archive = [
        "--topics",
        "events",
        "--parquet",
        "/data/archive",
        "--checkpoint",
        "/data/checkpoints/archive",
    ]
    _submit(kube, "archive", "archive.py", [*archive, "--max-offsets", "5000", "--trigger", "2 seconds"])
    look = "import os; print(os.path.exists('/data/archive/_spark_metadata/0'))"
    kube.until(
        "the archive has its first files",
        lambda: "True" in kube.run("exec", "archive-driver", "--", "python3", "-c", look) or None,
        timeout_s=300,
    )
    for path, wanted in (
        ("prometheus", "_driver_spark_streaming_archive_"),
        ("executors/prometheus", "executor_"),
    ):
        text = kube.run("exec", "archive-driver", "--", "python3", "-c", _METRICS.format(path))
        _must(wanted in text, f"metrics with {wanted}, not {text[:500]}")
    kube.run("delete", "pod", "archive-driver", "--grace-period=1", "--timeout=60s")
    say("    the archive's driver was deleted")
    _generate(kube, seed=2)
    _submit(kube, "archive", "archive.py", [*archive, "--available-now"])
    _must(_ended(kube, "archive") == "Succeeded", "the job archive to succeed")
    check = ["python3", "/programs/check_archive.py", "--bootstrap", GRPC, "--topic", "events"]
    seen = _job(kube, "check-archive", [*check, "--parquet", "/data/archive"])
    _must(seen["rows"] == seen["records"] == seen["different"], f"each record once in the archive: {seen}")
    say(f"    {seen['rows']:,} records in the archive, each once")


def _explain_a_bare_executor(kube: Kube) -> None:
    archive = ["--topics", "events", "--parquet", "/data/bare", "--checkpoint", "/data/bare-checkpoint"]
    bare = {"spark.kubernetes.executor.container.image": reference("bare-spark")}
    _submit(kube, "bare", "archive.py", [*archive, "--available-now"], bare)
    _must(_ended(kube, "bare") == "Failed", "the job bare to fail")
    sentence = "install ottla[spark] there (in the executors' image)"
    lines = [line for line in kube.run("logs", "bare-driver").splitlines() if sentence in line]
    _must(bool(lines), f"an error that says: {sentence}")
    say(f"    {lines[0].strip()[:200]}")


# ---------------------------------------------------------------------- helpers


def _submit(
    kube: Kube, name: str, program: str, arguments: Sequence[str], settings: dict[str, str] | None = None
) -> None:
    own = {
        "spark.kubernetes.driver.pod.name": f"{name}-driver",
        "spark.kubernetes.container.image": reference("ottla-spark"),
        **_SMALL,
        **(settings or {}),
    }
    flags = [part for key, value in own.items() for part in ("--conf", f"{key}={value}")]
    kube.spark_submit(
        "--name", name, "--properties-file", "manifests/spark/spark.conf", *flags,
        f"local:///opt/jobs/{program}", "--bootstrap-servers", GRPC, *arguments, folder=ROOT,
    )  # fmt: skip


def _phase(kube: Kube, name: str) -> str:
    found: str = kube.get("pod", f"{name}-driver")["status"]["phase"]
    return found


def _ended(kube: Kube, name: str) -> str:
    def over() -> str | None:
        phase = _phase(kube, name)
        return phase if phase in ("Succeeded", "Failed") else None

    return kube.until(f"the end of the job {name}", over, timeout_s=600)


def _executors(kube: Kube, name: str) -> list[str] | None:
    """Two pods, or none if the job has ended."""
    if _phase(kube, name) in ("Succeeded", "Failed"):
        return []
    pods = kube.list("pods", "-l", "spark-role=executor")
    running = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Running", "Succeeded")]
    return running if len(running) == 2 else None


def _job(kube: Kube, name: str, command: list[str]) -> Any:
    """Run a program in a pod until it succeeds; the last line that it prints, if that is JSON."""
    kube.apply(objects.job(name, command))

    def outcome() -> bool | None:
        status = kube.get("job", name).get("status", {})
        found = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
        return True if "Complete" in found else False if "Failed" in found else None

    _must(kube.until(f"the end of the job {name}", outcome, timeout_s=600), f"the job {name} to succeed")
    last = kube.run("logs", f"job/{name}").strip().splitlines()[-1]
    return json.loads(last) if last.startswith("{") else last


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise Fault(f"expected: {what}")
