"""Python libraries for images, taken from this virtual environment: what runs in pods is what was tested. [A]

Seconds instead of minutes, and nothing is downloaded a second time: Spark alone is 490 MB.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from ottla_e2e.say import Fault


def closure(requirements: Sequence[str]) -> list[Distribution]:
    """The installed distributions that these requirements ask for, and all that those need, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            known = distribution(requirement.name)
        except PackageNotFoundError:
            raise Fault(
                f"{requirement.name} is not in this virtual environment; run scripts/setup.sh"
            ) from None
        found[known.name] = known
        for each in {"", *requirement.extras}:
            if (known.name, each) not in seen:
                seen.add((known.name, each))
                waiting += [(Requirement(line), each) for line in known.requires or ()]
    return [found[name] for name in sorted(found)]


def copy(distributions: Sequence[Distribution], target: Path) -> None:
    """Their files, as pip recorded them, except programs that pip made for this environment."""
    for each in distributions:
        for file in each.files or ():
            if ".." in file.parts:
                continue
            source, copied = Path(str(file.locate())), target / file
            if source.exists():
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copied)
