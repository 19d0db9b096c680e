"""Regular expressions of clients over names of topics and transactional ids, in time linear in the name. [P]

Python's `re` backtracks: a hostile expression could hold the event loop for minutes. So an expression becomes a
nondeterministic automaton (Thompson), run as sets of states that are cached per character. Syntax: what RE2, and so
Kafka, takes, without Unicode and named classes: literals, `.`, classes, `\\d \\w \\s`, groups, `|`, `* + ? {m,n}`,
`(?i)` in front, `^` and `$`. An expression matches a whole name.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

#: The characters that names of topics consist of; a set of characters needs no others.
TOPIC_CHARACTERS = frozenset(string.ascii_letters + string.digits + "._-")
#: Stands for every character that is neither in the alphabet nor in the expression: all of them match alike.
_OTHER = "\uffff"
ANY_TEXT = frozenset(map(chr, range(128))) | {_OTHER}
_ESCAPES = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset("\t\n\f\r "),
}

#: Limits of one expression: far above any that lists topics.
_CHARACTERS_MAX = 1000
_DEPTH_MAX = 50
_REPEAT_MAX = 1000
#: An alternation of names has as many states as characters, of which few are alive at a time. Repetitions may all be
#: alive: a name that is not in the cache then costs a tenth of a millisecond per character.
_STATES_MAX = 1500
#: States in the cached sets; the cache starts again above this, which is some megabytes.
_CACHED_MAX = 50_000


class _Set(NamedTuple):
    characters: frozenset[str]


class _Anchor(NamedTuple):
    """`^`, which holds before the first character, or `$`, which holds after the last."""

    sign: str


class _Sequence(NamedTuple):
    parts: tuple[_Node, ...]


class _Choice(NamedTuple):
    parts: tuple[_Node, ...]


class _Repeat(NamedTuple):
    part: _Node
    low: int
    high: int | None


_Node: TypeAlias = _Set | _Anchor | _Sequence | _Choice | _Repeat


class LinearRegex:
    """A compiled expression. ValueError with a sentence if it is invalid or too large."""

    def __init__(self, pattern: str, alphabet: frozenset[str] = TOPIC_CHARACTERS) -> None:
        if len(pattern) > _CHARACTERS_MAX:
            raise ValueError(f"a regular expression has at most {_CHARACTERS_MAX} characters")
        #: By state: characters and the next state; or no characters and states that follow at once.
        self._characters: list[frozenset[str] | None] = [None]
        self._next: list[tuple[int, ...]] = [()]
        self._anchors: dict[int, str] = {}
        self._steps = 0
        if _OTHER in alphabet:
            alphabet = alphabet.union(pattern, pattern.lower(), pattern.upper())
        self._alphabet = alphabet
        start = self._emit(_Parser(pattern, alphabet).parsed(), 0)
        self._start = self._closure([start], "^")
        self._cache: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._cached = 0

    def matches(self, name: str) -> bool:
        states = self._start
        for character in name:
            character = character if character in self._alphabet else _OTHER
            key = (states, character)
            after = self._cache.get(key)
            if after is None:
                after = self._closure(
                    self._next[state][0] for state in states if character in (self._characters[state] or ())
                )
                if self._cached >= _CACHED_MAX:
                    self._cache.clear()
                    self._cached = 0
                self._cache[key] = after
                self._cached += len(after) + 1
            if not after:
                return False
            states = after
        return 0 in self._closure(states, "$" if name else "^$")

    def _closure(self, states: Iterable[int], holds: str = "") -> frozenset[int]:
        """These states and all that follow without a character; `holds` has the anchors that hold here."""
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                if self._characters[state] is None and self._anchors.get(state, "") in holds:
                    waiting.extend(self._next[state])
        return frozenset(found)

    def _add(self, characters: frozenset[str] | None, *after: int) -> int:
        self._characters.append(characters)
        self._next.append(after)
        return len(self._next) - 1

    def _emit(self, node: _Node, after: int) -> int:
        """Add the states of a node that is followed by state `after`; return its first state."""
        self._steps += 1
        if self._steps > _STATES_MAX:
            raise ValueError("the regular expression is too large; use fewer or smaller repetitions")
        if isinstance(node, _Set):
            return self._add(node.characters, after)
        if isinstance(node, _Anchor):
            state = self._add(None, after)
            self._anchors[state] = node.sign
            return state
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                after = self._emit(part, after)
            return after
        if isinstance(node, _Choice):
            return self._add(None, *(self._emit(part, after) for part in node.parts))
        start = after
        if node.high is None:
            start = self._add(None)
            self._next[start] = (self._emit(node.part, start), after)
        else:
            for _ in range(node.high - node.low):
                start = self._add(None, self._emit(node.part, start), after)
        for _ in range(node.low):
            start = self._emit(node.part, start)
        return start


class _Parser:
    def __init__(self, pattern: str, alphabet: frozenset[str]) -> None:
        self._alphabet = alphabet
        self._any_case = pattern.startswith("(?i)")
        self._text = pattern[4:] if self._any_case else pattern
        self._at = 0

    def parsed(self) -> _Node:
        node = self._choice(0)
        if self._at < len(self._text):
            raise ValueError(f"unexpected {self._text[self._at]!r} in the regular expression")
        return node

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        found = self._peek()
        if not found:
            raise ValueError("the regular expression ends too early")
        self._at += 1
        return found

    def _choice(self, depth: int) -> _Node:
        if depth > _DEPTH_MAX:
            raise ValueError(f"groups are nested more than {_DEPTH_MAX} deep")
        parts = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        sign = self._peek()
        bounds: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if sign in bounds:
            self._at += 1
            node = _Repeat(node, *bounds[sign])
        elif sign == "{":
            node = _Repeat(node, *self._braces())
        else:
            return node
        if self._peek() == "?":
            self._at += 1  # Lazy or greedy: the same names match.
        if self._peek() in ("*", "+", "?", "{"):
            raise ValueError("a repetition of a repetition needs a group")
        return node

    def _braces(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise ValueError("write a repetition as {2}, {2,} or {2,5}")
        self._at = end + 1
        first = int(low)
        last = (int(high) if high else None) if comma else first
        if max(first, last or 0) > _REPEAT_MAX or (last is not None and last < first):
            raise ValueError(f"a repetition goes from 0 to at most {_REPEAT_MAX}")
        return first, last

    def _atom(self, depth: int) -> _Node:
        found = self._take()
        if found == "(":
            if self._peek() == "?":
                if self._text[self._at : self._at + 2] != "?:":
                    raise ValueError("of the groups with (? only (?: and a leading (?i) are supported")
                self._at += 2
            node = self._choice(depth + 1)
            if self._take() != ")":
                raise ValueError("a group is not closed")
            return node
        if found == ".":
            return _Set(self._alphabet)
        if found == "[":
            return _Set(self._class())
        if found == "\\":
            return _Set(self._escape())
        if found in "^$":
            return _Anchor(found)
        if found in "*+?{}]":
            raise ValueError(f"{found!r} is not allowed here; write \\{found} for the character")
        return _Set(self._cased(found))

    def _escape(self) -> frozenset[str]:
        found = self._take()
        if found.lower() in _ESCAPES:
            characters = _ESCAPES[found.lower()] & self._alphabet
            return self._alphabet - characters if found.isupper() else characters
        if found.isalnum():
            raise ValueError(f"\\{found} is not supported")
        return frozenset(found)

    def _class(self) -> frozenset[str]:
        inverted = self._peek() == "^"
        self._at += inverted
        characters: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            found = self._take()
            if found == "\\":
                characters |= self._escape()
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                last = self._take()
                if last < found or last == "\\":
                    raise ValueError(f"the range {found}-{last} is invalid")
                if last > "\x7f" and _OTHER in self._alphabet:
                    raise ValueError("ranges end at ASCII; list other characters one by one")
                for each in self._alphabet:
                    if found <= each <= last:
                        characters |= self._cased(each)
            else:
                characters |= self._cased(found)
        self._at += 1
        return self._alphabet - characters if inverted else frozenset(characters)

    def _cased(self, character: str) -> frozenset[str]:
        return frozenset((character.lower(), character.upper()) if self._any_case else (character,))
