"""What `ottla --version` shows: the version first, then facts that belong into a bug report. [A]"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from ottla_core.compiled import in_use


def facts() -> Iterator[tuple[str, str]]:
    """Name and value, one line each. Add lines at the end: scripts read the first one."""
    yield "ottla", _version_of("ottla")
    yield "python", platform.python_version()
    for package in ("grpcio", "protobuf"):
        yield package, _version_of(package)
    yield "code", in_use()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
