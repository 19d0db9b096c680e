"""How our objects travel from the driver to an executor, and what is said where the package is missing. [A]

Spark pickles readers and writers by reference to their class. An executor whose Python lacks this package would
answer with a bare ModuleNotFoundError from deep inside the unpickling; the function here travels by value, because
it is made anew each time and has no name to be found by, and so it can still explain.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any


class Shipped:
    """Mixed into whatever Spark sends to executors."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str, bytes]]:
        kind = type(self)

        def rebuild(module: str, name: str, state: bytes) -> Any:
            import importlib
            import pickle
            import sys

            try:
                kind = getattr(importlib.import_module(module), name)
            except ImportError as error:
                raise ImportError(
                    f"The Python of this Spark worker ({sys.executable}) cannot import {error.name or module}: install "
                    "ottla[spark] there (in the executors' image), or set PYSPARK_PYTHON to a Python that has it."
                ) from error
            made = kind.__new__(kind)
            made.__dict__.update(pickle.loads(state))
            return made

        # Packed apart, because our own classes in it would be looked for before `rebuild` is called.
        return rebuild, (kind.__module__, kind.__qualname__, pickle.dumps(self.__dict__))
