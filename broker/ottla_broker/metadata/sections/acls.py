"""`acls/<type>/<pattern type>/<name>`: the ACLs of one resource pattern. [P]

acls/TOPIC/LITERAL/orders    {"v":1,"entries":[["User:alice","*","READ","ALLOW"],…]}
"""

from __future__ import annotations

from ottla_broker.acl import Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla_broker.authorizer import Rules
from ottla_broker.metadata.section import Family
from ottla_broker.metadata.values import BadValue, decode_fields, decoder, encode_fields
from ottla_core.ports.store import Entry as Stored


def _text(pattern: Pattern) -> str:
    return f"{pattern.type.name}/{pattern.pattern_type.name}/{pattern.name}"


def _pattern(text: str) -> Pattern:
    type_, _, rest = text.partition("/")
    pattern_type, _, name = rest.partition("/")
    try:
        return Pattern(ResourceType[type_], PatternType[pattern_type], name)
    except KeyError as error:
        raise BadValue(f"{error} is not known to this broker.") from None


def _encode(rules: Rules) -> bytes:
    rows = [[e.principal, e.host, e.operation.name, e.permission.name] for e in rules.entries]
    return encode_fields({"entries": rows})


@decoder
def _decode(entry: Stored) -> Rules:
    rows = decode_fields(entry.value)["entries"]
    return Rules(
        Entry(str(principal), str(host), Operation[operation], Permission[permission])
        for principal, host, operation, permission in rows
    )


ACLS: Family[Pattern, Rules] = Family("acls/", _text, _pattern, _encode, _decode)
