"""From the subject of a client certificate to a principal: Kafka's `ssl.principal.mapping.rules`. [P]

A rule is `RULE:pattern/replacement/[LU]` or `DEFAULT`, separated by commas. The first rule whose pattern matches the
whole distinguished name applies; `$1` is its first group, `L` and `U` change the case. `DEFAULT` is the name itself.
Without a matching rule the certificate has no principal, and the client is refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)")
_GROUP = re.compile(r"\$(\d)")


class _Rule(NamedTuple):
    #: None for DEFAULT.
    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""


class PrincipalRules:
    def __init__(self, text: str) -> None:
        """ValueError if the text is not a list of rules."""
        self._rules: list[_Rule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None or found.end() == at:
                raise ValueError(f"{text[at:]!r} is not a rule")
            default, pattern, replacement, case = found.groups()
            if default:
                self._rules.append(_Rule(None))
            else:
                try:
                    compiled = re.compile(pattern)
                except re.error as wrong:
                    raise ValueError(f"{pattern!r} is not a regular expression: {wrong}") from None
                if any(int(number) > compiled.groups for number in _GROUP.findall(replacement)):
                    raise ValueError(f"{replacement!r} has a group that {pattern!r} does not")
                self._rules.append(_Rule(compiled, replacement, case))
            at = found.end()
        if not self._rules:
            raise ValueError("there is no rule")

    def principal(self, name: str) -> str | None:
        """The principal of a distinguished name (RFC 2253); None if no rule matches."""
        for rule in self._rules:
            if rule.pattern is None:
                return f"User:{name}"
            found = rule.pattern.fullmatch(name)
            if found is not None:
                return f"User:{_replaced(rule, found)}"
        return None


def _replaced(rule: _Rule, found: re.Match[str]) -> str:
    made = _GROUP.sub(lambda group: found[int(group[1])] or "", rule.replacement)
    return made.lower() if rule.case == "L" else made.upper() if rule.case == "U" else made
