"""Why a move copies nothing now."""

from __future__ import annotations

import pytest

from ottla_broker.metadata.image import PartitionImage
from ottla_broker.service.cluster import Obstacle, _obstacle
from ottla_core.ids import NO_BROKER


@pytest.mark.parametrize(
    ("leader", "isr", "waits", "online", "expected"),
    [
        (1, (1, 2), False, (1, 2, 4), Obstacle.NONE),
        (1, (1, 2), True, (1, 2, 4), Obstacle.QUEUED),
        (NO_BROKER, (1, 2), False, (2, 4), Obstacle.NO_LEADER),
        (NO_BROKER, (1, 2), True, (2, 4), Obstacle.NO_LEADER),
        (1, (1, 2), False, (1, 2), Obstacle.BROKER_OFFLINE),
        (1, (1, 2, 4), False, (1, 2), Obstacle.NONE),
    ],
)
def test_why_a_move_waits(
    leader: int, isr: tuple[int, ...], waits: bool, online: tuple[int, ...], expected: Obstacle
) -> None:
    state = PartitionImage((4, 2, 1), leader=leader, isr=isr, adding=(4,), removing=(1,))
    assert _obstacle(state, waits, online) is expected
