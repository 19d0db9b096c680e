"""Options as Spark passes them: texts with names in any case, checked against the known names. [P]"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from pyspark_ottla.kafka_settings import ONE_VALUE, why_refused, wrong_value
from pyspark_ottla.offsets import shortened

#: Spark passes its own options along.
_SPARKS_OWN = frozenset(["checkpointlocation", "queryname", "path"])
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class OptionProblem(ValueError):
    """An option that is missing, unknown or invalid."""


class Given:
    """Options with case-insensitive names, as everywhere in Spark."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def check_names(self, known: tuple[str, ...], purpose: str) -> None:
        by_lower = {name.lower(): name for name in known}
        for name in self._values:
            if name in by_lower or name in _SPARKS_OWN:
                continue
            if name in ONE_VALUE:
                problem = wrong_value(name, self._values[name])
                if problem is not None:
                    raise OptionProblem(f"The option {name} {problem}")
                continue
            reason = why_refused(name)
            if reason is not None:
                raise OptionProblem(f"The option {name} {reason}")
            near = difflib.get_close_matches(name, by_lower, n=1, cutoff=0.7)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"the options are {', '.join(known)}."
            raise OptionProblem(f"The format ottla has no option {name} for {purpose}; {hint}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None or not value.strip() else value.strip()

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise OptionProblem(f"{name} takes a whole number above 0; got {shortened(text)}.")
        return int(text)

    def duration_s(self, name: str, default: str) -> float:
        text = (self.text(name) or default).lower()
        found = re.fullmatch(r"([0-9]+)\s*([a-z]+)", text)
        if found is None or found[2] not in _UNITS_S or int(found[1]) == 0:
            raise OptionProblem(f"{name} takes a time such as 90s, 15m or 1h; got {shortened(text)}.")
        return int(found[1]) * _UNITS_S[found[2]]

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise OptionProblem(f"{name} takes {' or '.join(choices)}; got {shortened(text)}.")
        return text
