"""Spark's data source `ottla`: `spark.read.format("ottla")` works wherever this package is installed.

Spark imports every top-level package named `pyspark_*` to find what it may register, in a process of its own and
once more for each session; one that fails hides all others. So nothing is imported here but the class itself.
"""

from pyspark_ottla.source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
