"""Images as files: what a container runtime reads is what was put in."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from ottla_e2e.oci import Image, Program, names, pack, write_archive


def _blob(archive: tarfile.TarFile, digest: str) -> bytes:
    file = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert file is not None
    content = file.read()
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == digest
    return content


def _json(archive: tarfile.TarFile, digest: str) -> Any:
    return json.loads(_blob(archive, digest))


def test_a_layer_belongs_to_root_and_keeps_times_and_modes(tmp_path: Path) -> None:
    folder = tmp_path / "root"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin/hello"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    os.utime(program, (1_700_000_000.75, 1_700_000_000.75))
    (folder / "bin/hi").symlink_to("hello")
    layer = pack(folder, tmp_path / "layer.tar")
    assert layer.size == layer.path.stat().st_size
    with tarfile.open(layer.path) as archive:
        entries = {entry.name: entry for entry in archive}
    assert list(entries) == ["bin", "bin/hello", "bin/hi"]
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries.values()} == {(0, 0, "")}
    assert (entries["bin/hello"].mode, entries["bin/hello"].mtime) == (0o755, 1_700_000_000)
    assert entries["bin/hi"].linkname == "hello"


def test_an_archive_leads_from_its_name_to_its_layers(tmp_path: Path) -> None:
    layers = []
    for name in ("below", "above"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        layers.append(pack(tmp_path / name, tmp_path / f"{name}.tar"))
    path = tmp_path / "image.tar"
    program = Program(["thing"], {"PATH": "/bin", "A": "1"})
    # Layers that two images have are in the archive once.
    write_archive(
        path,
        [Image("localhost/thing:e2e", layers, program), Image("localhost/other:e2e", layers[:1], program)],
    )
    with tarfile.open(path) as archive:
        assert len(archive.getnames()) == len(set(archive.getnames()))
        index = archive.extractfile("index.json")
        assert index is not None
        described, other = json.load(index)["manifests"]
        assert other["annotations"]["io.containerd.image.name"] == "localhost/other:e2e"
        assert described["annotations"]["io.containerd.image.name"] == "localhost/thing:e2e"
        manifest = _json(archive, described["digest"])
        config = _json(archive, manifest["config"]["digest"])
        digests = [each["digest"] for each in manifest["layers"]]
        assert digests == [f"sha256:{each.sha256}" for each in layers]
        assert config["rootfs"]["diff_ids"] == digests  # nothing is compressed
        for each in manifest["layers"]:
            assert len(_blob(archive, each["digest"])) == each["size"]
        contents = archive.extractfile("manifest.json")
        assert contents is not None
        described = json.load(contents)[0]
        assert _json(archive, described["Config"].replace("blobs/sha256/", "sha256:")) == config
        assert [each.replace("blobs/sha256/", "sha256:") for each in described["Layers"]] == digests
    assert names(path) == ["localhost/thing:e2e", "localhost/other:e2e"]
    assert config["config"] == {"Entrypoint": ["thing"], "Env": ["PATH=/bin", "A=1"], "User": "10001:10001"}
