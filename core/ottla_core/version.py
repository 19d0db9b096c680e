"""Versions of installed packages, for logs, metrics and `ottla --version`. [A]"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_of(package: str = "ottla") -> str:
    """`unknown` if it runs from a folder that was never installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
