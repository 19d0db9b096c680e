"""`make bench-cluster`: three brokers of Apache Kafka and three of Ottla, turn by turn, under one stock client. [A]

python -m ottla_bench.three_brokers [--runs 5] [--only rf3,failover] [--quick] [--json FILE] [--write PAGE]
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from ottla_bench.comparison import Comparison, Say, compare
from ottla_bench.rows import TRIO_NOTES, TRIO_ROWS
from ottla_bench.trio_measures import TRIO_MEASURES, TRIO_QUICK, TrioSizes, one_trio_life


def _life(name: str, wanted: Collection[str], quick: bool, say: Say) -> list[dict[str, float]]:
    return one_trio_life(name, wanted, TRIO_QUICK if quick else TrioSizes(), say)


THREE_BROKERS = Comparison(
    "three-brokers",
    "three brokers of Apache Kafka and three of Ottla, side by side on this machine",
    TRIO_MEASURES,
    TRIO_ROWS,
    TRIO_NOTES,
    _life,
)

if __name__ == "__main__":
    sys.exit(compare(THREE_BROKERS))
