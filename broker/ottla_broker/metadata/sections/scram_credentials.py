"""`credentials/scram/<mechanism>/<user>`: what a user's password is checked with. [P]

{"v":1,"salt":"…","iterations":4096,"stored_key":"…","server_key":"…"}

Bytes are base64. Anyone who can read these keys can try passwords offline, and can pretend to be a broker: only brokers
may read etcd.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import NamedTuple

from ottla_broker.metadata.section import Family
from ottla_broker.metadata.values import BadValue, Fields, decode_fields, decoder, encode_fields, take_int
from ottla_core.ports.store import Entry
from ottla_core.scram import Credential


class CredentialId(NamedTuple):
    mechanism: str
    user: str


def _id_from_text(text: str) -> CredentialId:
    mechanism, slash, user = text.partition("/")
    if not (mechanism and slash and user):
        raise BadValue(f"{text[:40]!r} is not a mechanism and a user.")
    return CredentialId(mechanism, user)


def _encode(credential: Credential) -> bytes:
    return encode_fields(
        {
            "salt": b64encode(credential.salt).decode(),
            "iterations": credential.iterations,
            "stored_key": b64encode(credential.stored_key).decode(),
            "server_key": b64encode(credential.server_key).decode(),
        }
    )


@decoder
def _decode(entry: Entry) -> Credential:
    fields = decode_fields(entry.value)
    salt, stored, server = (_take_bytes(fields, name) for name in ("salt", "stored_key", "server_key"))
    return Credential(salt, take_int(fields, "iterations"), stored, server)


def _take_bytes(fields: Fields, name: str) -> bytes:
    found = fields.pop(name, None)
    if not isinstance(found, str) or not found:
        raise BadValue(f'"{name}" is not base64')
    return b64decode(found, validate=True)


SCRAM_CREDENTIALS: Family[CredentialId, Credential] = Family(
    "credentials/scram/", "/".join, _id_from_text, _encode, _decode
)
