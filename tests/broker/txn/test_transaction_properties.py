"""Random producers against one transactional id: whatever happens, and wherever a coordinator is replaced, a
transaction is decided once, its markers say the same everywhere, and a fenced producer changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.txn.txn_driver import T0, T1, TxnDriver
from ottla_broker.requests import ProducerIdentity
from ottla_broker.txn.messages import PrepareTransaction
from ottla_core.errors import RequestError

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["init", "continue", "add", "prepare", "commit", "abort", "markers", "time", "crash"]
        ),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([0, 2]))
def test_decisions_hold(steps: list[tuple[str, int, bool]], version: int) -> None:
    driver, clients = TxnDriver(), [ProducerIdentity(-1, -1)] * 4
    newest = ProducerIdentity(-1, -1)
    #: Decision of each transaction, by its marker's producer and the number of transactions completed before.
    decisions: dict[tuple[ProducerIdentity, int], bool] = {}
    completed = 0
    for kind, number, flag in steps:
        client, before = clients[number], driver.shard.transactions.get("me")
        try:
            if kind == "init":
                clients[number] = newest = driver.init()
            elif kind == "continue":
                clients[number] = newest = driver.init(current=client)
            elif kind == "add":
                driver.add(client, T0 if flag else T1, version=version)
                assert client == newest, "a fenced producer has written"
            elif kind == "prepare":
                driver.ask(PrepareTransaction("me", client))
                assert client == newest, "a fenced producer has prepared"
                assert driver.txn.is_ongoing and driver.txn.is_two_phase
            elif kind in ("commit", "abort"):
                clients[number] = driver.end(client, commits=kind == "commit", version=version)
                newest = max(newest, clients[number])
        except RequestError:
            assert before is None or kind in ("init", "continue") or driver.txn == before, "half done"
        if kind == "markers":
            driver.write_markers()
        elif kind == "time":
            driver.pass_time(4000)
            if before is not None and before.is_two_phase and before.is_ongoing:
                assert driver.txn == before, "a prepared transaction has timed out"
        elif kind == "crash":
            state = dict(driver.shard.transactions)
            driver.reload()
            assert driver.shard.transactions == state
        txn = driver.shard.transactions.get("me")
        if txn is None:
            continue
        if before is not None and before.is_prepared and not txn.is_prepared:
            completed += 1
        newest = max(newest, txn.next_producer)
        if txn.is_prepared:
            assert decisions.setdefault((txn.producer, completed), txn.commits) is txn.commits
            assert all(each.commits is txn.commits for each in driver.effects)
            assert {each.producer for each in driver.effects} == {txn.producer}
        else:
            assert not driver.effects
