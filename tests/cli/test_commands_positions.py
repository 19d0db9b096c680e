"""Sizes, durations, times and positions, as people write them."""

from __future__ import annotations

import pytest

from ottla_cli.bench_runs import quantiles, value_of
from ottla_cli.connecting import no_such_topic, similar
from ottla_cli.position import Position, parse_position
from ottla_cli.quantities import (
    parse_duration_ms,
    parse_size,
    parse_time_ms,
    show_duration,
    show_size,
    show_time,
)

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Position("earliest")),
        ("Beginning", Position("earliest")),
        ("end", Position("latest")),
        ("0", Position("offset", 0)),
        ("999999999999", Position("offset", 999_999_999_999)),
        ("1774965600000", Position("time", 1_774_965_600_000)),
        ("@5", Position("time", 5)),
        ("-10", Position("tail", 10)),
        ("-1h30m", Position("time", NOW_MS - 5_400_000)),
        ("-90000d", Position("time", 0)),
        ("2026-03-31T14:00Z", Position("time", 1_774_965_600_000)),
        ("2026-03-31T16:00:00+02:00", Position("time", 1_774_965_600_000)),
        ("2026-03-31", Position("time", 1_774_915_200_000)),
    ],
)
def test_positions(text: str, expected: Position) -> None:
    assert parse_position(text, NOW_MS) == expected


@pytest.mark.parametrize("wrong", ["", "soon", "-1x", "-", "@noon", "1.5", "٣"])
def test_what_is_no_position_is_a_sentence(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a position; write one of"):
        parse_position(wrong, NOW_MS)


def test_sizes() -> None:
    assert [parse_size(text) for text in ("100", "16k", "64KiB", "1.5MB", "2 GiB")] == [
        100, 16_000, 65_536, 1_500_000, 2 << 30,
    ]  # fmt: skip
    assert [show_size(size) for size in (0, 999, 1500, 2.5e9, 5e12)] == [
        "0 B", "999 B", "1.5 kB", "2.5 GB", "5000.0 GB",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="is not a size"):
        parse_size("many")


def test_durations_and_times() -> None:
    assert parse_duration_ms("1d2h250ms") == 93_600_250
    for wrong in ("", "1", "h", "1h x"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration_ms(wrong)
    assert parse_time_ms(show_time(1_774_965_600_123)) == 1_774_965_600_123
    assert show_time(-1) == "-" and show_time(2**62) == str(2**62)
    assert [show_duration(s) for s in (0.0123, 2.25, 125)] == ["12.3 ms", "2.2 s", "2 min 5 s"]


def test_a_typo_finds_what_was_meant() -> None:
    there = ["greetings", "orders", "orders-eu", "payments"]
    assert similar("greetngs", there) == ["greetings"]
    assert similar("ORDERS", there) == ["orders"]
    assert similar("zzz", there) == []
    assert "Did you mean 'orders'?" in no_such_topic("oders", there)
    assert "ottla topics create zzz" in no_such_topic("zzz", there)
    assert "has no topics yet" in no_such_topic("zzz", [])


def test_quantiles_are_of_the_nearest_rank() -> None:
    found = quantiles([number / 1000 for number in range(1, 101)])
    assert found == {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "p999_ms": 100, "max_ms": 100}
    assert len(value_of(1000)) == 1000 and len(value_of(0)) == 0
