"""Randomness, passed in: ids, jitter and random starts come from one seedable source."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID


class Chance(Protocol):
    def uuid(self) -> UUID:
        """A random version-4 UUID, never one that Kafka reserves (all zero, or 0…1)."""

    def below(self, limit: int) -> int:
        """A whole number in [0, limit)."""

    def fraction(self) -> float:
        """A number in [0, 1), for jitter."""
