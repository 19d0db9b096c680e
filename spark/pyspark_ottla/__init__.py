"""Spark's data source `ottla`: `spark.read.format("ottla")` works wherever this package is installed.

Spark imports every top-level package named `pyspark_*` to find data sources, once in a separate process and
again for each session; one failed import hides all other sources. So this module imports only the class.
"""

from pyspark_ottla.source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
