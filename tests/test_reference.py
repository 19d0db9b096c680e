"""docs/reference is what `make docs` writes, and it has what people look up."""

from __future__ import annotations

import re

import pytest

import not_served
import reference
from ottla_broker.edge.kafka.versions import APIS


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_current(name: str) -> None:
    path = reference.FOLDER / name
    assert path.read_text() == reference.PAGES[name](), "run `make docs`"


def test_pages_have_what_people_look_up() -> None:
    for name, wanted in {
        "broker-settings.md": "| `metrics.topics.max` |",
        "topic-settings.md": "| `retention.ms` |",
        "client-settings.md": "| `group_protocol` |",
        "protocol.md": "| 0 | Produce | 3 to 13 |",
        "metrics.md": "| `ottla_consumergroup_lag_seconds` |",
        "commands.md": "## ottla top",
        "resources.md": "## Cluster (`ottla.dev/",
    }.items():
        assert wanted in (reference.FOLDER / name).read_text(), name


#: Words that mean another row, or a text that a table does not have.
_ELSEWHERE = re.compile(r"\b(see above|see below|the above|for that\.|of that [a-z]+\.)")


@pytest.mark.parametrize("name", reference.PAGES)
def test_each_row_of_a_table_stands_alone(name: str) -> None:
    rows = [line for line in (reference.FOLDER / name).read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 3
    assert not [row for row in rows if _ELSEWHERE.search(row)]


def test_no_api_is_left_out() -> None:
    """Kafka's schemas have every key from 0 on, except those of removed APIs."""
    keys = reference._kafka_apis()
    assert {0, 1, 3, 18, 68, 69} <= set(keys) and len(keys) > 60


def test_each_api_is_served_or_has_a_reason() -> None:
    assert set(not_served.REASONS) == set(reference._kafka_apis()) - set(APIS)
