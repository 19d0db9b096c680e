"""One broker for the whole folder; every test works in topics of its own."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.target import Target, running_target


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    with running_target() as target:
        yield target


@pytest.fixture(scope="session")
def admin(target: Target) -> AdminClient:
    return AdminClient({"bootstrap.servers": target.bootstrap})


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Topic names that nobody else uses, and that say whose they are."""
    stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60]
    return lambda: f"{stem}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(new_name: Callable[[], str], make_topic: Callable[..., str]) -> str:
    """A topic of one partition."""
    return make_topic(new_name())


@pytest.fixture
def make_topic(admin: AdminClient) -> Callable[..., str]:
    return lambda name, partitions=1, **config: create_topic(admin, name, partitions, **config)


def create_topic(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> str:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    for outcome in admin.create_topics([wanted], operation_timeout=10, request_timeout=15).values():
        outcome.result(timeout=20)
    # Kafka answers before the broker that we ask next has heard of the topic.
    deadline = time.monotonic() + 10
    while name not in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.02)
    return name
