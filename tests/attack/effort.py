"""How long the attacks go on: seconds in `make test`, minutes in `make attack` (OTTLA_ATTACK_MINUTES).

The long form is the same attacks with more of everything. Every attack names its short time, and its share of the
minutes that somebody asked for.
"""

from __future__ import annotations

import os

MINUTES = float(os.environ.get("OTTLA_ATTACK_MINUTES", "0"))
SEED = int(os.environ.get("OTTLA_ATTACK_SEED", "7"))
IS_LONG = MINUTES > 0


def seconds(short: float, share: float) -> float:
    return max(short, share * MINUTES * 60)


def count(short: int, per_minute: float) -> int:
    return max(short, round(per_minute * MINUTES))
