"""Quotas in virtual time: rates are held, whatever the requests are; precedence is Kafka's."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla_broker.caller import Caller
from ottla_broker.controller.command import Tools
from ottla_broker.controller.commands.alter_quotas import AlterQuotas, QuotaChange
from ottla_broker.edge.grpc.meter import CallMeter
from ottla_broker.edge.kafka import throttle
from ottla_broker.edge.kafka.request import Encoded, Request
from ottla_broker.edge.kafka.versions import APIS
from ottla_broker.metadata.image import ClusterImage
from ottla_broker.metrics import QuotaProbe
from ottla_broker.quota import (
    BURST_S,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    WAIT_S_MAX,
    Entity,
    Rate,
    check_value,
    match,
    matching,
)
from ottla_broker.service import throttling
from ottla_broker.service.throttling import Throttling
from ottla_core.errors import InvalidRequest, ThrottlingQuotaExceeded


@given(
    st.floats(min_value=1, max_value=1e9),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 5)), min_size=1, max_size=60),
)
def test_a_client_that_waits_as_asked_gets_its_quota_and_one_burst(
    limit: float, requests: list[tuple[float, float]]
) -> None:
    """Pauses and sizes, in seconds of the quota, are the client's choice."""
    now, used = 0.0, 0.0
    rate = Rate(limit, now)
    for pause_s, size in requests:
        now += pause_s
        used += size * limit
        now += rate.charge(size * limit, now)
        assert used <= (now + BURST_S) * limit * (1 + 1e-9)


def test_a_busy_client_gets_all_of_its_quota() -> None:
    now, used = 0.0, 0.0
    rate = Rate(1000.0, now)
    while now < 100.0:
        used += 300.0
        now += rate.charge(300.0, now)
    assert used == pytest.approx(1000.0 * 100, rel=0.02)


def test_a_huge_request_is_paid_for_in_several_waits() -> None:
    rate = Rate(10.0, 0.0)
    assert rate.charge(1000.0, 0.0) == WAIT_S_MAX
    assert rate.charge(0.0, WAIT_S_MAX) == WAIT_S_MAX, "what exceeds one wait is not forgiven"
    assert rate.charge(0.0, 99.0) == 0.0


def test_precedence_is_kafkas() -> None:
    """Each of the eight kinds beats those after it."""
    order = list(matching("alice", "app"))
    assert len(set(order)) == 8
    quotas = {entity: {PRODUCER_BYTE_RATE: float(place)} for place, entity in enumerate(order, 1)}
    for place, entity in enumerate(order, 1):
        found = match(quotas, PRODUCER_BYTE_RATE, "alice", "app")
        assert found is not None and found.limit == place
        assert match(quotas, CONSUMER_BYTE_RATE, "alice", "app") is None
        del quotas[entity]
    assert match(quotas, PRODUCER_BYTE_RATE, "alice", "app") is None


class World:
    def __init__(self, quotas: dict[Entity, dict[str, float]]) -> None:
        self.now = 0.0
        self.subscribers: list[Any] = []
        self.image = ClusterImage("c", quotas=MappingProxyType(quotas))
        metadata = SimpleNamespace(image=self.image, subscribe=self.subscribers.append)
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.throttling = Throttling(cast(Any, metadata), cast(Any, clock), QuotaProbe())

    def change(self, quotas: dict[Entity, dict[str, float]]) -> None:
        old, self.image = self.image, replace(self.image, quotas=MappingProxyType(quotas))
        for call in self.subscribers:
            call(old, self.image)

    def charge(self, user: str, client_id: str, amount: int) -> float:
        caller = Caller(f"User:{user}", client_id, "", "")
        return self.throttling.charge(caller, PRODUCER_BYTE_RATE, amount)


def test_connections_of_a_user_share_its_rate_and_defaults_are_of_each() -> None:
    world = World({Entity("alice"): {PRODUCER_BYTE_RATE: 10.0}, Entity(""): {PRODUCER_BYTE_RATE: 20.0}})
    assert world.charge("alice", "one", 10) == 0.0
    assert world.charge("alice", "two", 10) == pytest.approx(1.0)
    assert world.charge("bob", "one", 20) == 0.0
    assert world.charge("carol", "one", 20) == 0.0, "a default is a rate for each user"
    assert world.charge("carol", "one", 20) == pytest.approx(1.0)


def test_a_changed_quota_counts_at_once_and_without_quotas_nothing_is_charged() -> None:
    world = World({Entity("alice"): {PRODUCER_BYTE_RATE: 10.0}})
    assert world.charge("alice", "", 20) == pytest.approx(1.0)
    world.change({Entity("alice"): {PRODUCER_BYTE_RATE: 1000.0}})
    assert world.charge("alice", "", 20) == 0.0
    world.change({})
    assert not world.throttling.is_on
    assert world.charge("alice", "", 10**9) == 0.0


def test_new_client_ids_neither_forgive_debts_nor_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "_RATES_MAX", 100)
    world = World({Entity(None, ""): {PRODUCER_BYTE_RATE: 10.0}})
    assert world.charge("alice", "busy", 60) == pytest.approx(5.0)
    for number in range(1000):
        world.charge("alice", f"fresh-{number}", number % 30)
        assert len(world.throttling._rates) <= 100 and len(world.throttling._matched) <= 100
    assert world.charge("alice", "busy", 0) == pytest.approx(5.0), "the largest debt stays"
    # Two client ids of one entity have one rate, also after some were forgotten.
    assert world.charge("bob", "busy", 10) == pytest.approx(6.0)
    world.now += 7.0
    assert world.charge("alice", "busy", 0) == 0.0


def test_values_that_make_no_sense_are_refused() -> None:
    alice, address = Entity("alice"), Entity(ip="10.0.0.7")
    for name, value in ((PRODUCER_BYTE_RATE, 0.0), (PRODUCER_BYTE_RATE, float("nan")), ("speed", 1.0)):
        with pytest.raises(InvalidRequest):
            check_value(alice, name, value)
    with pytest.raises(InvalidRequest, match="entity type ip"):
        check_value(alice, CONNECTION_CREATION_RATE, 1.0)
    with pytest.raises(InvalidRequest, match="not a quota of addresses"):
        check_value(address, PRODUCER_BYTE_RATE, 1.0)
    with pytest.raises(InvalidRequest, match="whole number"):
        check_value(address, CONNECTION_CREATION_RATE, 0.5)
    check_value(address, CONNECTION_CREATION_RATE, 1.0)
    check_value(alice, REQUEST_PERCENTAGE, 0.5)
    for entity in (Entity(), Entity("alice", None, "10.0.0.7"), Entity(ip="host"), Entity(ip="010.0.0.7")):
        with pytest.raises(InvalidRequest):
            entity.check()
    for entity in (Entity(ip=""), Entity(ip="::1"), Entity("", "app")):
        entity.check()


def caller(user: str = "alice") -> Caller:
    return Caller(f"User:{user}", "app", "", "")


def test_time_is_a_percentage_and_waits_are_short() -> None:
    world = World({Entity("alice"): {REQUEST_PERCENTAGE: 10.0}})
    assert world.throttling.is_timed
    charge = world.throttling.charge
    assert charge(caller(), REQUEST_PERCENTAGE, 0.1) == 0.0
    assert charge(caller(), REQUEST_PERCENTAGE, 0.05) == pytest.approx(0.5)
    assert charge(caller(), REQUEST_PERCENTAGE, 1.0) == 1.0, "as in Kafka, at most a second for one request"
    assert charge(caller("bob"), REQUEST_PERCENTAGE, 1.0) == 0.0


def test_strict_mutations_are_refused_when_the_quota_is_used_up() -> None:
    """KIP-599: what overdraws the quota is done, and what comes after it is refused until the debt is paid."""
    world = World({Entity("alice"): {CONTROLLER_MUTATION_RATE: 2.0}})
    strict = world.throttling.mutations(caller(), strict=True)
    strict.charge(20)
    strict.charge(10)
    assert strict.wait_s == 0.0, "a burst of 11 s, as Kafka's window"
    with pytest.raises(ThrottlingQuotaExceeded, match=r"try again in 4\.0 s"):
        strict.charge(1)
    assert strict.wait_s == pytest.approx(4.0)
    world.now += 4.0
    again = world.throttling.mutations(caller(), strict=True)
    again.charge(1)
    assert again.wait_s == 0.0
    others = world.throttling.mutations(caller("bob"), strict=True)
    others.charge(10**6)


def test_permissive_mutations_are_done_and_waited_for() -> None:
    world = World({Entity("alice"): {CONTROLLER_MUTATION_RATE: 2.0}})
    older = world.throttling.mutations(caller(), strict=False)
    older.charge(26)
    older.charge(2)
    assert older.wait_s == pytest.approx(3.0)


def test_addresses_have_a_rate_of_their_own_and_refused_connections_do_not_count() -> None:
    quotas = {
        Entity(ip=""): {CONNECTION_CREATION_RATE: 2.0},
        Entity(ip="::1"): {CONNECTION_CREATION_RATE: 1.0},
    }
    world = World(quotas)
    assert world.throttling.limits_connections and not world.throttling.is_on
    connected = world.throttling.connected
    assert connected("10.0.0.7") == connected("10.0.0.7") == 0.0
    assert connected("10.0.0.7") == connected("10.0.0.7") == pytest.approx(0.5)
    assert connected("10.0.0.8") == 0.0
    assert connected("::1") == 0.0 and connected("::1") == pytest.approx(1.0)
    world.now += 0.5
    assert connected("10.0.0.7") == 0.0 and connected("10.0.0.7") > 0.0
    world.change({})
    assert not world.throttling.limits_connections


def test_calls_of_a_grpc_connection_are_refused_until_its_address_may_connect() -> None:
    world = World({Entity(ip="10.0.0.7"): {CONNECTION_CREATION_RATE: 1.0}})
    meter = CallMeter(world.throttling, lambda context: caller())
    for _ in range(3):
        meter.check_connection("ipv4:10.0.0.7:1", "10.0.0.7")
    for _ in range(3):
        with pytest.raises(ThrottlingQuotaExceeded, match=r"connection_creation_rate.*try again in 1\.0 s"):
            meter.check_connection("ipv4:10.0.0.7:2", "10.0.0.7")
    meter.check_connection("ipv4:10.0.0.8:1", "10.0.0.8")
    world.now += 1.0
    meter.check_connection("ipv4:10.0.0.7:2", "10.0.0.7")


def test_a_fetch_waits_until_its_records_are_within_the_quota() -> None:
    rate = Rate(100.0, 0.0)
    assert rate.until_room(100.0, 0.0) == rate.until_room(500.0, 0.0) == 0.0
    rate.charge(60.0, 0.0)
    assert rate.until_room(70.0, 0.0) == pytest.approx(0.3)
    assert rate.until_room(500.0, 0.0) == pytest.approx(0.6), "a batch beyond the burst waits for all of it"
    assert rate.until_room(40.0, 0.0) == 0.0
    assert rate.until_room(70.0, 0.3) == 0.0


def test_commands_set_and_remove() -> None:
    image, tools = ClusterImage("c"), cast(Tools, None)
    (made,) = AlterQuotas((QuotaChange("alice", None, {PRODUCER_BYTE_RATE: 5.0}, ()),)).changes(image, tools)
    assert made.plan(image)
    image = replace(image, quotas=MappingProxyType({Entity("alice"): {PRODUCER_BYTE_RATE: 5.0}}))
    assert not made.plan(image), "what is done is not done again"
    (gone,) = AlterQuotas((QuotaChange("alice", None, {}, (PRODUCER_BYTE_RATE,)),)).changes(image, tools)
    assert gone.plan(image)


@pytest.mark.parametrize(("key", "version"), [(0, 8), (0, 9), (1, 4), (1, 12)])
def test_responses_say_the_wait(key: int, version: int) -> None:
    from ottla_broker.edge.kafka import codec, schema

    api = APIS[key]
    fields: dict[str, Any] = {"responses": []}
    request = Request(api, version, 1, None, memoryview(b""))
    reply = Encoded((codec.encode_response(api, version, fields),))
    told = throttle.with_wait(request, reply, 1.5)
    assert isinstance(told, Encoded)
    made = codec.compile_reader(schema.load(api, version, "response"))(memoryview(b"".join(told.body)))
    assert made["throttle_time"] == 1500


def test_fields_that_are_not_encoded_yet_say_the_wait_too() -> None:
    request = Request(APIS[12], 4, 1, None, memoryview(b""))
    assert throttle.with_wait(request, {"error_code": 0}, 0.0001) == {"error_code": 0, "throttle_time": 1}
