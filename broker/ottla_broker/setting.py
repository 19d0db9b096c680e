"""Definition of one setting: name, kind, default, reason, and parser. [P]

Only `config.py` uses it. A value is always passed as text (a flag, a
variable, a line of a file, a Kafka request) and is parsed in exactly one place, so that every refusal reads
the same: which setting, which value, what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigError(ValueError):
    """A setting cannot be used as it is; the text is one sentence for the person who wrote it."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of value: Kafka's name, what is allowed in words, and the parser (ValueError = refused)."""

    type: str  # as in service.types.ConfigValue.type
    allowed: str
    parse: Callable[[str], T]
    #: The same for programs that cannot import this one (`manifests/generate.py`): bounds, and the only values.
    low: int | None = None
    high: int | None = None
    values: tuple[str, ...] = ()
    #: Empty text is a value.
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table that `config.py` is."""

    name: str
    kind: Kind[Any]
    default: str
    doc: str

    def parse(self, text: str, source: str = "default") -> Any:
        try:
            return self.kind.parse(text.strip())
        except ValueError:
            raise ConfigError(
                f"{self.name} = {shorten(text)} (from {source}) is not valid: it must be {self.kind.allowed}."
            ) from None


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """Where one protocol is served. `name` is what Metadata answers by; port 0 takes any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return str(Address(self.host, self.port))


def setting(name: str, default: str, kind: Kind[Any], doc: str) -> Any:
    """A dataclass field that knows its setting. The default goes through the same parser as all else."""
    made = Setting(name, kind, default, doc)
    return field(default=made.parse(default), metadata={"setting": made})


def setting_of(part: Field[Any]) -> Setting | None:
    found = part.metadata.get("setting")
    return found if isinstance(found, Setting) else None


def settings_in(component: type) -> list[tuple[str, Setting]]:
    """(attribute, setting) of one component's dataclass, in the order of the source."""
    return [(part.name, found) for part in fields(component) if (found := setting_of(part))]


def whole(low: int, high: int = INT_MAX) -> Kind[int]:
    """A whole number between two bounds, both allowed."""

    def parse(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError
        return number

    top = "" if high in (INT_MAX, LONG_MAX) else f" and at most {high}"
    kind = "long" if high > INT_MAX else "int"
    return Kind(kind, f"a whole number, at least {low}{top}", parse, low, high)


def choice(*names: str) -> Kind[str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return Kind("string", "one of " + ", ".join(names), parse, values=names)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _word(text: str) -> str:
    # Becomes part of etcd keys and metric labels, so the alphabet is that of topic names.
    if not text or len(text) > 100 or not all(c.isascii() and (c.isalnum() or c in "._-") for c in text):
        raise ValueError
    return text


def _names(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if not all(found) or len(set(found)) != len(found):
        raise ValueError
    return found


def parse_address(text: str) -> Address:
    """`host:port` or `[v6]:port`. ValueError when it is neither."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError
    if not host or any(c.isspace() or c in "/[],@" for c in host):
        raise ValueError
    return Address(host, int(port))


def _addresses(text: str) -> tuple[Address, ...]:
    found = []
    for part in _names(text):
        address = parse_address(part.removeprefix("http://"))
        if address.port == 0:
            raise ValueError
        found.append(address)
    return tuple(found)


def listener(protocol: str) -> Kind[Listener]:
    """`[name://]host:port`; the name is the protocol's unless given."""

    def parse(text: str) -> Listener:
        name, separator, rest = text.partition("://")
        if not separator:
            name, rest = protocol, text
        address = parse_address(rest)
        return Listener(_word(name), address.host, address.port)

    return Kind("string", f"host:port or name://host:port, like {protocol}://127.0.0.1:9092", parse)


def _listeners(text: str) -> tuple[Listener, ...]:
    """Kafka's notation: `NAME://host:port,…`; without a host every address of the machine."""
    found = []
    for part in _names(text):
        name, separator, rest = part.partition("://")
        if not separator:
            raise ValueError
        address = parse_address(f"0.0.0.0{rest}" if rest.startswith(":") else rest)
        found.append(Listener(_word(name), address.host, address.port))
    if len({each.name for each in found}) != len(found):
        raise ValueError
    return tuple(found)


def pairs(*values: str) -> Kind[Mapping[str, str]]:
    """`NAME:VALUE,…` with one of these values each."""

    def parse(text: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for part in _names(text):
            name, separator, value = part.partition(":")
            if not separator or value not in values or name in found:
                raise ValueError
            found[_word(name)] = value
        return MappingProxyType(found)

    return Kind("string", f"NAME:PROTOCOL,… with a protocol of {', '.join(values)}", parse)


def _counts(text: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for part in _names(text) if text else ():
        address, _, count = part.rpartition(":")
        normal = str(ip_address(address.strip("[]")))
        if normal in found or not count.isdecimal():
            raise ValueError
        found[normal] = int(count)
    return tuple(found.items())


def optional(kind: Kind[T]) -> Kind[T | None]:
    """The same kind, where empty text means that nothing was chosen."""
    return Kind(
        kind.type,
        f"empty or {kind.allowed}",
        lambda text: kind.parse(text) if text else None,
        kind.low,
        kind.high,
        kind.values,
        may_be_empty=True,
    )


BOOLEAN = Kind("boolean", "true or false", _boolean)
WORD = Kind("string", "1 to 100 of the letters a-z A-Z 0-9 . _ -", _word)
NAMES = Kind("list", "one or more different values, separated by commas", _names)
FILE = Kind("string", "the path of a file", lambda text: text)
LISTENERS = Kind("list", "NAME://host:port,… with different names", _listeners)
ADDRESS = Kind("string", "host:port", parse_address)
COUNTS = Kind("string", "address:count,… with IP addresses and whole numbers", _counts, may_be_empty=True)
ADDRESSES = Kind("list", "one or more host:port, separated by commas", _addresses)


def shorten(text: str, limit: int = 80) -> str:
    """Quoted for a message, without flooding it."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def nearest(name: str, known: Iterable[str]) -> str:
    """A ready-made `; did you mean …` for an unknown name, or nothing."""
    from difflib import get_close_matches  # only on the way to an error message: 8 ms of imports

    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else "."
