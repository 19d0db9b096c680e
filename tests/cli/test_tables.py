"""Tables in windows of any width: nothing is cut, and no word is broken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_cli.screen import table

WORD = st.text("abc-.é漢", min_size=1, max_size=30)
SENTENCE = st.lists(WORD, max_size=12).map(" ".join)


@given(st.lists(st.tuples(WORD, WORD, st.integers(0, 10**12), SENTENCE), max_size=5), st.integers(20, 200))
def test_every_word_is_whole_at_any_width(rows: list[tuple[object, ...]], width: int) -> None:
    text = "\n".join(table(("name", "address", "count#", "what~"), rows).lines(width))
    words = text.split()
    for row in rows:
        for cell in row:
            for word in str(cell).split():
                assert word in words
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_a_sentence_goes_below_its_row_before_the_row_breaks() -> None:
    made = table(("setting", "value", "what~"), [("a" * 30, "b" * 30, "many words " * 9)])
    lines = made.lines(70)
    assert lines[1] == f"{'a' * 30}  {'b' * 30}"
    assert lines[2].startswith("    many words") and all(len(line) <= 70 for line in lines)


def test_a_row_that_is_too_wide_is_a_block() -> None:
    made = table(("topic", "partition#", "member"), [("orders", 0, "m" * 60), ("orders", 1, "n" * 60)])
    assert made.lines(72) == [
        "topic      orders", "partition  0", f"member     {'m' * 60}", "",
        "topic      orders", "partition  1", f"member     {'n' * 60}",
    ]  # fmt: skip


def test_a_name_that_is_too_long_has_a_line_of_its_own() -> None:
    made = table(("topic", "lag#", "host"), [("orders", 5, "a"), ("x" * 38, 70, "b")])
    assert made.lines(40) == ["topic   lag  host", "orders    5  a", "x" * 38, "         70  b"]


def test_a_word_is_not_narrower_than_its_column() -> None:
    made = table(("n#", "member~"), [(1, "m" * 36)])
    assert made.lines(38) == ["n", "1", f"  {'m' * 36}"]
    assert made.lines(39) == ["n  member", f"1  {'m' * 36}"]


def test_long_facts_stand_below_their_names() -> None:
    made = table(("", ""), [("topic", "x" * 19), ("replicas", 3)])
    assert made.lines(20) == ["topic", f" {'x' * 19}", "replicas  3"]
