"""Every design rule that the code, the tests or the documentation cite by number is on the page of the rules."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design-rules.md"
FOLDERS = ("bench", "broker", "cli", "client", "core", "docs", "operator", "proto", "spark", "tests")
KINDS = ("*.py", "*.md", "*.proto")

#: "rule 9", "Rules 9 and 11", "rules 1 to 3", "rules 4, 10, 12 and 13"; a line may break in between.
CITED = re.compile(r"\brules?\s+(\d+(?:(?:\s*,\s*|\s+(?:and|to|or)\s+)\d+)*)", re.IGNORECASE)


def cited_in(text: str) -> set[int]:
    """Numbers of rules; of a range its ends are enough."""
    return {int(number) for found in CITED.finditer(text) for number in re.findall(r"\d+", found[1])}


def test_citations_are_found_in_each_form() -> None:
    assert cited_in("Rule 9; rules 1 to\n3, design rules 4, 10, 12 and 13 (rule 21)") == {
        1,
        3,
        4,
        9,
        10,
        12,
        13,
        21,
    }


def test_every_rule_that_is_cited_is_on_the_page() -> None:
    stated = {int(n) for n in re.findall(r"^\*\*Rule (\d+)\. ", PAGE.read_text("utf-8"), re.MULTILINE)}
    assert stated == set(range(1, 24)), "numbers are never reused: the code cites them"
    files = [p for folder in FOLDERS for kind in KINDS for p in sorted((ROOT / folder).rglob(kind))]
    files += sorted(ROOT.glob("*.md"))
    cited = {path: cited_in(path.read_text("utf-8")) for path in files if path != Path(__file__)}
    assert len({n for numbers in cited.values() for n in numbers}) > 15, "citations are not being found"
    unknown = {
        str(path.relative_to(ROOT)): numbers - stated for path, numbers in cited.items() if numbers - stated
    }
    assert unknown == {}
