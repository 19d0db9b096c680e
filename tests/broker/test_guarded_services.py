"""Guards of services: none passes a call through, decisions follow the ACLs, and they cost little."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace
from time import process_time
from timeit import timeit
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast, get_type_hints

import pytest

from ottla_broker.acl import CLUSTER_NAME, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla_broker.authorizer import Authorizer, AuthorizerSettings, Rules
from ottla_broker.caller import Caller
from ottla_broker.event_loop import in_turns
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import AuthorizerProbe
from ottla_broker.requests import FetchWant, Write
from ottla_broker.service.access import TOPIC, Access, Authority, Bystander, FullAccess
from ottla_broker.service.audit import FAILED_LOGINS, FIRST_LOGINS, USES, Audit
from ottla_broker.service.guarded.producing import GuardedProducing
from ottla_broker.service.guarded.records import GuardedRecords
from ottla_broker.service.guarded.topics import GuardedTopics
from ottla_broker.service.guarded.transactions import GuardedTransactions
from ottla_broker.service.services import GUARDS, Services
from ottla_broker.steps import Steps
from ottla_core.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from ottla_core.ids import TopicPartition

#: Methods of services that are not for clients: edges cannot call them.
NOT_FOR_CLIENTS = {
    "records": {"append", "acknowledged"},
    "groups": {
        "on_image",
        "close",
        "refresh_metrics",
        "committed",
        "partition_of",
        "begin_verification",
        "end_transaction",
    },
    "transactions": {"on_image", "close", "refresh_metrics", "partitions_anywhere"},
    "lags": {"ask_leaders"},
    "metrics": {"stop"},
}
#: They need no right: what they do or show belongs to the caller, or a handler checks it.
UNCHECKED = {
    ("topics", "settling"),
    ("topics", "creates_missing"),
    ("configs", "describe_new_topic"),
    ("transactions", "now_ms"),
    ("lags", "ms"),
}


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


@pytest.mark.parametrize("field", sorted(GUARDS))
def test_a_guard_has_what_edges_call_and_nothing_else(field: str) -> None:
    service, guard = get_type_hints(Services)[field], GUARDS[field]
    inherited = {name for base in guard.__mro__[1:-1] for name in vars(base)}
    assert not inherited, "a guard inherits nothing, or methods would pass unchecked"
    assert not hasattr(guard, "__getattr__")
    offered = public(service) | ({"settling"} if field == "topics" else set())
    # A new method of a service needs a guard, or a row in NOT_FOR_CLIENTS.
    assert public(guard) == offered - NOT_FOR_CLIENTS.get(field, set())


@pytest.mark.parametrize("field", sorted(GUARDS))
def test_a_guard_has_the_signatures_of_its_service(field: str) -> None:
    service, guard = get_type_hints(Services)[field], GUARDS[field]
    for name in public(guard) & public(service):
        made = getattr(guard, name)
        if isinstance(made, property):
            continue
        inner = inspect.signature(getattr(service, name)).parameters
        for parameter in inspect.signature(made).parameters.values():
            assert (parameter.kind, parameter.default) == (
                inner[parameter.name].kind,
                inner[parameter.name].default,
            ), f"{field}.{name}({parameter.name})"


class Nothing(FullAccess):
    """Allows nothing."""

    is_full = False

    def may(self, operation: Operation, type_: ResourceType, name: str) -> bool:
        return False

    allows = may_by_cluster = may

    def may_write(self, topic: str) -> bool:
        return False

    may_read = may_write

    def may_somewhere(self, operation: Operation, type_: ResourceType) -> bool:
        return False

    def operations(self, type_: ResourceType, name: str) -> int:
        return 0

    def check(self, operation: Operation, type_: ResourceType, name: str) -> None:
        raise self.refusal(operation, type_, name)

    def check_cluster(self, operation: Operation) -> None:
        raise ClusterAuthorizationFailed()


class Behind:
    """A service of which every call is noted. What it lists is there to be left out."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*positional: Any, **_: Any) -> Any:
            self.calls.append((name, positional))
            return _LISTED[name]() if name in _LISTED else []

        return call


def _listed(*rows: Any) -> Steps[list[Any]]:
    yield None
    return list(rows)


TP = TopicPartition("t", 0)
_LISTED = {
    "list_groups": lambda: _listed(SimpleNamespace(group="g")),
    "list_transactions": lambda: _listed(SimpleNamespace(transactional_id="x")),
}
#: By the names of parameters, where a plain object will not do.
ARGUMENTS: dict[str, Any] = {
    "writes": [Write(TP, b"x")],
    "wants": [FetchWant(TP, 0, 1)],
    "tp": TP,
    "partitions": [TP],
    "names": ["t"],
    "offsets": [SimpleNamespace(tp=TP)],
    "topics": [SimpleNamespace(name="t")],
    "name": "t",
    "group": "g",
    "transactional_id": "x",
    "request": SimpleNamespace(group="g", topics=("t",)),
}


@pytest.mark.parametrize(
    ("field", "name"),
    [(field, name) for field in sorted(GUARDS) for name in sorted(public(GUARDS[field]))],
)
async def test_without_rights_nothing_gets_behind_a_guard(field: str, name: str) -> None:
    if (field, name) in UNCHECKED:
        return
    behind = Behind()
    method = getattr(GUARDS[field](behind, Nothing()), name)
    needed = inspect.signature(method).parameters.values()
    given = {each.name: ARGUMENTS.get(each.name, 0) for each in needed if each.default is each.empty}
    answer: Any = None
    try:
        answer = method(**given)
        if inspect.isgenerator(answer):
            answer = await in_turns(answer)
        if inspect.isawaitable(answer):
            answer = await answer
    except (
        TopicAuthorizationFailed,
        GroupAuthorizationFailed,
        ClusterAuthorizationFailed,
        TransactionalIdAuthorizationFailed,
    ):
        pass
    for called, positional in behind.calls:
        if called in _LISTED:
            assert answer == [], "what the caller may not see is left out"
        else:
            assert called in ("produce", "produce_in_steps", "fetch", "fetch_in_steps")
            assert all(each.refusal is not None for each in positional[0])


def test_each_service_has_a_guard() -> None:
    plain = {"config", "metadata", "authority", "caller", "access", "throttling"}
    assert set(get_type_hints(Services)) - plain == set(GUARDS)


# ---------------------------------------------------------------------- decisions

ALICE = Caller("User:alice", "app", "10.0.0.7", "SSL")


class World:
    """ACLs that can change, and the audit log that a caller leaves."""

    def __init__(self, level: str = "info") -> None:
        self._subscribers: list[Any] = []
        self.metadata = SimpleNamespace(image=ClusterImage("c"), subscribe=self._subscribers.append)
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.probe = AuthorizerProbe()
        self.timers: list[Any] = []
        log = SimpleNamespace(
            info=lambda event, **more: self.lines.append(("info", event, more)),
            debug=lambda event, **more: self.lines.append(("debug", event, more)),
        )
        self.audit = Audit(level, self.probe, log, lambda _, call: self.timers.append(call))
        settings = AuthorizerSettings(frozenset({"User:admin"}))
        self.authority = Authority(settings, cast(Any, self.metadata), self.audit)

    def allow(
        self,
        *operations: Operation,
        topic: str = "t",
        principal: str = "User:alice",
        on: ResourceType = ResourceType.TOPIC,
    ) -> None:
        pattern = Pattern(on, PatternType.LITERAL, topic)
        rules = Rules(Entry(principal, "*", each, Permission.ALLOW) for each in operations)
        acls = MappingProxyType({**self.metadata.image.acls, pattern: rules})
        self._change(acls)

    def forget(self) -> None:
        self._change(MappingProxyType({}))

    def _change(self, acls: Any) -> None:
        old, self.metadata.image = self.metadata.image, replace(self.metadata.image, acls=acls)
        for call in self._subscribers:
            call(old, self.metadata.image)

    def access(self, caller: Caller = ALICE) -> Access:
        return self.authority.of(caller)


def test_decisions_follow_the_acls() -> None:
    world = World()
    alice = world.access()
    assert not alice.may_write("t")
    world.allow(Operation.WRITE)
    assert alice.may_write("t")
    assert not alice.may_read("t")
    assert alice.allows(Operation.DESCRIBE, TOPIC, "t"), "Write implies Describe"
    assert world.access() is alice, "decisions are kept per caller"
    world.forget()
    assert not alice.may_write("t"), "a right that is taken away ends with the next request"
    assert world.access(replace(ALICE, principal="User:admin")).is_full


def test_a_refusal_says_what_is_missing() -> None:
    with pytest.raises(
        TopicAuthorizationFailed, match="User:alice needs an ACL that allows READ on topic 't'"
    ):
        World().access().check(Operation.READ, TOPIC, "t")


class Asked:
    """Stands in for a service: remembers what gets through."""

    def __init__(self) -> None:
        self.given: Any = None

    def produce(self, writes: Any, **_: Any) -> list[Any]:
        self.given = list(writes)
        return []

    def fetch(self, wants: Any, **_: Any) -> list[Any]:
        self.given = list(wants)
        return []


def test_produce_and_fetch_are_refused_per_topic() -> None:
    world, service = World(), Asked()
    world.allow(Operation.WRITE, Operation.READ, topic="mine")
    mine, theirs = TopicPartition("mine", 0), TopicPartition("theirs", 0)
    GuardedProducing(cast(Any, service), world.access()).produce(
        [Write(mine, b"x"), Write(theirs, b"x")], acks=1, timeout_s=1
    )
    first, second = service.given
    assert first.refusal is None
    assert isinstance(second.refusal, TopicAuthorizationFailed)
    GuardedRecords(cast(Any, service), world.access()).fetch(
        [FetchWant(theirs, 0, 1), FetchWant(mine, 0, 1)], max_wait_s=0, min_bytes=1, max_bytes=1
    )
    first, second = service.given
    assert isinstance(first.refusal, TopicAuthorizationFailed)
    assert second.refusal is None


def test_an_allowed_append_costs_less_than_a_microsecond_more() -> None:
    world, service = World(), Asked()
    world.allow(Operation.WRITE)
    guard = GuardedProducing(cast(Any, service), world.access())
    writes = [Write(TopicPartition("t", 0), b"x")]
    times = 20_000

    def cost_s(call: Any) -> float:
        # Of this process, because others are busy, too.
        runs = (
            timeit(lambda: call(writes, acks=1, timeout_s=1.0), timer=process_time, number=times)
            for _ in range(7)
        )
        return min(runs) / times

    # Half a microsecond on a quiet machine; the goal is one.
    assert cost_s(guard.produce) - cost_s(service.produce) < 3e-6


# ---------------------------------------------------------------------- audit log


def test_denials_are_one_line_per_second_with_their_number() -> None:
    world = World()
    for _ in range(1000):
        world.access().may_write("t")
    assert world.lines == []
    assert len(world.timers) == 1
    world.timers.pop()()
    ((level, event, more),) = world.lines
    assert (level, event) == ("info", "denied")
    assert more == {
        "principal": "User:alice",
        "operation": "WRITE",
        "resource": "TOPIC:t",
        "host": "10.0.0.7",
        "client_id": "app",
        "listener": "SSL",
        "times": 1000,
    }
    assert world.probe.denied.of("TOPIC:WRITE").n == 1000


def test_allowed_uses_of_data_are_reported_once_and_at_debug_only() -> None:
    for level, expected in (("info", 0), ("debug", 1)):
        world = World(level)
        world.allow(Operation.WRITE)
        for _ in range(3):
            world.access().may_write("t")
            world.audit.flush()
        assert [line[:2] for line in world.lines] == [("debug", "allowed")] * expected


def test_allowed_administration_is_reported_each_time() -> None:
    world = World()
    world.allow(Operation.DELETE)
    for _ in range(3):
        world.access().may(Operation.DELETE, TOPIC, "t")
        world.audit.flush()
    assert [line[:2] for line in world.lines] == [("info", "allowed")] * 3


def test_lines_of_one_principal_are_bounded() -> None:
    world = World()
    for number in range(USES.share_max + 5):
        world.access().may_write(f"t{number}")
    world.audit.flush()
    assert len(world.lines) == USES.share_max
    assert world.probe.left_out == world.lines[0][2]["left_out"] == 5


def test_neither_denials_nor_failed_logins_leave_out_administration() -> None:
    world = World()
    world.allow(Operation.DELETE, principal="User:admin2")
    for number in range(1000):
        mallory = replace(ALICE, principal=f"User:mallory-{number}")
        world.access(mallory).may_write("t")
        world.audit.login_failed(
            f"user-{number}", "wrong", mechanism="PLAIN", address=f"10.0.{number % 4}.1", listener="SASL"
        )
    world.access(replace(ALICE, principal="User:admin2")).may(Operation.DELETE, TOPIC, "t")
    world.audit.flush()
    events = Counter(event for _, event, _ in world.lines)
    assert events == {"denied": USES.lines_max, "login failed": 4 * FAILED_LOGINS.share_max, "allowed": 1}
    assert world.probe.left_out == 2001 - len(world.lines)


def test_one_address_does_not_leave_out_the_logins_of_others() -> None:
    world = World()
    for number in range(1000):
        world.audit.login_failed(
            f"user-{number}", "wrong", mechanism="PLAIN", address="10.0.0.1", listener="SASL"
        )
    world.audit.login_failed("bob", "wrong", mechanism="PLAIN", address="10.0.0.2", listener="SASL")
    world.audit.flush()
    assert len(world.lines) == FAILED_LOGINS.share_max + 1
    assert world.lines[-1][2]["user"] == "bob"


def test_a_login_is_reported_when_a_principal_first_comes_from_an_address() -> None:
    world = World()
    for address in ("10.0.0.7", "10.0.0.7", "10.0.0.8"):
        world.audit.logged_in("alice", mechanism="PLAIN", address=address, listener="SASL")
        world.audit.flush()
    assert [(event, more["principal"], more["host"]) for _, event, more in world.lines] == [
        ("logged in", "User:alice", "10.0.0.7"),
        ("logged in", "User:alice", "10.0.0.8"),
    ]


async def test_without_an_authoriser_administration_is_reported_and_nothing_is_refused() -> None:
    world, service = World("debug"), Topics()
    access = Bystander(world.audit).of(ALICE)
    await GuardedTopics(cast(Any, service), access).create(
        [cast(Any, SimpleNamespace(name="t"))], validate_only=False, timeout_s=1
    )
    access.check_cluster(Operation.ALTER)
    access.check(Operation.READ, TOPIC, "t")
    assert access.may_write("t") and "t" in access.writable and access.is_full
    world.audit.flush()
    assert service.made == ["t"]
    assert [(event, more["operation"], more["resource"]) for _, event, more in world.lines] == [
        ("allowed", "CREATE", "TOPIC:t"),
        ("allowed", "ALTER", "CLUSTER:kafka-cluster"),
    ]


class Topics:
    """Stands in for the service of topics: notes the names that get through."""

    creates_missing = True

    def __init__(self) -> None:
        self.made: list[str] = []

    async def create(self, topics: Any, **_: Any) -> list[Any]:
        self.made += [each.name for each in topics]
        return []

    async def ensure(self, names: Any) -> None:
        self.made += names


@pytest.mark.parametrize("on_cluster", [True, False])
async def test_creation_is_reported_with_the_topic_whatever_allows_it(on_cluster: bool) -> None:
    world, service = World(), Topics()
    if on_cluster:
        world.allow(Operation.CREATE, topic=CLUSTER_NAME, on=ResourceType.CLUSTER)
        world.allow(Operation.DESCRIBE)
    else:
        world.allow(Operation.CREATE, Operation.DESCRIBE)
    guard = GuardedTopics(cast(Any, service), world.access())
    await guard.create([cast(Any, SimpleNamespace(name="t"))], validate_only=False, timeout_s=1)
    world.audit.flush()
    await guard.ensure(["t"])
    world.audit.flush()
    assert service.made == ["t", "t"]
    assert [(event, more["operation"], more["resource"]) for _, event, more in world.lines] == [
        ("allowed", "CREATE", "TOPIC:t")
    ] * 2


async def test_a_refused_creation_is_one_denial() -> None:
    world, service = World(), Topics()
    guard = GuardedTopics(cast(Any, service), world.access())
    await guard.create([cast(Any, SimpleNamespace(name="t"))], validate_only=False, timeout_s=1)
    world.audit.flush()
    assert service.made == []
    ((_, event, more),) = world.lines
    assert (event, more["resource"], more.get("times", 1)) == ("denied", "TOPIC:t", 1)


async def test_topics_that_are_not_created_by_asking_are_not_reported() -> None:
    world, service = World(), Topics()
    service.creates_missing = False
    world.allow(Operation.CREATE, Operation.DESCRIBE)
    await GuardedTopics(cast(Any, service), world.access()).ensure(["t"])
    world.audit.flush()
    assert service.made == world.lines == []


@pytest.mark.parametrize("right", [Operation.CLUSTER_ACTION, Operation.ALTER])
async def test_markers_are_reported_with_the_right_that_allows_them(right: Operation) -> None:
    world = World()
    world.allow(right, topic=CLUSTER_NAME, on=ResourceType.CLUSTER)
    behind = Behind()

    async def abort(*given: Any) -> None:
        behind.calls.append(("abort_hanging", given))

    guard = GuardedTransactions(cast(Any, SimpleNamespace(abort_hanging=abort)), world.access())
    await guard.abort_hanging(TP, 7)
    world.audit.flush()
    assert behind.calls == [("abort_hanging", (TP, 7))]
    assert [(event, more["operation"]) for _, event, more in world.lines] == [("allowed", right.name)]


def test_a_right_on_any_resource_is_decided_once_until_the_acls_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, asked = World(), list[str]()
    decide = Authorizer.allowed_somewhere

    def counted(self: Authorizer, principal: str, *more: Any) -> bool:
        asked.append(principal)
        return decide(self, principal, *more)

    monkeypatch.setattr(Authorizer, "allowed_somewhere", counted)
    alice = world.access()
    assert not any(alice.may_somewhere(Operation.WRITE, TOPIC) for _ in range(100))
    assert len(asked) == 1
    world.allow(Operation.WRITE)
    assert all(alice.may_somewhere(Operation.WRITE, TOPIC) for _ in range(100))
    assert len(asked) == 2


def test_failed_logins_do_not_hide_the_first_successful_one() -> None:
    world = World()
    for number in range(FAILED_LOGINS.lines_max * 2):
        world.audit.login_failed(
            f"user-{number}", "wrong", mechanism="PLAIN", address=f"10.0.{number % 9}.1", listener="SASL"
        )
    world.audit.logged_in("bob", mechanism="PLAIN", address="10.0.0.1", listener="SASL")
    world.audit.flush()
    assert [event for _, event, _ in world.lines][-1] == "logged in"


def test_a_first_login_without_room_is_reported_at_the_next() -> None:
    world = World()

    def log_in(user: str) -> None:
        world.audit.logged_in(user, mechanism="PLAIN", address="10.0.0.1", listener="SASL")

    for number in range(FIRST_LOGINS.share_max):
        log_in(f"user-{number}")
    log_in("bob")
    world.audit.flush()
    log_in("bob")
    world.audit.flush()
    assert world.lines[-1][2]["principal"] == "User:bob"
