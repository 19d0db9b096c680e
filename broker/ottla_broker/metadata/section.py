"""A section of the metadata store: one kind of metadata, with its keys and the format of its values. [P]

A `Family` has one key per object (`brokers/<id>`), a `Single` has one key in all (`controller`). Each kind is one
file in `sections/`; the fields of `ClusterImage` name the section that they show, and `table.py` derives the
table of all sections from that. So loading, watching and recovering need no code per kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from ottla_broker.metadata.values import BadValue
from ottla_core.ports.store import Entry

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Family(Generic[K, V]):
    """Keys `<prefix><id>`; in the image a mapping from id to value."""

    prefix: str
    id_text: Callable[[K], str]
    #: Raises BadValue.
    id_from_text: Callable[[str], K]
    encode: Callable[[V], bytes]
    #: Raises BadValue.
    decode: Callable[[Entry], V]
    #: What `ottla cluster recover` makes of a value; None leaves it as the backup has it.
    after_loss: Callable[[V], V] | None = None

    def key(self, id_: K) -> str:
        return self.prefix + self.id_text(id_)

    def owns(self, key: str) -> bool:
        return key.startswith(self.prefix)

    def id_of(self, key: str) -> K:
        try:
            return self.id_from_text(key[len(self.prefix) :])
        except BadValue as error:
            raise BadValue(f"{key}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Single(Generic[V]):
    """One key; in the image one or several fields."""

    key: str
    encode: Callable[[V], bytes]
    #: Raises BadValue.
    decode: Callable[[Entry], V]
    after_loss: Callable[[V], V] | None = None
    #: The image keeps its value when the key is gone: only a lost history removes it (`history.py`).
    permanent: bool = False

    @property
    def prefix(self) -> str:
        return self.key

    def owns(self, key: str) -> bool:
        return key == self.key

    def id_of(self, key: str) -> str:
        return key


Section: TypeAlias = Family[Any, Any] | Single[Any]
