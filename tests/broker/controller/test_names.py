"""Topic names: Kafka's rules."""

from __future__ import annotations

import pytest

from ottla_broker.controller.names import check_collision, check_topic_name, collision_key
from ottla_core.errors import InvalidTopicException


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "__consumer_offsets", "-"])
def test_allowed(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a b", "a/b", "a\n", "ä", "a:b", "a\0", "a\\b", "٣"]
)
def test_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(InvalidTopicException) as refused:
        check_topic_name(name)
    assert refused.value.code == 17 and refused.value.message.endswith((".", "…"))


def test_a_dot_and_an_underscore_are_one() -> None:
    taken = {collision_key("a.b"): "a.b"}
    check_collision("a.b", taken)
    check_collision("a-b", taken)
    with pytest.raises(InvalidTopicException, match=r"'a_b' collides with 'a\.b'"):
        check_collision("a_b", taken)
