"""A bar chart of text, for the results of jobs on a terminal or in a pod's log. [P]"""

from __future__ import annotations

from collections.abc import Mapping

_BAR_MAX = 50
#: More bars than fit on a screen show no shape.
_ROWS_MAX = 40


def bars(title: str, counts: Mapping[str, float]) -> str:
    """One bar per entry, in the order given."""
    shown = list(counts.items())[:_ROWS_MAX]
    largest = max((value for _, value in shown), default=0)
    names = max((len(name) for name, _ in shown), default=0)
    numbers = max((len(f"{value:,.0f}") for _, value in shown), default=0)
    lines = [title]
    for name, value in shown:
        length = round(_BAR_MAX * value / largest) if largest else 0
        lines.append(f"  {name:<{names}} {value:>{numbers},.0f} {'█' * length}".rstrip())
    if len(counts) > _ROWS_MAX:
        lines.append(f"  and {len(counts) - _ROWS_MAX} more")
    return "\n".join(lines)
