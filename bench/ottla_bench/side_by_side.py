"""`make bench-broker`: one broker of Apache Kafka and one of Ottla, turn by turn, under the same stock client. [A]

python -m ottla_bench.side_by_side [--runs 5] [--only startup,latency] [--quick] [--json FILE] [--write PAGE]
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from ottla_bench.comparison import Comparison, Say, compare
from ottla_bench.measures import MEASURES, QUICK, Sizes, one_life
from ottla_bench.rows import NOTES, ROWS


def _life(name: str, wanted: Collection[str], quick: bool, say: Say) -> list[dict[str, float]]:
    return [one_life(name, wanted, QUICK if quick else Sizes(), say)]


ONE_BROKER = Comparison(
    "side-by-side",
    "one broker of Apache Kafka and one of Ottla, side by side on this machine",
    MEASURES,
    ROWS,
    NOTES,
    _life,
)

if __name__ == "__main__":
    sys.exit(compare(ONE_BROKER))
