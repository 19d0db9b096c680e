"""Users: the plan against a model, and the look against API server and brokers in memory."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_.bodies import body, cluster
from operator_.twins import World
from ottla_operator.certificate_maker import read
from ottla_operator.specs import ClusterRef, InvalidSpec
from ottla_operator.user_plan import (
    ITERATIONS,
    MECHANISM,
    AddAcls,
    DropPasswords,
    RemoveAcls,
    SeenUser,
    SetPassword,
    SetQuotas,
    plan,
    plan_removal,
)
from ottla_operator.user_spec import AclRule, UserSpec
from ottla_operator.users import UserLook

REF = ClusterRef("main")
READ = AclRule("TOPIC", "orders", "READ")
DENY = AclRule("TOPIC", "orders", "WRITE", permission="DENY")
RULES = st.frozensets(st.sampled_from([READ, DENY, AclRule("GROUP", "billing", "READ")]))


@given(RULES, RULES, st.booleans(), st.booleans())
def test_after_its_actions_a_user_matches(
    wanted: frozenset[AclRule], there: frozenset[AclRule], has_password: bool, is_new: bool
) -> None:
    spec = UserSpec(REF, "alice", acls=wanted)
    mechanisms = {MECHANISM: ITERATIONS, "SCRAM-SHA-256": 4096} if has_password else {}
    acls, left, password = set(there), dict(mechanisms), None
    for action in plan(spec, SeenUser(mechanisms, there), "secret", is_new=is_new):
        match action:
            case AddAcls(_, rules):
                acls |= set(rules)
            case RemoveAcls(_, rules):
                acls -= set(rules)
            case SetPassword(_, password):
                left[MECHANISM] = ITERATIONS
            case DropPasswords(_, names):
                left = {name: each for name, each in left.items() if name not in names}
    assert (acls, left) == (wanted, {MECHANISM: ITERATIONS})
    assert (password == "secret") == (is_new or not has_password)
    assert plan(spec, SeenUser(left, frozenset(acls)), "secret", is_new=False) == ()


def test_denials_come_first_and_foreign_acls_stay_without_the_field() -> None:
    spec = UserSpec(REF, "alice", acls=frozenset({READ, DENY}))
    (added, *_) = plan(spec, SeenUser({MECHANISM: ITERATIONS}), None, is_new=False)
    assert added == AddAcls("alice", (DENY, READ))
    free = UserSpec(REF, "alice")
    assert plan(free, SeenUser({MECHANISM: ITERATIONS}, frozenset({READ})), None, is_new=False) == ()
    assert plan_removal(free, SeenUser({}, frozenset({READ}))) == ()


@pytest.mark.parametrize("there", [{}, {"producer_byte_rate": 5.0}, {"request_percentage": 10.0}])
def test_quotas_are_complete_if_the_spec_has_any(there: dict[str, float]) -> None:
    spec = UserSpec(REF, "alice", quotas={"producer_byte_rate": 9.0})
    seen = SeenUser({MECHANISM: ITERATIONS}, quotas=there)
    (change,) = plan(spec, seen, None, is_new=False)
    assert change == SetQuotas(
        "alice", {"producer_byte_rate": 9.0}, tuple(set(there) - {"producer_byte_rate"})
    )
    assert plan(UserSpec(REF, "alice"), seen, None, is_new=False) == ()
    assert SetQuotas("alice", {}, tuple(there)) in (*plan_removal(spec, seen), SetQuotas("alice", {}, ()))


def test_the_operators_own_name_is_taken() -> None:
    with pytest.raises(InvalidSpec, match="own user"):
        UserSpec.of(body("User", "ottla-operator", {"cluster": {"name": "main"}}))
    with pytest.raises(InvalidSpec, match="needs a name"):
        UserSpec.of(
            body(
                "User",
                "a",
                {"cluster": {"name": "main"}, "acls": [{"resourceType": "TOPIC", "operations": ["READ"]}]},
            )
        )


class Users:
    def __init__(self, authentication: str = "scram", **listeners: Any) -> None:
        self.world = World()
        self.world.clock.now = 1_700_000_000.0
        self.world.put(cluster(listeners={"tls": {"authentication": authentication}, **listeners}))
        self.look = UserLook(self.world.tools)

    def put(self, name: str = "alice", **spec: Any) -> tuple[str, str]:
        made = body("User", name, {"cluster": {"name": "main"}, **spec})
        return self.world.put(made)

    def ready(self, key: tuple[str, str]) -> tuple[bool, str]:
        asyncio.run(self.look.look(key))
        row = self.world.sync("User", key[1])["status"]["conditions"][0]
        return row["status"] == "True", row["reason"]

    def secret(self, name: str) -> dict[str, bytes]:
        return {key: b64decode(text) for key, text in self.world.kube.find("Secret", name)["data"].items()}


def test_a_password_is_made_once_and_removed_with_the_user() -> None:
    users = Users()
    key = users.put(acls=[{"resourceType": "TOPIC", "name": "orders", "operations": ["READ"]}])
    assert users.ready(key) == (True, "Reconciled")
    password = users.secret("alice-credentials")["password"].decode()
    assert users.world.brokers.passwords == {"alice": password} and len(password) >= 32
    assert users.world.brokers.users["alice"].acls == {READ}
    assert users.ready(key) == (True, "Reconciled")
    assert users.secret("alice-credentials")["password"].decode() == password
    found = users.world.cast.get("User", key)
    assert found is not None
    users.world.cast.remove("User", key)
    asyncio.run(users.look.remove(found))
    assert users.world.brokers.users["alice"] == SeenUser()


def test_a_foreign_secret_is_used_but_never_changed() -> None:
    users = Users()
    about = {"name": "mine", "namespace": "shop", "resourceVersion": "1"}
    theirs: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": about,
        "data": {"other": "eA=="},
    }
    users.world.kube.put(theirs)
    key = users.put(secretName="mine")
    assert users.ready(key) == (False, "SecretInUse")
    theirs["data"]["password"] = b64encode(b"chosen by a person").decode()
    users.world.kube.put(theirs)
    assert users.ready(key) == (True, "Reconciled")
    assert users.world.brokers.passwords == {"alice": "chosen by a person"}
    assert users.world.kube.find("Secret", "mine")["data"] == theirs["data"]


def test_a_client_certificate_is_made_and_renewed() -> None:
    users = Users("tls")
    key = users.put(authentication={"type": "tls"})
    assert users.ready(key) == (True, "Reconciled")
    first = read(users.secret("alice-credentials")["tls.crt"])
    authority = read(users.secret("main-clients-ca")["tls.crt"])
    assert first is not None and authority is not None
    assert (first.common_name, first.authority) == ("alice", authority.key)
    users.world.clock.now += 200 * 86_400
    assert users.ready(key) == (True, "Reconciled")
    assert read(users.secret("alice-credentials")["tls.crt"]) == first
    users.world.clock.now += 60 * 86_400
    assert users.ready(key) == (True, "Reconciled")
    renewed = read(users.secret("alice-credentials")["tls.crt"])
    assert renewed is not None and renewed.not_after_s > first.not_after_s


def test_a_user_that_no_listener_takes_is_not_ready() -> None:
    users = Users("none")
    assert users.ready(users.put()) == (False, "NoListener")
    users = Users("scram")
    assert users.ready(users.put(authentication={"type": "tls"})) == (False, "NoClientCa")
    users = Users("tls", clientCa={"secretName": "own"})
    assert users.ready(users.put(authentication={"type": "tls"})) == (False, "NoClientCa")
