"""A mapping of an image in the making. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Overlay(Generic[K, V]):
    """A mapping that is copied at its first real change, and stays the same object without one."""

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self._copy: dict[K, V] | None = None

    @property
    def result(self) -> Mapping[K, V]:
        return self._base if self._copy is None else self._copy

    def get(self, key: K) -> V | None:
        return self.result.get(key)

    def put(self, key: K, value: V) -> None:
        if self.result.get(key) != value:
            self._own()[key] = value

    def remove(self, key: K) -> None:
        if key in self.result:
            del self._own()[key]

    def _own(self) -> dict[K, V]:
        if self._copy is None:
            self._copy = dict(self._base)
        return self._copy
