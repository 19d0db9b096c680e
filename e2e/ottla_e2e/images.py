"""The images of the run, each with a few layers, and where their content comes from. [A]

The layers below the project's own are built once and cached outside the checkout, under a hash of their content.
Python, Java and etcd are Debian's; libraries are copied from this virtual environment, so that pods run the versions
that the tests ran.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from ottla_e2e import debian, libraries, oci
from ottla_e2e.oci import Image, Layer, Program, pack, write_archive
from ottla_e2e.say import Fault, say

ROOT = Path(__file__).resolve().parents[2]
#: That of `make e2e`; a release has its version.
TAG = os.environ.get("E2E_TAG") or "e2e"
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
#: Where Debian's Python looks for libraries that are not Debian packages.
_LIBRARIES = f"usr/local/lib/{_PYTHON}/dist-packages"
_SPARK_HOME = f"/{_LIBRARIES}/pyspark"
_SPARK_POD = Program(
    ["python3", "/usr/local/bin/spark-pod"],
    env={
        "JAVA_HOME": "/usr/lib/jvm/java-17-openjdk-amd64",
        "SPARK_HOME": _SPARK_HOME,
        "PYSPARK_PYTHON": "/usr/bin/python3",
        "PATH": f"{_SPARK_HOME}/bin:/usr/bin:/bin",
    },
)


def reference(name: str) -> str:
    """The image name that pods use. Only a cluster that pulls images needs another registry."""
    return f"{os.environ.get('E2E_REGISTRY') or 'localhost'}/{name}:{TAG}"


def pull_policy() -> str:
    """Images in a registry have the same name in every run, so a node must pull them each time."""
    return "Always" if os.environ.get("E2E_REGISTRY") else "IfNotPresent"


class Images:
    """Builds archives in `cache`; existing layers are not built again."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._layers = cache / "layers"
        self._archives = cache / "archives"
        for folder in (self._layers, self._archives):
            folder.mkdir(parents=True, exist_ok=True)

    def of_the_node(self, programs: Path) -> Path:
        """Images that a local node needs for itself; `programs` has the binaries."""
        made = [
            Image(
                f"localhost/{name}:1",
                [self._files(name, {name: programs / name})],
                Program([f"/{name}"], user="0:0"),
            )
            for name in ("pause", "coredns", "local-path-provisioner")
        ]
        shell = self._debian("busybox", ["busybox-static"])
        made.append(Image("localhost/busybox:1", [shell], Program(["sh"], user="0:0")))
        return self._archive("node", made)

    def of_the_run(self) -> Path:
        """Broker, operator, etcd, Spark, a Spark without the package ottla, and a stock Kafka client."""
        python = self._debian("python", [_PYTHON, "python3", "libstdc++6", "busybox-static"])
        etcd = self._debian("etcd", ["etcd-server", "etcd-client", "busybox-static"])
        broker = self._libraries("broker", [*_requirements(), *_requirements("broker")])
        operator = self._libraries("operator", [*_requirements(), *_requirements("operator")])
        client = self._libraries("client", ["confluent-kafka"])
        spark = [
            python,
            self._debian("java", ["openjdk-17-jre-headless", "bash"]),
            self._libraries("spark", [*_requirements(), *_requirements("spark")]),
            self._jobs(),
        ]
        project = self._project()
        made = [
            Image(reference("ottla-broker"), [python, broker, project], _module("ottla_broker")),
            Image(reference("ottla-operator"), [python, operator, project], _module("ottla_operator")),
            Image(reference("etcd"), [etcd], Program(["etcd"])),
            Image(reference("kafka-client"), [python, client], Program(["sleep", "infinity"])),
            Image(reference("ottla-spark"), [*spark, project], _SPARK_POD),
            Image(reference("bare-spark"), spark, _SPARK_POD),
        ]
        self._forget_old()
        return self._archive("run", made)

    # ------------------------------------------------------------------ layers

    def _layer(self, name: str, content: str, fill: Callable[[Path], None]) -> Layer:
        """The layer `name` whose content is described by `content`: from the cache, or new."""
        path = self._layers / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}.tar"
        if not path.exists():
            say(f"    building the layer {name}")
            with tempfile.TemporaryDirectory(dir=self._cache, prefix=f"{name}-") as folder:
                root = Path(folder)
                root.chmod(0o755)
                fill(root)
                pack(root, path)
        path.touch()
        return Layer.of(path)

    def _debian(self, name: str, packages: Sequence[str]) -> Layer:
        scratch = self._cache / "apt"
        found = debian.closure(packages, scratch)

        content = "\n".join([_recipe(debian), *(each.file for each in found)])
        layer = self._layer(name, content, lambda root: debian.unpack(packages, found, root, scratch))
        shutil.rmtree(scratch, ignore_errors=True)
        return layer

    def _libraries(self, name: str, requirements: Sequence[str]) -> Layer:
        found = libraries.closure(requirements)
        content = "\n".join(
            [_recipe(libraries), _PYTHON, *(f"{each.name}=={each.version}" for each in found)]
        )

        def fill(root: Path) -> None:
            libraries.copy(found, root / _LIBRARIES)

        return self._layer(f"{name}-libraries", content, fill)

    def _project(self) -> Layer:
        with tempfile.TemporaryDirectory(dir=self._cache, prefix="wheel-") as folder:
            _run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "wheel",
                    "--quiet",
                    "--no-deps",
                    # hatchling and mypyc of this virtual environment.
                    "--no-build-isolation",
                    "--wheel-dir",
                    folder,
                    str(ROOT),
                ],
                # Images without compiled modules only for OTTLA_PURE=1 (scripts/build_hook.py).
                environ={"OTTLA_COMPILED": "1"},
            )
            (wheel,) = Path(folder).glob("*.whl")
            content = hashlib.sha256(wheel.read_bytes()).hexdigest()
            return self._layer("project", content, lambda root: _install(wheel, root / _LIBRARIES))

    def _files(self, name: str, files: dict[str, Path]) -> Layer:
        def fill(root: Path) -> None:
            for target, source in files.items():
                (root / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, root / target)
                (root / target).chmod(0o755)

        digests = [
            f"{target} {hashlib.sha256(source.read_bytes()).hexdigest()}" for target, source in files.items()
        ]
        return self._layer(name, "\n".join(digests), fill)

    def _jobs(self) -> Layer:
        jobs = {f"opt/jobs/{each.name}": each for each in sorted((ROOT / "spark/jobs").glob("*.py"))}
        return self._files(
            "jobs", jobs | {"usr/local/bin/spark-pod": Path(__file__).parent / "pods/spark_pod.py"}
        )

    def _archive(self, name: str, images: Sequence[Image]) -> Path:
        path = self._archives / f"{name}.tar"
        write_archive(path, images)
        return path

    def _forget_old(self) -> None:
        """Keep the last two versions of each layer: this checkout's, and that of another one."""
        made: dict[str, list[Path]] = {}
        for path in sorted(self._layers.glob("*.tar"), key=lambda each: -each.stat().st_mtime):
            made.setdefault(path.stem.rpartition("-")[0], []).append(path)
        for paths in made.values():
            for path in paths[2:]:
                path.unlink()


def _module(name: str) -> Program:
    return Program(["python3", "-m", name], env={"PYTHONUNBUFFERED": "1"})


def _requirements(extra: str | None = None) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return found


def _recipe(maker: ModuleType) -> str:
    """Identifies how a layer is built: a changed recipe gives a new layer."""
    return "".join(Path(str(each)).read_text() for each in (maker.__file__, oci.__file__))


def _install(wheel: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    _run([*pip, "--target", str(target), str(wheel)])


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, **(environ or {})},
    )
    if done.returncode:
        raise Fault(f"{' '.join(command[:5])} … failed:\n{done.stderr[-2000:]}")
    return done.stdout
