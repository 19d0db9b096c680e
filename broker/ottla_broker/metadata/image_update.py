"""The next image from a revision of the metadata store. [P]

    updated(image, revision) -> (image, problems)     one watched revision
    difference(image, snapshot) -> Revision           a whole re-read, as the changes it amounts to

What did not change is the same object in both images, so subscribers find changes by identity, and one
change among ten thousand partitions costs the copy of one topic's tuple and of a dict of topics. A value
that cannot be read is a problem to report, never a reason to stop: the former state stays, and its revision
fences every write based on it. `table.py` says how each kind of key is read and where the image shows it; a key of
a kind that this version does not know is skipped.

Called by `watcher.py` only. It must never look at the clock or decide what should be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metadata.overlay import Overlay
from ottla_broker.metadata.section import Family, Section
from ottla_broker.metadata.sections.partitions import PARTITIONS
from ottla_broker.metadata.sections.topics import TOPICS
from ottla_broker.metadata.table import TABLE, Shown, section_of
from ottla_broker.metadata.topic_update import TopicDraft, topic_revisions
from ottla_broker.metadata.values import BadValue
from ottla_core.ports.store import Changed, Removed, Revision, Snapshot

#: Sections that the image joins: they change together.
_JOINED: tuple[Section, ...] = (PARTITIONS, TOPICS)


class Update(NamedTuple):
    image: ClusterImage
    #: One sentence per key that could not be read.
    problems: tuple[str, ...]


class _Draft(Protocol):
    """The changes of one section, or of the joined ones."""

    def put(self, section: Section, id_: Any, value: Any) -> None: ...

    def remove(self, section: Section, id_: Any) -> None: ...

    def fields(self) -> Mapping[str, object]:
        """The new values of image fields."""


def updated(image: ClusterImage, revision: Revision) -> Update:
    """The image after all changes of one revision."""
    drafts: dict[Section, _Draft] = {}
    problems = []
    section: Section | None = None
    for change in revision.changes:
        key = change.entry.key if isinstance(change, Changed) else change.key
        # Most changes are of the section of the one before: a thousand elections, a whole load.
        if section is None or not section.owns(key):
            section = section_of(key)
            if section is None:
                continue
            draft = drafts.get(section) or _begin(drafts, section, image)
        try:
            if isinstance(change, Changed):
                draft.put(section, section.id_of(key), section.decode(change.entry))
            else:
                draft.remove(section, section.id_of(key))
        except BadValue as error:
            problems.append(str(error))
    fields: dict[str, Any] = {"revision": max(image.revision, revision.revision)}
    for draft in dict.fromkeys(drafts.values()):
        fields.update(draft.fields())
    return Update(replace(image, **fields), tuple(problems))


def _begin(drafts: dict[Section, _Draft], section: Section, image: ClusterImage) -> _Draft:
    if section in _JOINED:
        draft: _Draft = TopicDraft(image)
        drafts.update(dict.fromkeys(_JOINED, draft))
    elif isinstance(section, Family):
        draft = drafts[section] = _FamilyDraft(image, *TABLE[section])
    else:
        draft = drafts[section] = _SingleDraft(TABLE[section], permanent=section.permanent)
    return draft


class _FamilyDraft:
    def __init__(self, image: ClusterImage, shown: Shown) -> None:
        self._name = shown.name
        self._values: Overlay[Any, Any] = Overlay(getattr(image, shown.name))

    def put(self, section: Section, id_: Any, value: Any) -> None:
        self._values.put(id_, value)

    def remove(self, section: Section, id_: Any) -> None:
        self._values.remove(id_)

    def fields(self) -> Mapping[str, object]:
        return {self._name: self._values.result}


class _SingleDraft:
    def __init__(self, shown: list[Shown], *, permanent: bool) -> None:
        self._shown = shown
        self._permanent = permanent
        self._fields: dict[str, object] = {}

    def put(self, section: Section, id_: Any, value: Any) -> None:
        self._fields.update((name, part(value)) for name, part, _ in self._shown if part is not None)

    def remove(self, section: Section, id_: Any) -> None:
        if not self._permanent:
            self._fields.update((name, default) for name, _, default in self._shown)

    def fields(self) -> Mapping[str, object]:
        return self._fields


def difference(image: ClusterImage, snapshot: Snapshot) -> Revision:
    """What has changed between an image and a later read of everything.

    Topics and partitions of an unchanged revision are left out, which saves decoding thousands; the few
    other keys are simply given again.
    """
    known = dict(_revisions(image))
    changes: list[Changed | Removed] = []
    for entry in snapshot.entries:
        revision = known.pop(entry.key, None)
        if revision is None or revision != entry.mod_revision:
            changes.append(Changed(entry))
    changes.extend(Removed(key) for key in known)
    return Revision(snapshot.revision, tuple(changes))


def _revisions(image: ClusterImage) -> Iterator[tuple[str, int | None]]:
    """Every key behind the image, with its mod revision where the image keeps that."""
    yield from topic_revisions(image)
    for section, shown in TABLE.items():
        if section in _JOINED:
            continue
        if isinstance(section, Family):
            for id_ in getattr(image, shown[0].name):
                yield section.key(id_), None
        elif not section.permanent and any(getattr(image, name) != default for name, _, default in shown):
            yield section.key, None
