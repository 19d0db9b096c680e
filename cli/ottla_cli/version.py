"""What `ottla --version` shows: the version first, then facts that belong into a bug report. [A]"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from ottla_core.compiled import in_use
from ottla_core.version import version_of


def facts() -> Iterator[tuple[str, str]]:
    """Name and value, one line each. Add lines at the end: scripts read the first one."""
    yield "ottla", version_of()
    yield "python", platform.python_version()
    for package in ("grpcio", "protobuf"):
        yield package, version_of(package)
    yield "code", in_use()
