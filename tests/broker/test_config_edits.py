"""Changes of settings: what is asked for meets what is set, and what makes no sense is refused with a sentence."""

from __future__ import annotations

import pytest

from ottla_broker.requests import ConfigChange
from ottla_broker.service.config_edits import broker_edit, topic_edit
from ottla_core.errors import InvalidConfig


def test_a_misspelt_broker_setting_is_told_what_is_near() -> None:
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
