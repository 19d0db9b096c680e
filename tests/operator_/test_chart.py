"""The chart: lints, renders, asks for no more rights than needed."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from operator_.bodies import ROOT, SAMPLES, cluster
from operator_.kube_models import MODELS, judge
from ottla_operator import etcd_resources
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.crds import all_crds
from ottla_operator.external_etcd import ExternalEtcd
from ottla_operator.network_policy import policies
from ottla_operator.pod_parts import Images
from ottla_operator.settings import Settings
from ottla_operator.specs import Meta

CHART = ROOT / "charts/ottla"
HELM = Path(sys.executable).parent / "helm"
SETS = {
    "plain": [],
    "full": [
        "cluster.enabled=true",
        "alerts.enabled=true",
        "dashboards.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        "images.registry=registry.example/x",
        "operator.podAnnotations.a=b",
        "operator.priorityClassName=high",
        "images.pullSecrets[0].name=login",
        "images.pullSecrets[1].name=other",
    ],
    "external etcd": [
        "cluster.enabled=true",
        "cluster.spec.etcd.endpoints={etcd-0.etcd:2379,etcd-1.etcd:2379}",
        "cluster.spec.etcd.tls.ca.secretName=roots",
        "cluster.spec.etcd.tls.certificate.secretName=etcd-client",
        "cluster.spec.etcd.login.secretName=etcd-login",
    ],
    "backup": [
        "cluster.enabled=true",
        "etcdBackup.enabled=true",
        "cluster.spec.etcd.endpoints={etcd-0.etcd:2379}",
        "cluster.spec.etcd.tls.ca.secretName=roots",
        "cluster.spec.etcd.tls.certificate.secretName=etcd-client",
        "cluster.spec.etcd.login.secretName=etcd-login",
    ],
    "restore": [
        "cluster.enabled=true",
        "etcdRestore.snapshot=/backups/etcd-20260102T031700Z.db",
        "etcdRestore.members=3",
    ],
    "namespaced": ["operator.watchNamespaces={shop,bank}", "cluster.enabled=true", "images.pullPolicy=Never"],
}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60, check=False)


def render(*values: str) -> list[dict[str, Any]]:
    done = helm("template", "demo", str(CHART), "-n", "shop", *(f"--set={value}" for value in values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def crd_schema(kind: str) -> dict[str, Any]:
    crd = next(each for each in all_crds() if each["spec"]["names"]["kind"] == kind)
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def closed(schema: Any) -> Any:
    """As `kubectl apply` checks by default: unknown fields are errors."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict):
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    return made


def check(document: dict[str, Any]) -> None:
    if document["apiVersion"].startswith("ottla.dev/"):
        jsonschema.validate(document, closed(crd_schema(document["kind"])))
    elif (document["apiVersion"], document["kind"]) in MODELS:
        judge(document)
    else:
        assert document["apiVersion"] == "monitoring.coreos.com/v1"


def test_lint() -> None:
    done = helm("lint", "--strict", str(CHART), "--set", "cluster.enabled=true")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SETS)
def test_everything_rendered_is_valid(name: str) -> None:
    documents = render(*SETS[name])
    for each in documents:
        check(each)
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in documents
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "value", ["operator.typo=1", "images.pullPolicy=Sometimes", "cluster.name=Not_A_Name"]
)
def test_wrong_values_are_refused(value: str) -> None:
    done = helm("template", "demo", str(CHART), "--set", value)
    assert done.returncode != 0 and "values don't meet the specifications" in done.stderr


def test_the_samples_are_valid() -> None:
    for path in sorted(SAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            check(document)


def test_the_optional_cluster() -> None:
    assert not [each for each in render() if each["kind"] == "Cluster"]
    found = next(each for each in render(*SETS["namespaced"]) if each["kind"] == "Cluster")
    assert found["spec"]["brokers"] == 3
    assert found["spec"]["imagePullPolicy"] == "Never"


@pytest.mark.parametrize(
    ("given", "members"),
    [
        ([], 3),
        (["cluster.spec.brokers=5"], 3),
        (["cluster.spec.brokers=1"], 1),
        (["cluster.spec.etcd.managed.replicas=1"], 1),
        (["cluster.spec.etcd.managed.resources.limits.memory=64Mi"], 3),
    ],
    ids=str,
)
def test_three_brokers_have_three_etcd_members(given: list[str], members: int) -> None:
    found = next(each for each in render("cluster.enabled=true", *given) if each["kind"] == "Cluster")
    check(found)
    assert found["spec"]["etcd"]["managed"]["replicas"] == members


def test_names_outside_of_namespaces_have_the_namespace_in_them() -> None:
    """The same release name in another namespace would meet them, also after its namespace was deleted."""
    names = {each["metadata"]["name"] for each in render() if each["kind"].startswith("ClusterRole")}
    assert names == {"shop-demo-ottla-operator"}


def test_a_cluster_outside_the_watched_namespaces_is_refused() -> None:
    given = ["cluster.enabled=true", "operator.watchNamespaces={shop,bank}"]
    done = helm("template", "demo", str(CHART), "-n", "elsewhere", *(f"--set={value}" for value in given))
    assert (
        done.returncode != 0
        and "namespace elsewhere, but operator.watchNamespaces does not list it" in done.stderr
    )


def test_an_etcd_of_yours() -> None:
    """Nothing of the chart's own values may stand beside it: the API server would refuse the two together."""
    found = next(each for each in render(*SETS["external etcd"]) if each["kind"] == "Cluster")
    assert found["spec"]["etcd"] == {
        "endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"],
        "tls": {"ca": {"secretName": "roots"}, "certificate": {"secretName": "etcd-client"}},
        "login": {"secretName": "etcd-login"},
    }


def test_pull_secrets_are_for_all_pods() -> None:
    deployment = next(each for each in render(*SETS["full"]) if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "login"}, {"name": "other"}]
    environ = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    assert Settings.of(environ).images.pull_secrets == ("login", "other")


def test_two_operators_never_run_at_once() -> None:
    found = next(each for each in render() if each["kind"] == "Deployment")
    assert (found["spec"]["replicas"], found["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_rights_are_few() -> None:
    role = next(each for each in render() if each["kind"] == "ClusterRole")
    for rule in role["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert "secrets" not in rule["resources"] or rule["verbs"] == ["create"], "it reads no Secret"
        assert "update" not in rule["verbs"], "server-side apply patches"
    scaled = {"deployments/scale", "statefulsets/scale"}
    assert [r["verbs"] for r in role["rules"] if scaled & {*r["resources"]}] == [["get", "patch"]]
    assert not any("deployments" in rule["resources"] for rule in role["rules"]), "only their replicas"
    without = next(e for e in render("operator.scaleConsumers=false") if e["kind"] == "ClusterRole")
    assert not any(scaled & {*rule["resources"]} for rule in without["rules"])
    kinds = {each["kind"] for each in render(*SETS["namespaced"])}
    assert "Role" in kinds and not {"ClusterRole", "ClusterRoleBinding"} & kinds


@pytest.mark.parametrize("name", ["plain", "namespaced"])
def test_nodes_are_listed_only_if_allowed(name: str) -> None:
    rules = [
        rule
        for each in render(*SETS[name], "operator.nodes=true")
        if each["kind"] == "ClusterRole" and each["metadata"]["name"].endswith("-nodes")
        for rule in each["rules"]
    ]
    assert rules == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    assert not any(
        "nodes" in rule["resources"] for each in render(*SETS[name]) for rule in each.get("rules", ())
    )


def test_generated_files_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "manifests/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run `make gen`"


def test_crds_are_what_kubernetes_takes() -> None:
    for crd in all_crds():
        judge(crd)
        _structural(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], crd["spec"]["names"]["kind"])


def _structural(schema: dict[str, Any], where: str) -> None:
    """Kubernetes' rules for structural schemas, as far as ours could break them."""
    assert "type" in schema or schema.get("x-kubernetes-int-or-string"), where
    assert not ("properties" in schema and "additionalProperties" in schema), where
    assert not {"$ref", "definitions", "uniqueItems"} & set(schema), where
    for name, each in schema.get("properties", {}).items():
        _structural(each, f"{where}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            _structural(schema[key], f"{where}.{key}")
    if schema.get("type") == "array":
        assert "maxItems" in schema, f"{where}: a list without a bound"


def test_backups_of_etcd_use_the_settings_and_credentials_of_the_brokers() -> None:
    objects = {each["kind"]: each for each in render(*SETS["backup"])}
    pod = objects["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    etcd = ExternalEtcd.of(objects["Cluster"]["spec"]["etcd"])
    assert etcd is not None
    (wanted,), (mount,) = etcd.volumes(), etcd.mounts()
    (made,) = [each for each in pod["volumes"] if "projected" in each]

    def files(volume: dict[str, Any]) -> set[tuple[str, str, str]]:
        secrets = [source["secret"] for source in volume["projected"]["sources"]]
        return {(secret["name"], item["key"], item["path"]) for secret in secrets for item in secret["items"]}

    assert files(made) == files(wanted) and len(files(made)) == 4
    assert made["projected"]["defaultMode"] == wanted["projected"]["defaultMode"]
    assert mount["mountPath"] in [each["mountPath"] for each in container["volumeMounts"]]
    assert all(each in container["env"] for each in etcd.env())
    assert {"name": "config", "configMap": {"name": "main-config"}} in pod["volumes"]
    claim = objects["PersistentVolumeClaim"]["metadata"]
    assert claim["annotations"]["helm.sh/resource-policy"] == "keep"
    assert {"persistentVolumeClaim": {"claimName": claim["name"]}, "name": "backups"} in pod["volumes"]


def test_a_backup_reaches_the_managed_etcd() -> None:
    body = cluster(networkPolicy={"enabled": True})
    _, etcd = policies(Meta.of(body), ClusterSpec.of(body).access, etcd=True)
    chart = render("cluster.enabled=true", "etcdBackup.enabled=true")
    (job,) = [each for each in chart if each["kind"] == "CronJob"]
    labels = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert job["metadata"]["name"] == "main-etcd-backup"
    admitted = [
        peer["podSelector"]["matchLabels"]
        for rule in etcd["spec"]["ingress"]
        if {"protocol": "TCP", "port": 2379} in rule["ports"]
        for peer in rule["from"]
    ]
    assert any(wanted.items() <= labels.items() for wanted in admitted), admitted
    assert "ottla.dev/cluster" not in labels, "a failed backup is no trouble of the brokers"


def test_a_restored_member_is_the_one_that_the_operator_starts() -> None:
    """Otherwise etcd ignores the restored data or refuses it: same folder, name, members and token."""
    chart = render(*SETS["restore"])
    (declared,) = [each for each in chart if each["kind"] == "Cluster"]
    declared["metadata"] = {**cluster()["metadata"], "name": "main", "namespace": "shop"}
    spec, meta = ClusterSpec.of(declared), Meta.of(declared)
    (started,) = [
        each
        for each in etcd_resources.objects_of(meta, spec, Images("broker:1", "etcd:1"))
        if each["kind"] == "StatefulSet"
    ]
    (etcd,) = started["spec"]["template"]["spec"]["containers"]
    environ = {each["name"]: each.get("value", "") for each in etcd["env"]}
    (claim,) = [each["metadata"]["name"] for each in started["spec"]["volumeClaimTemplates"]]
    jobs = [each for each in chart if each["metadata"]["name"].endswith("-restore")]
    assert len(jobs) == started["spec"]["replicas"] == 3
    for number, job in enumerate(jobs):
        member = f"main-etcd-{number}"
        pod = job["spec"]["template"]["spec"]
        (restore,) = pod["containers"]
        flags = dict(flag.removeprefix("--").split("=", 1) for flag in restore["args"])
        assert flags == {
            "data-dir": environ["ETCD_DATA_DIR"],
            "name": member,
            "initial-cluster": environ["ETCD_INITIAL_CLUSTER"],
            "initial-cluster-token": environ["ETCD_INITIAL_CLUSTER_TOKEN"],
            "initial-advertise-peer-urls": environ["ETCD_INITIAL_ADVERTISE_PEER_URLS"].replace(
                "$(POD_NAME)", member
            ),
        }
        assert f"{claim}-{member}" in [
            volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]
        ]
        mounts = {each["name"]: each["mountPath"] for each in restore["volumeMounts"]}
        assert mounts["data"] in [each["mountPath"] for each in etcd["volumeMounts"]]


def test_a_restore_leaves_a_running_etcd_alone(tmp_path: Path) -> None:
    """`helm install` and GitOps tools render the Jobs too, and again."""
    chart = render(*SETS["restore"])
    pod = next(each for each in chart if each["kind"] == "Job")["spec"]["template"]["spec"]
    (empty,) = pod["initContainers"]
    (flag,) = [each for each in pod["containers"][0]["args"] if each.startswith("--data-dir=")]
    folder = tmp_path / Path(flag.removeprefix("--data-dir=")).relative_to("/var/lib/etcd/0")
    (folder / "member/snap").mkdir(parents=True)
    snapshot = tmp_path / "snapshot.db"
    snapshot.touch()
    script = empty["args"][0].replace("/var/lib/etcd/0", str(tmp_path))
    with (folder / "member/snap/db").open("wb") as held:  # as bbolt does
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run_python(script, snapshot)
        assert done.returncode == 1 and "etcd still runs on this volume" in done.stderr
        assert folder.exists()
    assert run_python(script, snapshot).returncode == 0
    assert not folder.exists()
    assert run_python(script, snapshot).returncode == 0, "a second attempt finds nothing to delete"


def run_python(script: str, argument: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(argument)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_restore_does_not_guess_the_number_of_members() -> None:
    """`helm template` cannot ask for it, and members of a wrong number would have no quorum."""
    snapshot = "etcdRestore.snapshot=/backups/x.db"
    done = helm("template", "demo", str(CHART), "--set", snapshot)
    assert done.returncode != 0 and "Set etcdRestore.members" in done.stderr
    declared = render(snapshot, "cluster.spec.etcd.managed.replicas=1")
    assert [each["metadata"]["name"] for each in declared if each["kind"] == "Job"] == ["main-etcd-0-restore"]


def test_a_claim_of_backups_can_be_one_that_all_nodes_mount() -> None:
    chart = render("etcdBackup.enabled=true", "etcdBackup.accessModes={ReadWriteMany}")
    (claim,) = [each for each in chart if each["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_restore_is_never_part_of_an_upgrade() -> None:
    done = helm("template", "demo", str(CHART), "--is-upgrade", "--set", "etcdRestore.snapshot=/backups/x.db")
    assert done.returncode != 0 and "etcdRestore is for `helm template`" in done.stderr
