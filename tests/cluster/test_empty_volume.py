"""Three real brokers; one comes back with an empty log folder: it says so, and is ready once it has caught up."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.request

import pytest

from ottla_cli.local_cluster import LocalCluster
from ottla_client import NewTopic
from ottla_client.sync import Admin, Producer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
VICTIM = 1


class Probe(threading.Thread):
    """Asks as often as it can whether a broker is ready, and what its ISRs are at that moment."""

    def __init__(self, http: str) -> None:
        super().__init__(daemon=True)
        self._url = f"http://{http}/readyz"
        self.reasons: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with urllib.request.urlopen(self._url, timeout=5):
                    if self.reasons:
                        return
            except urllib.error.HTTPError as refused:
                with refused:
                    self.reasons += json.loads(refused.read())["reasons"]
            except OSError:
                pass
            time.sleep(0.005)


def test_a_broker_with_an_empty_volume_says_so_and_catches_up_before_it_is_ready() -> None:
    with LocalCluster(brokers=3) as local, Admin(local.grpc_bootstrap) as admin:
        admin.create_topics([NewTopic("t", 6, 3, {})])
        with Producer(local.grpc_bootstrap) as producer:
            for number in range(300):
                producer.send("t", value=bytes(100_000), partition=number % 6)
        before = {each.id: each.directories for each in admin.describe_cluster().brokers}
        assert all(len(directories) == 1 for directories in before.values())
        local.stop_broker(VICTIM)
        shutil.rmtree(local.brokers[VICTIM].log_dir)
        probe = Probe(local.brokers[VICTIM].http)
        probe.start()
        local.restart(VICTIM)
        probe.join(60)
        probe.over.set()
        caught_up = admin.describe_topics(["t"])[0].partitions
        assert any("catching up and not in sync yet" in reason for reason in probe.reasons), probe.reasons
        assert all(VICTIM in each.isr for each in caught_up), "it was ready before"
        after = {each.id: each.directories for each in admin.describe_cluster().brokers}
        assert after[VICTIM] != before[VICTIM]
        assert {n: d for n, d in after.items() if n != VICTIM} == {
            n: d for n, d in before.items() if n != VICTIM
        }
        lines = local.brokers[VICTIM].child.log_lines(200)
        assert any("log directories are missing or empty" in line for line in lines)
