"""More and fewer brokers: the steps as a pure function, against a cluster that carries them out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla_client.rebalance import Broker, Placed, applied, loads, plan
from ottla_client.rebalance_pace import COPIES_PER_BROKER, Layout, Ongoing
from ottla_operator.scaling import Step, next_step


def _layout(brokers: int, partitions: list[Placed]) -> Layout:
    return Layout(tuple(Broker(n) for n in range(brokers)), frozenset(range(brokers)), tuple(partitions))


def _topic(count: int, brokers: int, factor: int = 3, name: str = "t") -> list[Placed]:
    return [Placed(name, n, tuple((n + k) % brokers for k in range(factor)), 1 << 30) for n in range(count)]


class Cluster:
    """Brokers and a StatefulSet that do what a step says. Moves take one round."""

    def __init__(self, pods: int, partitions: list[Placed]) -> None:
        self.pods = self.scaled_to = pods
        self.layout = _layout(pods, partitions)
        self.reason = ""
        self.copies = 0

    def run(self, wanted: int, *, spread: bool = True) -> Step:
        step = next_step(
            wanted,
            self.pods,
            self.scaled_to,
            self.layout,
            spread=spread,
            was_empty=self.reason == "Drained",
        )
        if step.pods < self.pods:
            assert not any(self.layout.held_by(each) for each in range(step.pods, self.pods))
        self.reason = step.condition.reason
        self.pods, self.scaled_to = step.pods, step.scaled_to or wanted
        self._finish_moves()
        started = {(m.topic, m.partition): Ongoing(m.added, m.removed, 0, m.copied) for m in step.moves}
        self.copies += sum(len(move.added) for move in step.moves)
        brokers = {each.id: each for each in self.layout.brokers}
        for each in (*step.cordon, *step.uncordon):
            brokers[each] = replace(brokers[each], cordoned=each in step.cordon)
        for each in range(self.pods):
            brokers.setdefault(each, Broker(each))
        for each in step.unregister:
            del brokers[each]
        self.layout = Layout(
            tuple(brokers.values()),
            frozenset(range(self.pods)),
            tuple(applied(self.layout.partitions, step.moves)),
            started,
        )
        return step

    def _finish_moves(self) -> None:
        self.layout = replace(self.layout, moving={})

    def scale(self, wanted: int, *, spread: bool = True, rounds: int = 300) -> Step:
        for _ in range(rounds):
            step = self.run(wanted, spread=spread)
            if step.condition.holds or step.condition.reason == "Refused":
                return step
        raise AssertionError(step)


def test_a_cluster_that_has_its_brokers_needs_nothing() -> None:
    step = next_step(3, 3, 3, None, spread=True)
    assert step.condition.holds and step.pods == 3
    assert next_step(3, None, None, None, spread=True).pods == 3, "a new Cluster"


def test_three_to_four_to_three() -> None:
    cluster = Cluster(3, _topic(12, 3))
    assert cluster.scale(4).condition.holds
    held = [load.replicas for load in loads(cluster.layout.brokers, cluster.layout.partitions).values()]
    assert held == [9, 9, 9, 9]
    assert cluster.copies == 9, "only the share of the new broker is copied"
    assert cluster.scale(3).condition.holds
    assert cluster.pods == 3
    assert [each.id for each in cluster.layout.brokers] == [0, 1, 2], "the stopped broker left the record"
    assert cluster.copies == 18


def test_without_spread_new_brokers_stay_empty() -> None:
    cluster = Cluster(3, _topic(12, 3))
    assert cluster.scale(4, spread=False).condition.holds
    assert cluster.layout.held_by(3) == 0


def test_a_drain_cordons_first_and_moves_a_few_at_a_time() -> None:
    cluster = Cluster(4, _topic(40, 4, 2))
    first = cluster.run(3)
    assert (first.cordon, first.pods, first.condition.reason) == ((3,), 4, "Draining")
    added = [broker for move in first.moves for broker in move.added]
    assert max(added.count(each) for each in added) <= COPIES_PER_BROKER
    assert "20 replicas" in first.condition.message


def test_a_drain_is_refused_if_the_rest_cannot_hold_the_replication_factor() -> None:
    cluster = Cluster(3, _topic(4, 3, 3))
    step = cluster.scale(2)
    assert (step.condition.reason, step.pods, step.cordon, step.moves) == ("Refused", 3, (), ())
    assert "t-0 needs 3 brokers" in step.condition.message
    assert cluster.scaled_to == 3


def test_no_pod_is_removed_while_brokers_are_silent_or_not_cordoned() -> None:
    assert next_step(3, 4, 4, None, spread=True, was_empty=True).pods == 4
    empty = _layout(4, _topic(3, 3))
    step = next_step(3, 4, 4, empty, spread=True, was_empty=True)
    assert (step.pods, step.cordon) == (4, (3,)), "it could get a replica until it is cordoned"


def test_one_answer_is_not_enough_to_remove_a_pod() -> None:
    empty = _layout(4, _topic(3, 3))
    empty = replace(empty, brokers=(*empty.brokers[:3], Broker(3, cordoned=True)))
    assert next_step(3, 4, 3, empty, spread=True).pods == 4
    assert next_step(3, 4, 3, empty, spread=True, was_empty=True).pods == 3


def test_a_replica_that_is_being_removed_still_counts() -> None:
    layout = _layout(4, [Placed("t", 0, (0, 1))])
    layout = replace(
        layout,
        brokers=(*layout.brokers[:3], Broker(3, cordoned=True)),
        moving={("t", 0): Ongoing((1,), (3,), 0, 5)},
    )
    assert next_step(3, 4, 3, layout, spread=True, was_empty=True).pods == 4


def test_raising_the_number_again_ends_a_drain() -> None:
    cluster = Cluster(4, _topic(40, 4, 2))
    cluster.run(3)
    assert cluster.scale(4).condition.holds
    assert not any(each.cordoned for each in cluster.layout.brokers)
    assert cluster.layout.held_by(3) == 20


def test_an_offline_broker_with_replicas_is_never_unregistered() -> None:
    layout = replace(_layout(4, _topic(4, 4)), online=frozenset({0, 1, 2}))
    step = next_step(3, 3, 3, layout, spread=True)
    assert (step.unregister, step.condition.holds) == ((), False)
    assert "still has replicas" in step.condition.message


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 6), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 30))
def test_any_series_of_changes_ends_with_every_replica_on_a_remaining_broker(
    sizes: list[int], factor: int, count: int
) -> None:
    cluster = Cluster(3, _topic(count, 3, factor))
    for wanted in sizes:
        step = cluster.scale(wanted)
        if step.condition.reason == "Refused":
            assert wanted < factor
            wanted = cluster.pods
            continue
        assert cluster.pods == wanted
        assert all(broker < wanted for each in cluster.layout.partitions for broker in each.replicas)
        assert all(len(set(each.replicas)) == factor for each in cluster.layout.partitions)
    assert not cluster.layout.moving or cluster.reason == "Refused"


def test_spreading_in_small_batches_copies_no_more_than_the_plan() -> None:
    cluster = Cluster(3, [*_topic(60, 3), *_topic(30, 3, 2, "u")])
    brokers = [Broker(each) for each in range(5)]
    planned = sum(len(move.added) for move in plan(brokers, cluster.layout.partitions))
    cluster.scale(5)
    assert cluster.copies <= planned * 1.1
