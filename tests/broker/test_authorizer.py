"""The authoriser against a naive model of Kafka's rules, and the rules one by one."""

from __future__ import annotations

from timeit import timeit

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_broker.acl import (
    EVERY_OPERATION,
    SUPPORTED,
    Binding,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from ottla_broker.authorizer import Authorizer, AuthorizerSettings, Rules

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def authorizer_of(bindings: list[Binding], settings: AuthorizerSettings | None = None) -> Authorizer:
    by_pattern: dict[Pattern, list[Entry]] = {}
    for pattern, entry in bindings:
        by_pattern.setdefault(pattern, []).append(entry)
    acls = {pattern: Rules(entries) for pattern, entries in by_pattern.items()}
    return Authorizer(acls, settings or AuthorizerSettings())


def binding(
    name: str,
    operation: Operation,
    permission: Permission = ALLOW,
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: PatternType = LITERAL,
    type_: ResourceType = TOPIC,
) -> Binding:
    return Binding(Pattern(type_, pattern, name), Entry(principal, host, operation, permission))


def may(
    made: Authorizer, operation: Operation, name: str, principal: str = "User:alice", host: str = "1.1.1.1"
) -> bool:
    return bool(made.allowed(principal, host, TOPIC, name) >> operation & 1)


def test_nothing_is_allowed_without_acls() -> None:
    assert authorizer_of([]).allowed("User:alice", "1.1.1.1", TOPIC, "t") == 0


def test_everything_is_allowed_without_acls_if_set_so_and_only_on_resources_without_any() -> None:
    made = authorizer_of(
        [binding("t", Operation.READ, principal="User:bob")], AuthorizerSettings(allow_if_no_acl=True)
    )
    assert made.allowed("User:alice", "1.1.1.1", TOPIC, "other") == EVERY_OPERATION
    assert made.allowed("User:alice", "1.1.1.1", TOPIC, "t") == 0
    assert made.allowed("User:alice", "1.1.1.1", GROUP, "t") == EVERY_OPERATION


def test_super_users_may_do_everything_even_what_is_denied() -> None:
    made = authorizer_of(
        [binding("*", Operation.ALL, DENY, principal="User:*")],
        AuthorizerSettings(frozenset(["User:root"])),
    )
    assert made.allowed("User:root", "", TOPIC, "t") == EVERY_OPERATION
    assert made.allowed_somewhere("User:root", "", Operation.WRITE, TOPIC)
    assert made.allowed("User:alice", "", TOPIC, "t") == 0


def test_read_write_delete_and_alter_imply_describe() -> None:
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        made = authorizer_of([binding("t", operation)])
        assert made.allowed("User:alice", "", TOPIC, "t") == 1 << operation | 1 << Operation.DESCRIBE
    made = authorizer_of([binding("t", Operation.ALTER_CONFIGS)])
    assert may(made, Operation.DESCRIBE_CONFIGS, "t")
    assert not may(made, Operation.DESCRIBE, "t")


def test_deny_of_one_operation_leaves_what_others_imply() -> None:
    made = authorizer_of([binding("t", Operation.ALL), binding("t", Operation.READ, DENY)])
    assert not may(made, Operation.READ, "t")
    assert may(made, Operation.DESCRIBE, "t")
    made = authorizer_of([binding("t", Operation.READ), binding("t", Operation.DESCRIBE, DENY)])
    assert may(made, Operation.READ, "t")
    assert not may(made, Operation.DESCRIBE, "t")


def test_a_denied_prefix_beats_an_allowed_name() -> None:
    made = authorizer_of(
        [binding("secret-plans", Operation.READ), binding("secret-", Operation.READ, DENY, pattern=PREFIXED)]
    )
    assert not may(made, Operation.READ, "secret-plans")


def test_a_host_limits_an_acl() -> None:
    made = authorizer_of([binding("t", Operation.READ, host="1.1.1.1")])
    assert may(made, Operation.READ, "t", host="1.1.1.1")
    assert not may(made, Operation.READ, "t", host="2.2.2.2")


def test_allowed_somewhere() -> None:
    write = Operation.WRITE

    def somewhere(*bindings: Binding) -> bool:
        return authorizer_of(list(bindings)).allowed_somewhere("User:alice", "", write, TOPIC)

    assert not somewhere()
    assert somewhere(binding("t", write))
    assert somewhere(binding("*", write))
    assert not somewhere(binding("t", write, type_=GROUP))
    assert not somewhere(binding("t", write), binding("*", Operation.ALL, DENY))
    assert not somewhere(binding("team-a", write), binding("team-", write, DENY, pattern=PREFIXED))
    assert somewhere(binding("team-", write, pattern=PREFIXED), binding("team-a", write, DENY))
    assert not somewhere(
        binding("team-", write, pattern=PREFIXED), binding("te", write, DENY, pattern=PREFIXED)
    )
    open_to_all = AuthorizerSettings(allow_if_no_acl=True)
    assert authorizer_of([], open_to_all).allowed_somewhere("User:alice", "", write, TOPIC)


_NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "ba"])
_BINDINGS = st.builds(
    Binding,
    st.builds(
        Pattern,
        st.sampled_from([TOPIC, GROUP, CLUSTER]),
        st.sampled_from(list(PatternType)),
        _NAMES,
    ),
    st.builds(
        Entry,
        st.sampled_from(["User:*", "User:alice", "User:bob"]),
        st.sampled_from(["*", "1.1.1.1", "2.2.2.2"]),
        st.sampled_from(list(Operation)),
        st.sampled_from(list(Permission)),
    ),
)
_IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def naive(
    bindings: list[Binding],
    given_: AuthorizerSettings,
    principal: str,
    host: str,
    operation: Operation,
    resource: tuple[ResourceType, str],
) -> bool:
    """Kafka's documentation, word by word, over all ACLs."""
    if principal in given_.super_users:
        return True
    type_, name = resource
    about = [
        entry
        for pattern, entry in bindings
        if pattern.type == type_
        and (
            name.startswith(pattern.name) if pattern.pattern_type == PREFIXED else pattern.name in (name, "*")
        )
    ]
    if not about:
        return given_.allow_if_no_acl
    mine = [e for e in about if e.principal in (principal, "User:*") and e.host in (host, "*")]
    if any(e.permission == DENY and e.operation in (operation, Operation.ALL) for e in mine):
        return False
    enough = {operation, Operation.ALL} | _IMPLYING.get(operation, set())
    return any(e.permission == ALLOW and e.operation in enough for e in mine)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(_BINDINGS, max_size=8),
    st.booleans(),
    st.sampled_from([frozenset[str](), frozenset(["User:bob"])]),
)
def test_decisions_are_those_of_the_naive_model(
    bindings: list[Binding], open_: bool, super_users: frozenset[str]
) -> None:
    given_ = AuthorizerSettings(super_users, open_)
    made = authorizer_of(bindings, given_)
    for principal in ("User:alice", "User:bob", "User:eve"):
        for resource in ((TOPIC, "abc"), (TOPIC, "b"), (GROUP, "ab"), (CLUSTER, "x"), (TOPIC, "*")):
            allowed = made.allowed(principal, "1.1.1.1", *resource)
            for operation in Operation:
                if operation is not Operation.ALL:
                    expected = naive(bindings, given_, principal, "1.1.1.1", operation, resource)
                    assert bool(allowed >> operation & 1) == expected, (principal, resource, operation)


@settings(max_examples=200, deadline=None)
@given(st.lists(_BINDINGS, max_size=8))
def test_somewhere_is_where_any_name_is_allowed(bindings: list[Binding]) -> None:
    """Names that the ACLs mention, and longer ones, are all that can make a difference."""
    made = authorizer_of(bindings)
    # Names that end with a character no ACL has stand for "anything else that starts so".
    names = {b.pattern.name for b in bindings if b.pattern.name != "*"}
    names |= {f"{name}~" for name in names} | {"~"}
    for principal in ("User:alice", "User:eve"):
        anywhere = any(
            made.allowed(principal, "1.1.1.1", TOPIC, name) >> Operation.WRITE & 1 for name in names
        )
        if anywhere:
            assert made.allowed_somewhere(principal, "1.1.1.1", Operation.WRITE, TOPIC)


def test_supported_operations_are_kafkas() -> None:
    assert SUPPORTED[TOPIC] == 0b1101_1111_1000
    assert SUPPORTED[CLUSTER] == sum(1 << n for n in (5, 7, 8, 9, 10, 11, 12))


def test_a_decision_among_many_acls_is_cheap() -> None:
    bindings = [binding(f"topic-{n}", Operation.READ, principal=f"User:u{n % 100}") for n in range(9_000)]
    bindings += [binding(f"p{n:04}-", Operation.WRITE, pattern=PREFIXED) for n in range(1_000)]
    made = authorizer_of(bindings)
    assert made.allowed("User:u7", "1.1.1.1", TOPIC, "topic-7") >> Operation.READ & 1
    # Takes some 3 µs; a scan of all ACLs takes a thousand times as long.
    assert timeit(lambda: made.allowed("User:u7", "1.1.1.1", TOPIC, "topic-7"), number=1000) < 0.1
