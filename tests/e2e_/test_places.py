"""Who is asked for what, in which order, when the run takes place in kind or in somebody's cluster.

kind, docker, kubectl and helm are small programs on PATH that write down how they were called.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ottla_e2e.__main__ as program
from ottla_e2e import kube, places
from ottla_e2e.images import ROOT, TAG
from ottla_e2e.oci import architecture, write_archive
from ottla_e2e.say import Fault, say

_FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> "{folder}/called"
echo "$(basename "$0") $KUBECONFIG" >> "{folder}/kubeconfigs"
if grep -qsx "$(basename "$0") $1" "{folder}/fails"; then exit 1; fi
echo '{{"items": []}}'
"""


class Machine:
    """A PATH with nothing but fakes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        #: The environments in which the commands of the docs were run.
        self.documented: list[dict[str, str]] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("OTTLA_NODE_HOME", str(folder / "cache"))
        for name in ("E2E_CONTEXT", "E2E_LOAD", "E2E_REGISTRY", "E2E_KEEP", "E2E_ARCHIVE", "BASE"):
            monkeypatch.delenv(name, raising=False)

    def has(self, *names: str) -> Machine:
        for name in names:
            path = self.folder / name
            path.write_text(_FAKE.format(folder=self.folder))
            path.chmod(0o755)
        return self

    def fails(self, command: str) -> None:
        """A program and its first argument."""
        (self.folder / "fails").write_text(f"{command}\n")

    def called(self) -> list[str]:
        path = self.folder / "called"
        said = path.read_text() if path.exists() else ""
        return said.replace(str(self.folder / "cache"), "{cache}").replace(str(ROOT), "{root}").splitlines()

    def kubeconfigs(self) -> list[str]:
        """The programs and the kubeconfig of each call."""
        said = (self.folder / "kubeconfigs").read_text()
        return said.replace(str(self.folder / "cache"), "{cache}").splitlines()

    def runs(self, place: places.Place, scenario: Callable[[], None] = lambda: None) -> None:
        """The whole of `make e2e` but for images and what happens inside of Kubernetes."""

        class FakeImages:
            def __init__(self, cache: Path) -> None: ...

            def of_the_run(self) -> Path:
                return Path("/archive.tar")

        class FakeScenario:
            def __init__(self, *_: Any) -> None: ...

            def run(self) -> None:
                scenario()

        self._monkeypatch.setattr(program, "Images", FakeImages)
        self._monkeypatch.setattr(program, "Scenario", FakeScenario)
        self._monkeypatch.setattr(program.doc_commands, "run", self.documented.append)
        program.run(place)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def fault() -> None:
    raise Fault("a broker went for a walk")


# ------------------------------------------------------------------ kind

_DELETE = "kind delete cluster --kubeconfig {cache}/kind.kubeconfig --name ottla-e2e"
_KIND = [
    _DELETE,  # what an earlier run may have left
    "kind create cluster --config {root}/e2e/kind.yaml --kubeconfig {cache}/kind.kubeconfig --wait 120s"
    " --name ottla-e2e",
    "kind load image-archive /archive.tar --name ottla-e2e",
]


def test_kind_is_taken_when_docker_answers(machine: Machine) -> None:
    machine.has("kind", "docker", "kubectl")
    assert isinstance(places.choose(), places.Kind)
    assert machine.called() == ["docker info"]


def test_no_kind_without_a_docker_that_answers(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("kind", "docker", "kubectl").fails("docker info")
    monkeypatch.setattr(places, "OwnNode", lambda: "a node of our own")
    assert places.choose() == "a node of our own"


def test_kind_is_made_used_and_deleted(machine: Machine) -> None:
    machine.has("kind", "kubectl")
    machine.runs(places.Kind())
    assert machine.called() == [*_KIND, _DELETE]
    (environ,) = machine.documented
    assert environ["KUBECONFIG"] == str(machine.folder / "cache/kind.kubeconfig")


def test_kind_is_deleted_when_the_run_fails(machine: Machine) -> None:
    machine.has("kind", "kubectl")
    with pytest.raises(Fault, match="went for a walk"):
        machine.runs(places.Kind(), fault)
    called = machine.called()
    assert [line for line in called if line.startswith("kind ")] == [*_KIND, _DELETE]
    assert called[-1] == _DELETE
    asked = [line for line in called if line.startswith("kubectl ")]
    assert asked and all(line.startswith("kubectl --context kind-ottla-e2e ") for line in asked)
    used = {line for line in machine.kubeconfigs() if line.startswith("kubectl")}
    assert used == {"kubectl {cache}/kind.kubeconfig"}, "not the user's"


def test_kind_is_deleted_when_it_does_not_come_up(machine: Machine) -> None:
    machine.has("kind", "kubectl").fails("kind create")
    with pytest.raises(subprocess.CalledProcessError):
        machine.runs(places.Kind())
    assert machine.called() == [*_KIND[:2], _DELETE]


def test_kind_is_kept_for_inspection(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("kind", "kubectl")
    monkeypatch.setenv("E2E_KEEP", "1")
    machine.runs(places.Kind())
    assert machine.called() == _KIND


# ------------------------------------------------------------------ images


def test_images_are_one_path_on_standard_output(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`kind load image-archive "$(make -s images)"` takes it."""
    archive = tmp_path / "run.tar"
    write_archive(archive, [])

    class FakeImages:
        def __init__(self, cache: Path) -> None: ...

        def of_the_run(self) -> Path:
            say("building a layer")
            return archive

    monkeypatch.setattr(program, "Images", FakeImages)
    monkeypatch.setattr("sys.argv", ["ottla_e2e", "images"])
    assert program.main() == 0
    seen = capsys.readouterr()
    assert seen.out == f"{archive}\n" and "building a layer" in seen.err


def test_docker_builds_images_if_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("docker")
    monkeypatch.setenv("E2E_REGISTRY", "registry.example/team")
    monkeypatch.setenv("BASE", "registry.example/python:3.12")
    saved = machine.folder / "cache/images/archives/docker.tar"
    saved.parent.mkdir(parents=True)
    write_archive(saved, [])
    program.make_images("docker")
    base, python = "--build-arg=BASE=registry.example/python:3.12", "docker build -f docker/python.Dockerfile"
    name = f"registry.example/team/ottla-{{}}:{TAG}".format
    assert machine.called() == [
        f"{python} --build-arg=ROLE=broker {base} -t {name('broker')} .",
        f"{python} --build-arg=ROLE=operator {base} -t {name('operator')} .",
        f"docker build -f docker/spark.Dockerfile {base} -t {name('spark')} .",
        f"docker save -o {{cache}}/images/archives/docker.tar {name('broker')} {name('operator')} {name('spark')}",
    ]
    machine.fails("docker build")
    with pytest.raises(Fault, match="docker build failed"):
        program.make_images("docker")


# ------------------------------------------------------------------ a given context


class Cluster:
    """Answers kubectl and helm as far as `guest.py` asks; remembers what it was asked to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.crds: list[str] = []
        self.namespaces: list[str] = []
        self.resources: list[str] = []
        self.architectures = [architecture()]
        self.default_class = True
        self.done: list[str] = []
        monkeypatch.setattr(kube.Kube, "_run", lambda _, command, *rest: self._answer(list(command)))

    def _answer(self, command: list[str]) -> str:
        words = [
            word
            for word in command[1:]
            if not word.endswith("ontext") and word not in ("mine", "--namespace")
        ]
        words = words[1:] if words[0] == kube.NAMESPACE else words
        said = " ".join(words)
        if not said.startswith("get "):
            self.done.append(said)
            return ""
        if "customresourcedefinitions" in said:
            return "\n".join(f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in self.crds)
        if "get namespace " in said:
            return "\n".join(f"namespace/{name}" for name in self.namespaces)
        if "topics,consumergroups" in said:
            return "\n".join(self.resources)
        if "nodes" in said:
            return json.dumps(
                {"items": [{"status": {"nodeInfo": {"architecture": each}}} for each in self.architectures]}
            )
        mark = {"storageclass.kubernetes.io/is-default-class": str(self.default_class).lower()}
        return json.dumps({"items": [{"metadata": {"name": "local", "annotations": mark}}]})


@pytest.fixture
def cluster(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    machine.has("kubectl", "load")
    monkeypatch.setenv("E2E_CONTEXT", "mine")
    return Cluster(monkeypatch)


def test_a_given_context_comes_first(machine: Machine, cluster: Cluster) -> None:
    machine.has("kind", "docker")
    assert isinstance(places.choose(), places.Given)
    assert machine.called() == []


def test_images_are_loaded_by_the_given_command(
    machine: Machine, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2E_LOAD", "load --into 'my cluster'")
    machine.runs(places.choose())
    assert machine.called() == ["load --into my cluster /archive.tar"]
    assert machine.documented == [], "they would install Ottla for good"
    assert cluster.done == [], "a run that removed what it made has nothing to remove"


def test_a_cluster_that_has_ottla_is_left_alone(machine: Machine, cluster: Cluster) -> None:
    cluster.crds, cluster.namespaces = ["topics.ottla.dev"], ["ottla-e2e"]
    with pytest.raises(
        Fault, match=r"has topics\.ottla\.dev, namespace/ottla-e2e already, and the run would delete"
    ):
        machine.runs(places.choose())
    assert cluster.done == []


def test_what_cannot_work_is_said_at_once(machine: Machine, cluster: Cluster) -> None:
    cluster.default_class = False
    with pytest.raises(Fault, match="no default StorageClass"):
        machine.runs(places.choose())
    cluster.architectures = ["s390x"]
    with pytest.raises(Fault, match="and the nodes are s390x"):
        machine.runs(places.choose())


def test_a_run_that_fails_leaves_nothing_behind(machine: Machine, cluster: Cluster) -> None:
    def half_way() -> None:
        cluster.crds, cluster.namespaces = ["topics.ottla.dev"], ["ottla-e2e"]
        cluster.resources = ["topic.ottla.dev/orders"]
        fault()

    with pytest.raises(Fault, match="went for a walk"):
        machine.runs(places.choose(), half_way)
    done = [line for line in cluster.done if line.split()[0] not in ("describe", "logs")]
    assert [" ".join(line.split()[:2]) for line in done] == [
        "uninstall ottla",
        "patch topic.ottla.dev/orders",
        "delete -f",
        "delete namespace",
    ]
