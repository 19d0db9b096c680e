"""`cordons/<broker id>`: brokers that get no new replicas. The key exists while the broker is cordoned. [P]

{"v":1}

Not a field of `members/<id>`: writers of partitions compare that key, and a cordon must not make them fail.
"""

from __future__ import annotations

from ottla_broker.metadata.section import Family
from ottla_broker.metadata.values import Extra, decode_fields, decoder, encode_fields, number_from_text
from ottla_core.ports.store import Entry


@decoder
def _decode(entry: Entry) -> Extra:
    return tuple(decode_fields(entry.value).items())


#: The value has no fields yet; those of a newer version are kept.
CORDONS: Family[int, Extra] = Family(
    "cordons/", str, number_from_text, lambda extra: encode_fields({}, extra), _decode
)
