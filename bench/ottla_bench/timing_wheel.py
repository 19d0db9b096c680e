"""A hierarchical timing wheel with the interface of `coordination.timers`: the rival in `make bench-timers`. [P]

As in Kafka: the lowest wheel has `_SLOTS` slots of one tick, each wheel above has slots as long as the whole wheel
below. A deadline lies in a slot, by key; when time passes over a slot of a higher wheel, its keys move down.
"""

from __future__ import annotations

from collections.abc import Hashable

_SLOTS = 64


class _Wheel:
    __slots__ = ("slot_ms", "slots", "span_ms")

    def __init__(self, slot_ms: int) -> None:
        self.slot_ms = slot_ms
        self.span_ms = slot_ms * _SLOTS
        self.slots: list[dict[Hashable, int]] = [{} for _ in range(_SLOTS)]


class TimingWheel:
    def __init__(self, tick_ms: int = 1) -> None:
        self._wheels = [_Wheel(tick_ms)]
        self._now_ms = 0
        self._slot_of: dict[Hashable, dict[Hashable, int]] = {}

    def __len__(self) -> int:
        return len(self._slot_of)

    def set(self, key: Hashable, deadline_ms: int) -> None:
        slot = self._slot_of.get(key)
        if slot is not None:
            del slot[key]
        self._put(key, deadline_ms)

    def cancel(self, key: Hashable) -> None:
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            del slot[key]

    def _put(self, key: Hashable, deadline_ms: int) -> None:
        level, now_ms = 0, self._now_ms
        wheels = self._wheels
        while deadline_ms - now_ms >= wheels[level].span_ms:
            level += 1
            if level == len(wheels):
                wheels.append(_Wheel(wheels[-1].span_ms))
        wheel = wheels[level]
        slot = wheel.slots[deadline_ms // wheel.slot_ms % _SLOTS]
        slot[key] = deadline_ms
        self._slot_of[key] = slot

    def due(self, now_ms: int) -> list[Hashable]:
        found: list[tuple[int, Hashable]] = []
        while self._now_ms < now_ms:
            self._now_ms += self._wheels[0].slot_ms
            for level in range(1, len(self._wheels)):
                wheel = self._wheels[level]
                if self._now_ms % wheel.slot_ms:
                    break
                self._move_down(wheel)
            slot = self._wheels[0].slots[self._now_ms // self._wheels[0].slot_ms % _SLOTS]
            found += [(at, key) for key, at in slot.items() if at <= self._now_ms]
            for _, key in found[-len(slot) :] if slot else ():
                del self._slot_of[key]
            slot.clear()
        return [key for _, key in found]

    def _move_down(self, wheel: _Wheel) -> None:
        index = self._now_ms // wheel.slot_ms % _SLOTS
        moving, wheel.slots[index] = wheel.slots[index], {}
        for key, deadline_ms in moving.items():
            self._put(key, max(deadline_ms, self._now_ms))
