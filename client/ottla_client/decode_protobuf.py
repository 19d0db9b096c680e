"""Protobuf messages as JSON, by a .proto file or a descriptor set. [A]

protoc compiles .proto files: the one of grpcio-tools, or the one on the PATH. A descriptor set is what
`protoc --include_imports -o FILE` writes; it needs no compiler.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from ottla_client.decode_spec import DecodeSpec, SchemaProblem, message_indexes

_COMPILE_S = 30


def protobuf(spec: DecodeSpec) -> Callable[[bytes], Any]:
    with open(spec.file, "rb") as opened:
        data = opened.read()
    files = _descriptors(spec.file, compiled(spec.file) if spec.file.endswith(".proto") else data)
    pool = descriptor_pool.DescriptorPool()
    try:
        for each in files.file:
            pool.Add(each)
        wanted = _wanted(spec, pool, files)
    except TypeError as wrong:
        raise SchemaProblem(
            f"{spec.file} is incomplete: {' '.join(str(wrong).split())}. `protoc --include_imports -o` writes a "
            "descriptor set with everything it needs.",
        ) from None
    kind = message_factory.GetMessageClass(wanted)

    def decode(data: bytes) -> Any:
        if spec.registry:
            path, data = message_indexes(data)
            _check(path, wanted)
        message = kind()
        message.ParseFromString(data)
        if not message.IsInitialized():
            raise ValueError("a required field is missing")
        if not message.ListFields() and len(unknown_fields.UnknownFieldSet(message)):
            # Newer writers may add fields; bytes with nothing but unknown fields are another message.
            raise ValueError(f"it has no field of {wanted.full_name}")
        return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)

    return decode


def _check(path: list[int], wanted: Descriptor) -> None:
    """That the record says to be the wanted message."""
    level: list[Descriptor] = list(wanted.file.message_types_by_name.values())
    found = None
    for index in path:
        if not 0 <= index < len(level):
            raise ValueError(f"it names message {path}, which {wanted.file.name} does not have")
        found = level[index]
        level = list(found.nested_types)
    if found is not None and found.full_name != wanted.full_name:
        raise ValueError(f"it is a {found.full_name}, not a {wanted.full_name}")


def _wanted(
    spec: DecodeSpec, pool: descriptor_pool.DescriptorPool, files: descriptor_pb2.FileDescriptorSet
) -> Descriptor:
    """The message by its name, which may lack the package; without a name the only message of the last file, which is
    the one that was compiled."""
    last = pool.FindFileByName(files.file[-1].name)
    own = [each.full_name for each in last.message_types_by_name.values()]
    if not spec.message and len(own) == 1:
        return pool.FindMessageTypeByName(own[0])
    if not spec.message:
        raise SchemaProblem(
            f"{spec.file} has {len(own)} messages; choose one: protobuf:{spec.file}#{own[0] if own else 'NAME'}.",
        )
    for name in (spec.message, *(f"{each.package}.{spec.message}" for each in reversed(files.file))):
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError:
            continue
    raise SchemaProblem(
        f"{spec.file} has no message {spec.message!r}; it has {', '.join(own[:10]) or 'none'}."
    )


def _descriptors(file: str, data: bytes) -> descriptor_pb2.FileDescriptorSet:
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(data)
    except DecodeError:
        found = descriptor_pb2.FileDescriptorSet()
    if not found.file:
        raise SchemaProblem(
            f"{file} is neither a .proto file nor a descriptor set (`protoc --include_imports -o FILE`).",
        )
    return found


def compiled(file: str) -> bytes:
    """The descriptor set of a .proto file; imports are looked for beside it and from the working directory."""
    tools = importlib.util.find_spec("grpc_tools")
    if tools is not None and tools.origin is not None:
        included = os.path.join(os.path.dirname(tools.origin), "_proto")
        compiler = [sys.executable, "-m", "grpc_tools.protoc", f"-I{included}"]
    elif (found := shutil.which("protoc")) is not None:
        compiler = [found]
    else:
        raise ImportError("protoc")
    folder = os.path.dirname(os.path.abspath(file))
    with tempfile.TemporaryDirectory(prefix="ottla-") as scratch:
        target = os.path.join(scratch, "set")
        command = [
            *compiler,
            f"-I{folder}",
            f"-I{os.getcwd()}",
            "--include_imports",
            f"--descriptor_set_out={target}",
        ]
        done = subprocess.run(
            [*command, os.path.basename(file)],
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "warning" not in line.lower()]
            why = " ".join((lines or done.stderr.splitlines() or ["protoc failed"])[0].split()).rstrip(".")
            raise SchemaProblem(
                f"{file} does not compile: {why}. If imports are elsewhere, give a descriptor set "
                "(`protoc --include_imports -o FILE`).",
            )
        with open(target, "rb") as opened:
            return opened.read()
