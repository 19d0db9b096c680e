"""Values in JSON, Avro or Protobuf as a column of JSON text, by a schema file. [A]

    from pyspark_ottla.decode import decoded

    text = decoded("value", "avro:event.avsc")
    rows.select(from_json(text, "user string, time timestamp").alias("event"))

The formats and decoders are those of `ottla consume --decode`. The schema file is read on the driver and sent to the
executors as one piece. It needs `ottla[decode]` on both, and no jar.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla_client.decode_spec import DecodeSpec, SchemaProblem, decode_specs
from ottla_client.decoders import decoder, frozen
from ottla_client.json_text import json_line

if TYPE_CHECKING:
    from pyspark.sql import Column

_SUFFIXES = {"json": ".json", "avro": ".avsc", "protobuf": ".desc"}
#: Schemas of a worker's recent tasks.
_DECODERS_MAX = 8


def decoded(column: str | Column, wanted: str) -> Column:
    """The column's values as JSON text; null for values that do not fit the schema.

    `wanted` is FORMAT[:FILE][#MESSAGE]. Raises ValueError, with a sentence, if it or the schema file is wrong.
    """
    from pyspark.sql.pandas.functions import arrow_udf

    (spec,) = decode_specs([wanted])
    if spec.part != "value":
        raise ValueError(f"{wanted!r} names a part of the record; give the column instead.")
    content = frozen(spec)
    decoder_of(spec, content)  # on the driver, for its error

    def texts(values: pa.Array) -> pa.Array:
        return json_texts(values, spec, content)

    # In this module annotations are texts, in which Spark cannot look for the kind of function.
    texts.__annotations__ = {"values": pa.Array, "return": pa.Array}
    function: Any = arrow_udf  # its types know no names of types
    made: Column = function(texts, "string")(column)
    return made


def value_text(wanted: str | None) -> Column:
    """JSON text of the column `value`; without a format, the values are text already."""
    from pyspark.sql import functions as f

    return f.col("value").cast("string") if wanted is None else decoded("value", wanted)


def json_texts(values: Any, spec: DecodeSpec, content: bytes) -> Any:
    decode = decoder_of(spec, content)
    return pa.array([_text(decode, value) for value in values.to_pylist()], pa.string())


def _text(decode: Callable[[bytes], Any], value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return json_line(decode(value)).decode()
    except Exception:  # libraries raise many kinds for bytes that are not theirs
        return None


@lru_cache(maxsize=_DECODERS_MAX)
def decoder_of(spec: DecodeSpec, content: bytes) -> Callable[[bytes], Any]:
    if not spec.file:
        return decoder(spec)
    with tempfile.NamedTemporaryFile(suffix=_SUFFIXES[spec.format]) as file:
        file.write(content)
        file.flush()
        try:
            return decoder(replace(spec, file=file.name))
        except SchemaProblem as wrong:
            raise SchemaProblem(str(wrong).replace(file.name, spec.file)) from None
