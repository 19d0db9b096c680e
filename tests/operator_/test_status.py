from __future__ import annotations

from operator_.bodies import topic
from ottla_operator.specs import Meta
from ottla_operator.status import is_ready, kept, not_ready, ready, reason_of, with_conditions

META = Meta.of(topic())


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = with_conditions(META, None, [not_ready("A", "a")], "1", {})
    again = with_conditions(META, first, [not_ready("B", "b")], "2", {})
    turned = with_conditions(META, again, [ready("c")], "3", {})
    times = [each["conditions"][0]["lastTransitionTime"] for each in (first, again, turned)]
    assert times == ["1", "1", "3"]
    assert [is_ready(each) for each in (None, first, turned)] == [False, False, True]


def test_facts_without_a_value_are_left_out() -> None:
    made = with_conditions(META, None, [], "1", {"a": 0, "b": None})
    assert made == {"observedGeneration": 1, "conditions": [], "a": 0}
    assert kept(made) == {"a": 0}
    assert kept(None) == {}


def test_reasons_are_spelt_as_conditions_spell_them() -> None:
    assert reason_of("INVALID_REPLICATION_FACTOR") == "InvalidReplicationFactor"
    assert reason_of("") == "Failed"
