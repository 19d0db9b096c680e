"""The images of the Dockerfiles, built by Docker, under the names of `make images`, and in one archive. [A]

Without etcd and the programs of the end-to-end test: the chart's default for etcd is a public image.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ottla_e2e.images import ROOT, reference
from ottla_e2e.say import Fault, say

_BUILD_TIMEOUT_S = 3600.0


def build(archive: Path) -> Path:
    """Build and save all images; BASE in the environment replaces the base image of the Dockerfiles."""
    base = [f"--build-arg=BASE={os.environ['BASE']}"] if os.environ.get("BASE") else []
    names = []
    for name, arguments in (
        ("ottla-broker", ["-f", "docker/python.Dockerfile", "--build-arg=ROLE=broker"]),
        ("ottla-operator", ["-f", "docker/python.Dockerfile", "--build-arg=ROLE=operator"]),
        ("ottla-spark", ["-f", "docker/spark.Dockerfile"]),
    ):
        say(f"    docker builds {reference(name)}")
        _docker(["build", *arguments, *base, "-t", reference(name), "."])
        names.append(reference(name))
    archive.parent.mkdir(parents=True, exist_ok=True)
    _docker(["save", "-o", str(archive), *names])
    return archive


def _docker(arguments: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            ["docker", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise Fault("docker is not installed; without WITH=docker, images are built without it") from None
    if done.returncode:
        raise Fault(f"docker {arguments[0]} failed:\n{done.stderr[-2000:]}")
