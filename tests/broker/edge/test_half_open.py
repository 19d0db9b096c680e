"""Which half-open handshake gives way, beside a simple model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.edge.kafka.half_open import HalfOpen, half_open_max, silent_max


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80))
def test_the_oldest_of_the_busiest_address_gives_way(steps: list[tuple[str, bool]]) -> None:
    tested: HalfOpen[int] = HalfOpen(5)
    model: dict[int, str] = {}
    for number, (address, finishes) in enumerate(steps):
        out = tested.add(number, address)
        assert (out is not None) == (len(model) == 5)
        if out is not None:
            counts = [list(model.values()).count(each) for each in model.values()]
            gone = model.pop(out)
            assert list((model | {out: gone}).values()).count(gone) == max(counts)
            assert all(other > out for other, its in model.items() if its == gone)
        model[number] = address
        if finishes:
            tested.remove(number)
            tested.remove(number)
            del model[number]


def test_thousands_of_clients_may_come_back_at_once() -> None:
    """With the default of max.connections: none is cut off before it could be heard, and there is room beside them."""
    silent: HalfOpen[int] = HalfOpen(silent_max(10_000))
    assert not any(silent.add(number, "10.0.0.1") for number in range(1, 5_000))
    assert silent_max(100) + half_open_max(100) == 75
