"""Which half-open handshake gives way, beside a simple model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.edge.kafka.half_open import HalfOpen


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
