"""The client for type checkers, and its settings: misspelt ones fail at once, and both clients have the same."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ottla_client
from ottla_client import Admin, Consumer, Producer, errors, settings, sync

CASES = Path(__file__).with_name("typing_cases.py")
ROOT = Path(__file__).resolve().parent.parent.parent


def test_type_checkers_know_records_and_settings() -> None:
    """mypy reports exactly the errors that the file expects."""
    expected = {
        (number, line.partition("# error: ")[2])
        for number, line in enumerate(CASES.read_text().splitlines(), 1)
        if "# error: " in line
    }
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    reported = re.findall(r"typing_cases\.py:(\d+): error: (.*)", ran.stdout)
    assert {int(number) for number, _ in reported} == {number for number, _ in expected}, (
        ran.stdout + ran.stderr
    )
    for number, part in expected:
        assert any(int(at) == number and part in text for at, text in reported), (number, part, ran.stdout)


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (Consumer, "gruop_id", "Did you mean group_id?"),
        (sync.Consumer, "group.id", "Did you mean group_id?"),
        (Producer, "linger", "Did you mean linger_ms?"),
        (sync.Producer, "compresion", "Did you mean compression?"),
        (sync.Admin, "zzz", "It has bootstrap_servers, request_timeout_ms"),
    ],
)
def test_a_misspelt_setting_fails_at_construction_with_a_hint(kind: Any, given: str, meant: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{kind.__name__} has no setting {given!r}. {meant}")):
        kind("127.0.0.1:1", **{given: 1})


def test_a_wrong_value_fails_at_the_construction_of_a_blocking_client() -> None:
    with pytest.raises(ValueError, match="choose 0, 1 or 'all'"):
        sync.Producer("127.0.0.1:1", acks="some")
    with pytest.raises(ValueError, match="There is no deserializer 'xml'"):
        sync.Consumer("127.0.0.1:1", value_deserializer="xml")


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        (Producer, settings.ProducerSettings),
        (Consumer, settings.ConsumerSettings),
        (Admin, settings.AdminSettings),
    ],
)
def test_settings_as_types_are_those_of_the_async_client(kind: Any, typed: Any) -> None:
    arguments = list(inspect.signature(kind.__init__).parameters.values())[2:]
    assert {each.name: each.annotation for each in arguments} == {
        name: annotation.__forward_arg__ for name, annotation in typed.__annotations__.items()
    }


def test_every_error_that_callers_can_catch_is_exported() -> None:
    for name in errors.__all__:
        assert getattr(ottla_client, name) is getattr(errors, name), name
        assert name in ottla_client.__all__
    raised = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, Exception) and not name.startswith("_")
    }
    assert raised == set(errors.__all__)
