"""`config/…`: settings that can change at run time, of brokers and of consumer groups. [P]

config/broker/<id>|default    {"v":1,"config":{…}}
config/groups/<group id>      {"v":1,"config":{…}}
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla_broker.metadata.section import Family
from ottla_broker.metadata.values import decode_fields, decoder, encode_fields, take_texts
from ottla_core.ports.store import Entry

#: The key of "all brokers" in `config/broker/<…>`; the image's key for it is "".
_ALL_BROKERS = "default"


def _encode(config: Mapping[str, str]) -> bytes:
    return encode_fields({"config": dict(config)})


@decoder
def _decode(entry: Entry) -> Mapping[str, str]:
    return take_texts(decode_fields(entry.value), "config")


#: By broker id as text, or "" for all brokers.
BROKER_CONFIGS: Family[str, Mapping[str, str]] = Family(
    "config/broker/",
    lambda broker: broker or _ALL_BROKERS,
    lambda text: "" if text == _ALL_BROKERS else text,
    _encode,
    _decode,
)
GROUP_CONFIGS: Family[str, Mapping[str, str]] = Family("config/groups/", str, str, _encode, _decode)
