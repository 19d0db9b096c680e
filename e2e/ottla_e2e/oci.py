"""Container images as plain files: layers from folders, archives from layers, no daemon and no registry. [A]

An archive is an OCI image layout in a tar, which `ctr images import` and `kind load image-archive` read, with the list
of contents beside it that `docker load` and skopeo look for. Layers are not compressed: as a rule they never leave this
machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
#: No user of any machine, and the one that the chart's pods run as.
_USER = "10001:10001"


@dataclass(frozen=True, slots=True)
class Layer:
    """A tar file and its digest, which names it in every image that has it."""

    path: Path
    sha256: str
    size: int

    @classmethod
    def of(cls, path: Path) -> Layer:
        with path.open("rb") as file:
            return cls(path, hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Program:
    """What runs when nobody says otherwise."""

    entrypoint: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    user: str = _USER


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    #: The lowest first.
    layers: Sequence[Layer]
    program: Program


def pack(folder: Path, layer: Path) -> Layer:
    """The folder as a layer. All belongs to root; times stay, because Python's bytecode refers to them."""

    def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = int(entry.mtime)
        return entry

    part = layer.with_suffix(".part")
    with tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(os.listdir(folder)):
            archive.add(folder / name, arcname=name, filter=owned_by_root)
    part.rename(layer)
    return Layer.of(layer)


def write_archive(path: Path, images: Sequence[Image]) -> None:
    """All these images in one archive, in which a layer that several have is there once."""
    index: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    layers: dict[str, Layer] = {}
    for image in images:
        config = _json(_config(image))
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, config),
                "layers": [
                    {"mediaType": _LAYER, "digest": f"sha256:{each.sha256}", "size": each.size}
                    for each in image.layers
                ],
            }
        )
        blobs |= {hashlib.sha256(blob).hexdigest(): blob for blob in (config, manifest)}
        layers |= {each.sha256: each for each in image.layers}
        names = {
            "io.containerd.image.name": image.name,
            "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
        }
        platform_ = {"architecture": architecture(), "os": "linux"}
        index.append(_descriptor(_MANIFEST, manifest) | {"platform": platform_, "annotations": names})
        contents.append(
            {
                "Config": _blob_path(hashlib.sha256(config).hexdigest()),
                "RepoTags": [image.name],
                "Layers": [_blob_path(each.sha256) for each in image.layers],
            }
        )
    part = path.with_suffix(".part")
    with tarfile.open(part, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json({"schemaVersion": 2, "manifests": index}))
        _add(archive, "manifest.json", _json(contents))
        for sha256, blob in blobs.items():
            _add(archive, _blob_path(sha256), blob)
        for sha256, layer in layers.items():
            archive.add(layer.path, arcname=_blob_path(sha256))
    part.rename(path)


def names(path: Path) -> list[str]:
    """Of the images in an archive."""
    with tarfile.open(path) as archive:
        file = archive.extractfile("manifest.json")
        assert file is not None
        return [name for image in json.load(file) for name in image["RepoTags"]]


def _config(image: Image) -> dict[str, Any]:
    env = {"PATH": os.defpath} | image.program.env
    return {
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": list(image.program.entrypoint),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "User": image.program.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each.sha256}" for each in image.layers]},
    }


def architecture() -> str:
    """Of this machine, as images and nodes name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {
        "mediaType": media_type,
        "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}",
        "size": len(blob),
    }


def _blob_path(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
