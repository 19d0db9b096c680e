"""Changes of settings: what is asked for meets what is set, and what makes no sense is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla_broker import inert_config
from ottla_broker.controller.config_edits import broker_edit, group_edit, topic_edit
from ottla_broker.requests import ConfigChange
from ottla_broker.topic_config import TopicConfig
from ottla_core.errors import InvalidConfig

DOCS = Path(__file__).parents[3] / "docs"


def test_a_misspelt_broker_setting_gets_a_suggestion() -> None:
    with pytest.raises(
        InvalidConfig, match=r"no broker setting log\.retention\.mss\. Did you mean log\.reten"
    ):
        broker_edit([ConfigChange("set", "log.retention.mss", "5")])({})
    with pytest.raises(InvalidConfig, match=r"There is no broker setting zzz\.$"):
        broker_edit([ConfigChange("set", "zzz", "5")])({})


def test_a_setting_of_the_process_takes_a_restart() -> None:
    with pytest.raises(InvalidConfig, match="cannot change at run time"):
        broker_edit([ConfigChange("set", "kafka.listener", "127.0.0.1:1")])({})


def test_lists_grow_and_shrink_and_other_settings_do_not() -> None:
    grown = topic_edit([ConfigChange("append", "cleanup.policy", "compact")])({})
    assert grown == {"cleanup.policy": "delete,compact"}
    assert topic_edit([ConfigChange("append", "cleanup.policy", "compact")])(grown) == grown, "once is enough"
    assert topic_edit([ConfigChange("subtract", "cleanup.policy", "delete")])(grown) == {
        "cleanup.policy": "compact"
    }
    with pytest.raises(InvalidConfig, match="is not a list"):
        topic_edit([ConfigChange("append", "retention.ms", "5")])({})


def test_what_is_deleted_or_was_never_set_is_gone_either_way() -> None:
    edit = topic_edit([ConfigChange("delete", "retention.ms")])
    assert edit({"retention.ms": "5", "segment.ms": "7"}) == {"segment.ms": "7"} == edit({"segment.ms": "7"})
    with pytest.raises(InvalidConfig, match="needs a value"):
        topic_edit([ConfigChange("set", "retention.ms")])({})


@pytest.mark.parametrize("name", ["leader.replication.throttled.rate", "kafka.listener", "zzz"])
def test_deleting_what_is_not_set_is_accepted_whatever_its_name(name: str) -> None:
    """kafka-reassign-partitions --verify clears throttles that nobody has set."""
    for edit in (broker_edit, topic_edit, group_edit):
        assert edit([ConfigChange("delete", name)])({"kept": "5"}) == {"kept": "5"}


def test_throttles_are_checked_kept_and_bounded() -> None:
    set_rate = ConfigChange("set", "leader.replication.throttled.rate", "1000")
    for bad in ("-1", "fast", "1.5"):
        with pytest.raises(InvalidConfig, match="a whole number from 0"):
            broker_edit([set_rate._replace(value=bad)])({})
    assert broker_edit([set_rate])({}) == {"leader.replication.throttled.rate": "1000"}
    throttled = "follower.replication.throttled.replicas"
    made = topic_edit([ConfigChange("append", throttled, "0:1"), ConfigChange("append", throttled, "1:2")])
    with pytest.raises(InvalidConfig, match="at least 0"):
        broker_edit([ConfigChange("set", "log.cleaner.threads", "many")])({})
    assert topic_edit([ConfigChange("append", throttled, "0:1")])({}) == {throttled: "0:1"}
    assert made({}) == {throttled: "0:1,1:2"}
    TopicConfig.validate({throttled: "0:1,1:2"})
    TopicConfig.validate({throttled: "*"})
    for bad in ("0:1,x", "0", "0:1," * 20_000):
        with pytest.raises(InvalidConfig):
            TopicConfig.validate({throttled: bad})
    resolved = TopicConfig.resolve({throttled: "0:1"}, {}).follower_replication_throttled_replicas
    assert (resolved.has(0, 1), resolved.has(0, 2), resolved.has(1, 1)) == (True, False, False)
    assert TopicConfig.resolve({throttled: "*"}, {}).follower_replication_throttled_replicas.has(7, 9)
    assert not TopicConfig.resolve({throttled: "none"}, {}).follower_replication_throttled_replicas.has(7, 9)


def test_the_page_about_kafkas_settings_names_all_that_have_no_effect() -> None:
    page = (DOCS / "kafka-settings.md").read_text("utf-8")
    for setting in inert_config.BROKER.values():
        assert f"| `{setting.name}` |" in page, setting.name
        assert "without effect" in setting.documentation
