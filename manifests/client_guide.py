"""docs/client.md: puts the programs of `examples/` and the list of errors into the guide. Run by `make docs`.

The guide is written by hand, except for what stands behind `<!-- examples/NAME -->` and `<!-- errors -->`.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from ottla_client import errors

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/client.md"


def client_guide() -> str:
    text = PAGE.read_text()
    text = re.sub(
        r"^<!-- (examples/\w+\.py) -->\n```python\n.*?^```$",
        lambda found: f"<!-- {found[1]} -->\n```python\n{(ROOT / found[1]).read_text()}```",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    return re.sub(
        r"^<!-- errors -->\n(\|.*\n)*",
        lambda _: f"<!-- errors -->\n{_errors()}",
        text,
        flags=re.MULTILINE,
    )


def _errors() -> str:
    rows = ["| error | a kind of | when |", "| --- | --- | --- |"]
    for name in sorted(errors.__all__):
        kind = getattr(errors, name)
        above = kind.__mro__[1].__name__
        doc = inspect.cleandoc(kind.__doc__ or "").replace("\n", " ")
        if issubclass(kind, errors.RequestError) and kind is not errors.RequestError:
            doc = f"A broker answered {kind.name} ({kind.code})."
        rows.append(f"| `{name}` | `{above}` | {doc} |")
    return "".join(f"{row}\n" for row in rows)
