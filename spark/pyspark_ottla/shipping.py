"""Pickling of readers and writers for executors, with a clear error where the package is missing. [A]

Spark pickles readers and writers by reference to their class. An executor whose Python lacks this package would
raise a bare ModuleNotFoundError from deep inside the unpickling. The function here is pickled by value, because
it is a new closure each time and cannot be imported by name, so it can raise an error that explains what to do.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any


class Shipped:
    """Mixin for objects that Spark sends to executors."""

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

        # Pickled separately, because Ottla's classes in it would be imported before `rebuild` is called.
        return rebuild, (kind.__module__, kind.__qualname__, pickle.dumps(self.__dict__))
