"""The file with the rack: what is read from it, and what is refused in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ottla_broker.config import ProcessConfig, resolve
from ottla_broker.rack_file import with_rack
from ottla_broker.setting import ConfigError


def config(**settings: str) -> ProcessConfig:
    flags = {name.replace("_", "."): value for name, value in settings.items()}
    return resolve(flags, {}, None).config.process


def test_without_a_file_the_rack_is_the_setting() -> None:
    assert with_rack(config()).rack is None
    assert with_rack(config(broker_rack="a")).rack == "a"


@pytest.mark.parametrize(
    ("text", "rack"), [("eu-west-1b", "eu-west-1b"), (" b\n", "b"), ("", None), ("\n", None)]
)
def test_the_rack_of_a_file(tmp_path: Path, text: str, rack: str | None) -> None:
    path = tmp_path / "node-7"
    path.write_text(text)
    given = config(rack_file=str(path))
    assert with_rack(given) == replace(given, rack=rack)


@pytest.mark.parametrize(
    ("text", "more", "sentence"),
    [
        (None, {}, "cannot be read: No such file"),
        ("two words", {}, "has 'two words'; write 1 to 100 of the letters"),
        ("a", {"broker_rack": "b"}, "both name the rack"),
    ],
)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, text: str | None, more: dict[str, str], sentence: str
) -> None:
    path = tmp_path / "node-7"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        with_rack(config(rack_file=str(path), **more))
