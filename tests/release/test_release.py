"""What a release consists of: two wheels that share no file, a changelog section, one version, portable stubs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import compile as compiling
import release
from generate import versioned
from portable_stubs import portable

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_section_of_a_version_becomes_the_notes() -> None:
    changelog = (
        "## [Unreleased]\n- z\n\n## [1.2.0] - 2026-01-02\n### Added\n- x\n\n## [1.1.0] - 2025-01-01\n- y\n"
    )
    assert release.notes("1.2.0", changelog) == "### Added\n- x\n"
    assert release.notes("1.1.0", changelog) == "- y\n"
    for missing in ("1.3.0", "1.2"):
        with pytest.raises(ValueError, match="no section"):
            release.notes(missing, changelog)


def test_the_version_is_in_one_place() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = (ROOT / "charts/ottla/Chart.yaml").read_text()
    assert versioned(chart) == chart, "run `make gen`"
    assert yaml.safe_load(chart)["appVersion"] == version


def test_generated_code_asks_for_no_version() -> None:
    """What is committed went through `portable_stubs`, which does not change it again."""
    for path in (ROOT / "core/ottla_core/pb").glob("*_pb2*.py"):
        text = path.read_text()
        assert portable(text) == text, path.name
        for newer in ("_registered_method", "runtime_version", "first_version_is_lower"):
            assert newer not in text, path.name


@pytest.mark.integration
def test_the_client_runs_with_the_oldest_libraries_that_it_allows() -> None:
    """`make oldest-client`: its wheel, in an environment of its own, against a broker of this checkout."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [ROOT / "scripts/oldest_client.sh"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "room-0: 24 °C\n" in done.stdout and "0 ink\n1 paper\n" in done.stdout
    (oldest,) = re.findall(r"^grpcio +(\S+)$", done.stdout, re.MULTILINE)
    assert oldest.startswith("1.59."), "the bound of pyproject.toml"


@pytest.mark.integration
def test_the_two_wheels_share_no_file_and_the_client_runs_alone(tmp_path: Path) -> None:
    """Builds both; imports the client from its wheel, isolated from this checkout's packages."""
    client, rest, *compiled = release.wheels(tmp_path)
    files, others = (set(zipfile.ZipFile(wheel).namelist()) for wheel in (client, rest))
    assert not files & others
    assert {name.split("/")[0] for name in files if "dist-info" not in name} == {"ottla_core", "ottla_client"}
    assert "ottla_client/py.typed" in files and "ottla_core/pb/broker_pb2.py" in files
    assert "ottla_broker/process.py" in others and "ottla_client/producer.py" not in others
    metadata = {
        wheel: Parser().parsestr(
            zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("METADATA"))).decode()
        )
        for wheel, names in ((client, files), (rest, others))
    }
    version = metadata[client]["Version"]
    assert metadata[rest].get_all("Requires-Dist", [])[0] == f"ottla-client=={version}"
    assert "protobuf<8,>=4.25" in metadata[client].get_all("Requires-Dist", [])
    program = (
        f"import sys; sys.path[:] = [p for p in sys.path if not p.startswith({str(ROOT)!r}) or 'site-packages' in p];"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'ditable' not in repr(f)];"
        f"sys.path.insert(0, {str(client)!r});"
        "import ottla_client.sync, ottla_core; print(ottla_core.__file__);"
        "ottla_client.sync.Producer('127.0.0.1:1')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert str(client) in done.stdout
    assert len(compiled) == (compiling.lacking() is None), "one more where there is a compiler"
    for wheel in compiled:
        more = set(zipfile.ZipFile(wheel).namelist()) - files
        assert wheel.name.startswith(f"ottla_client-{version}-cp3") and not wheel.name.endswith("-any.whl")
        assert more and all(name.startswith("ottla_core/_compiled/") for name in more)
