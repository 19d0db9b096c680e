"""One broker with an authoriser for all tests here; each begins without ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from authorization.guarded_broker import GuardedBroker


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    made = GuardedBroker(Path(tmp_path_factory.mktemp("guarded")))
    topics = [NewTopic(name, 1, 1) for name in ("open", "closed")]
    for created in made.admin.create_topics(topics, operation_timeout=20).values():
        created.result(timeout=30)
    yield made
    made.stop()


@pytest.fixture
def guarded(shared_broker: GuardedBroker) -> GuardedBroker:
    shared_broker.forget_acls()
    return shared_broker
