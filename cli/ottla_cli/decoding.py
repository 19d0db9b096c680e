"""`ottla consume --decode`: keys and values in JSON, Avro or Protobuf, as JSON text, by a schema file. [A]

The decoders are the client's (`ottla_client.decoders`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla_cli.failure import Failure
from ottla_client.decode_spec import DecodeSpec, SchemaProblem, has_header
from ottla_client.decoders import decoder
from ottla_client.json_text import JsonText, json_line
from ottla_client.record import ConsumerRecord

_REASON_MAX = 200


class BadRecord(Exception):
    """A record does not fit its schema; the text is one sentence with topic, partition and offset."""


class Decoding:
    """The decoders of key and value."""

    def __init__(self, specs: Sequence[DecodeSpec]) -> None:
        #: Failure if a schema file or a library is missing or wrong.
        try:
            self._parts = {spec.part: (spec, decoder(spec)) for spec in specs}
        except SchemaProblem as wrong:
            raise Failure(str(wrong), exit_code=2) from None

    def __call__(self, record: ConsumerRecord) -> ConsumerRecord:
        return record._replace(
            key=self._text("key", record, record.key), value=self._text("value", record, record.value)
        )

    def _text(self, part: str, record: ConsumerRecord, data: bytes | None) -> bytes | None:
        found = self._parts.get(part)
        if found is None or data is None:
            return data
        spec, decode = found
        try:
            return JsonText(json_line(decode(data)))
        except Exception as wrong:  # libraries raise many kinds for bytes that are not theirs
            raise BadRecord(_sentence(spec, record, data, wrong)) from None


def _sentence(spec: DecodeSpec, record: ConsumerRecord, data: bytes, wrong: Exception) -> str:
    what = {"json": "JSON", "avro": "Avro", "protobuf": "Protobuf"}[spec.format]
    by = f" by {spec.file}" if spec.file else ""
    why = " ".join(str(wrong).split()) or type(wrong).__name__
    if len(why) > _REASON_MAX:
        why = f"{why[:_REASON_MAX]}…"
    hint = ""
    if not spec.registry and has_header(data):
        hint = f" It begins like bytes with the id of a schema: try {spec.format}-confluent."
    where = f"{record.topic}-{record.partition} offset {record.offset}"
    return f"{where}: the {spec.part} is not {what}{by}: {why.rstrip('.')}.{hint}"
