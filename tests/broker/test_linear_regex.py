"""Regular expressions over names: as Python's, and in linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from ottla_broker.linear_regex import ANY_TEXT, LinearRegex

_ATOMS = st.sampled_from(
    ("a", "b", "1", "-", r"\.", ".", "[ab]", "[^a]", "[a-c1]", r"\d", r"\w", r"\W", "^", "$")
)
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + "|".join(parts) + ")"),
        st.tuples(inner, st.sampled_from(("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"))).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(400), deadline=None)
@given(_PATTERNS, st.lists(st.text("ab1.-cA_", max_size=6), max_size=8))
def test_matches_what_python_matches(pattern: str, names: list[str]) -> None:
    compiled, expected = LinearRegex(pattern), re.compile(pattern)
    for name in names:
        assert compiled.matches(name) == bool(expected.fullmatch(name))


@settings(max_examples=examples(200), deadline=None)
@given(_PATTERNS, st.lists(st.text("ab1.-cA_ /é\u4e2d\t", max_size=6), max_size=8))
def test_over_any_text_it_also_matches_what_python_matches(pattern: str, names: list[str]) -> None:
    compiled, expected = LinearRegex(pattern, ANY_TEXT), re.compile(pattern, re.ASCII)
    for name in names:
        assert compiled.matches(name) == bool(expected.fullmatch(name))


def test_characters_of_the_expression_are_told_from_others() -> None:
    compiled = LinearRegex("(?i)caf\u00e9/.+ [^\u4e2d]", ANY_TEXT)
    assert compiled.matches("CAF\u00c9/x \u4e00") and compiled.matches("caf\u00e9/\u4e2d x")
    assert not compiled.matches("caf\u00e8/x y") and not compiled.matches("caf\u00e9/x \u4e2d")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("^orders-.*$", "orders-eu", True),
        ("orders", "orders-eu", False),
        ("(?i)ORDERS-[A-Z]+", "orders-eu", True),
        ("(^orders-e.)|(^other$)", "orders-eu", True),
        ("a^b", "ab", False),
        ("", "", True),
        ("a|", "", True),
        ("[]a]", "a", True),
    ],
)
def test_whole_names_match(pattern: str, name: str, matches: bool) -> None:
    assert LinearRegex(pattern).matches(name) is matches


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a**", "[a", "*", r"\1", "(?=a)", "a{3,1}", "a{2000}", "((a{900}){900}){900}", "a" * 2000, "\\",
     "(" * 60 + ")" * 60, "(){1000}" * 100],
)  # fmt: skip
def test_invalid_and_large_expressions_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        LinearRegex(pattern)


def test_a_hostile_expression_takes_no_time() -> None:
    start = time.process_time()
    assert not LinearRegex("(a+)+(a*)*b").matches("a" * 249)
    assert time.process_time() - start < 0.2


def test_many_states_at_a_time_are_bounded_in_time_and_memory() -> None:
    """Each of these repetitions keeps all of its states alive, and no set of them occurs twice."""
    with pytest.raises(ValueError, match="too large"):
        LinearRegex("(.*[0-7].{30}|.{0,1000}.{0,1000})")
    compiled = LinearRegex("(.*[0-7].{30}|.{0,300}.{0,300})x", ANY_TEXT)
    start = time.process_time()
    assert not any(compiled.matches(f"{number * 7919:036d}") for number in range(20))
    assert time.process_time() - start < 2.0
    assert compiled._cached < 60_000


def test_ranges_end_at_ascii() -> None:
    with pytest.raises(ValueError, match="ASCII"):
        LinearRegex("[\u0430-\u044f]", ANY_TEXT)
