"""What tests of every area share: a running cluster, and two budgets (see `budget.py`)."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings

from budget import QUICK
from ottla_cli.local_cluster import LocalCluster

# No deadlines: how long one example takes says how busy the machine is. A hang meets pytest's own timeout.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", max_examples=QUICK, deadline=None)
settings.load_profile("full")


def pytest_configure() -> None:
    """Jobs that a shell starts in the background ignore Ctrl-C, and so would the children that tests interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all that they import stay to the end: looking for garbage among them finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def local_cluster() -> Iterator[LocalCluster]:
    """One broker and its etcd for all tests that only use it. Work in topics of your own; do not stop it."""
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Clusters of your own, to stop, kill and restart: `make_cluster(settings={...})`, already started."""
    made: list[LocalCluster] = []

    def make(*positional: str, **arguments: object) -> LocalCluster:
        cluster = LocalCluster(*positional, **arguments)  # type: ignore[arg-type]
        made.append(cluster)
        cluster.start()
        return cluster

    yield make
    for cluster in made:
        cluster.stop()
