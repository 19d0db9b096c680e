from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_.bodies import cluster, group, topic
from ottla_operator.cluster_spec import ClusterSpec
from ottla_operator.specs import GroupSpec, InvalidSpec, Meta, TopicSpec, milliseconds


def test_an_empty_cluster_has_three_brokers_and_an_etcd() -> None:
    spec = ClusterSpec.of(cluster())
    assert (spec.brokers, spec.external_etcd, spec.managed_etcd.replicas) == (3, None, 1)
    assert [volume.size for volume in spec.storage.volumes] == ["10Gi"]


def test_config_values_become_text() -> None:
    assert TopicSpec.of(topic(config={"a": 1, "b": "x", "c": True})).config == {
        "a": "1",
        "b": "x",
        "c": "true",
    }


def test_a_setting_of_the_operator_is_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match=r"log\.dirs"):
        ClusterSpec.of(cluster(config={"log.dirs": "/tmp"}))


@pytest.mark.parametrize("part", [{"tls": {}}, {"login": {"secretName": "x"}}])
def test_a_managed_etcd_asks_for_nothing(part: dict[str, object]) -> None:
    (name,) = part
    with pytest.raises(InvalidSpec, match=rf"etcd\.{name} is for an external etcd: set etcd\.endpoints"):
        ClusterSpec.of(cluster(etcd={"managed": {}, **part}))


@pytest.mark.parametrize("name", ["..", "a b", "ä", "x" * 250])
def test_names_that_no_topic_can_have(name: str) -> None:
    with pytest.raises(InvalidSpec):
        TopicSpec.of(topic(topicName=name))


def test_a_resource_lends_its_name() -> None:
    assert TopicSpec.of(topic("orders")).topic == "orders"
    assert TopicSpec.of(topic("orders", topicName="Orders_v2")).topic == "Orders_v2"
    assert GroupSpec.of(group("billing", groupId="Billing!")).group == "Billing!"


def test_a_reset_is_known_by_what_it_does() -> None:
    def digest(**reset: object) -> str:
        made = GroupSpec.of(group(offsetReset={"id": "a", "to": "earliest", **reset})).reset
        return made.digest if made else ""

    assert digest() == digest(id="b"), "the id is a name, not content"
    assert digest() == digest(whenActive="Wait"), "waiting changes when, not what"
    assert len({digest(), digest(to="latest"), digest(topics=["x"])}) == 3


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_times(moment: datetime, zone_min: int) -> None:
    aware = moment.replace(tzinfo=UTC)
    text = aware.astimezone(tz=_zone(zone_min)).isoformat()
    assert milliseconds(text) == (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _zone(minutes: int):  # type: ignore[no-untyped-def]
    from datetime import timezone

    return timezone(timedelta(minutes=minutes))


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-31", "2026-01-31T00:00:00"])
def test_no_times(text: str) -> None:
    with pytest.raises(InvalidSpec):
        milliseconds(text)


def test_pausing_is_an_annotation() -> None:
    body = topic()
    assert not Meta.of(body).paused
    body["metadata"]["annotations"] = {"ottla.dev/paused": "true"}
    assert Meta.of(body).paused
