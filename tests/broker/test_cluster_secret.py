"""The file with the cluster secret: what is read from it, and what is refused in one sentence without the secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla_broker.cluster_secret import cluster_secret
from ottla_broker.setting import ConfigError

FIRST, SECOND = b"0123456789abcdef", b"fedcba9876543210"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (FIRST, (FIRST,)),
        (b"  " + FIRST + b"\r\n", (FIRST,)),
        (FIRST + b"\n\n" + SECOND + b"\n" + FIRST + b"\n", (FIRST, SECOND)),
    ],
)
def test_one_secret_per_line(tmp_path: Path, text: bytes, values: tuple[bytes, ...]) -> None:
    path = tmp_path / "secret"
    path.write_bytes(text)
    found = cluster_secret(str(path))
    assert (found.values, found.is_shared) == (values, True)
    assert FIRST.decode() not in repr(found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read"),
        (b" \n\n", "is empty"),
        (b"too short", "at least 16 characters"),
        (FIRST + b"\nshort and new", "at least 16 characters"),
        (b"\n".join(b"%016d" % i for i in range(5)), "at most 4 lines"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: bytes | None, sentence: str) -> None:
    path = tmp_path / "secret"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError, match=sentence) as refused:
        cluster_secret(str(path))
    for line in (text or b"").split(b"\n"):
        assert not line.strip() or line.decode() not in str(refused.value)


def test_without_a_file_each_process_has_another() -> None:
    one, other = cluster_secret(None), cluster_secret(None)
    assert not one.is_shared
    assert one.values != other.values
    assert len(one.values[0]) == 32
