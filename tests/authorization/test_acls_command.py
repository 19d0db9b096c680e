"""`ottla acls` against a real broker."""

from __future__ import annotations

import pytest

from authorization.guarded_broker import GuardedBroker
from cli.ottla_command import Ottla

pytestmark = pytest.mark.integration


@pytest.fixture
def ottla(guarded: GuardedBroker, capsysbinary: pytest.CaptureFixture[bytes]) -> Ottla:
    return Ottla(guarded.native, capsysbinary)


def test_acls_are_allowed_listed_denied_and_removed(ottla: Ottla) -> None:
    ottla("acls", "allow", "alice", "read", "write", "--topic", "open", "--group", "g")
    ottla("acls", "deny", "User:bob", "all", "--topic", "clo", "--prefixed", "--host", "10.0.0.7")
    rows = ottla("acls", "list", "--json").json
    shown = {
        (r["user"], r["permission"], r["operation"], r["type"], r["name"], r["pattern"], r["host"])
        for r in rows
    }
    assert shown == {
        ("User:alice", "allow", "read", "topic", "open", "literal", "*"),
        ("User:alice", "allow", "write", "topic", "open", "literal", "*"),
        ("User:alice", "allow", "read", "group", "g", "literal", "*"),
        ("User:bob", "deny", "all", "topic", "clo", "prefixed", "10.0.0.7"),
    }
    assert "User:bob" in ottla("acls", "list", "--topic", "closed").out
    gone = ottla("acls", "remove", "alice", "write", "--topic", "open", "--yes")
    assert "Removed 1 ACL." in gone.out
    assert len(ottla("acls", "list", "--user", "alice", "--json").json) == 2


def test_what_is_wrong_is_said(ottla: Ottla) -> None:
    wrong = ottla("acls", "allow", "alice", "write", "--group", "g", code=2)
    assert "write is not an operation on any of these resources" in wrong.err
