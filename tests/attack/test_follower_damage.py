"""Damage in a follower's files on three real brokers: it is found, counted and repaired from the leader.

A byte is flipped, a segment is deleted or an index is cut while the follower is down. Afterwards the
files of the follower hold what the leader's do, it is in sync, and everything acknowledged can be read, also when the
follower leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from attack import effort
from attack.follower_copy import Copy, flip
from attack.victim import Victim
from ottla_cli.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with LocalCluster(brokers=3) as cluster:
        made = Victim(cluster)
        made.create("ordinary", 1, 3)
        yield made


def _flip(copy: Copy) -> None:
    flip(copy, copy.follower)


def _delete_segment(copy: Copy) -> None:
    """One in the middle: without its first segments, a log looks like one that retention has cut."""
    copy.segments(copy.follower)[1].unlink()


def _delete_last_segment(copy: Copy) -> None:
    copy.segments(copy.follower)[-1].unlink()


def _cut_index(copy: Copy) -> None:
    for path in copy.folder(copy.follower).glob("*.index"):
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2 + 3)


CASES = [
    # After a kill, all that no checkpoint vouches for is read again, and cut where it is damaged.
    (_flip, "kill", "ottla_log_recovery_cut_bytes_total"),
    (_delete_segment, "kill", "ottla_log_recovery_cut_bytes_total"),
    *([(_cut_index, "kill", None)] if effort.IS_LONG else []),
    # After a clean stop nothing is read again, unless segments are missing or shorter than they were.
    (_delete_segment, "stop", "ottla_log_recovery_cut_bytes_total"),
    (_delete_last_segment, "stop", "ottla_log_recovered_bytes_total"),
    # An index is checked when it is first used.
    (_cut_index, "stop", None),
]


@pytest.mark.parametrize(("damage", "way", "counter"), CASES)
def test_damage_while_the_follower_is_down(
    victim: Victim, damage: Callable[[Copy], None], way: str, counter: str | None
) -> None:
    copy = Copy(victim, f"{way}{damage.__name__}")
    assert len(copy.segments(copy.follower)) > 2
    if way == "kill":
        victim.cluster.kill(copy.follower)
    else:
        assert victim.cluster.stop_broker(copy.follower) == 0
    damage(copy)
    copy.restart()
    took_s = copy.until_repaired()
    print(f"{copy.topic}: repaired after {took_s:.1f} s")
    if counter is not None:
        assert victim.metric(counter, copy.follower) > 0
    copy.check_led_by_it()
    victim.close_look()
