"""A real Prometheus that scrapes brokers every second; tests ask it in PromQL."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ottla_cli.free_ports import free_ports

_START_S = 30.0
#: The rules of the tests wait for seconds; a loaded machine adds some.
_ALERT_S = 45.0


class Prometheus:
    """`with Prometheus(folder, ["127.0.0.1:9292"]) as prometheus: prometheus.query("up")`"""

    def __init__(
        self,
        folder: Path,
        targets: Sequence[str],
        *,
        rules: Sequence[Path] = (),
        jobs: Sequence[dict[str, Any]] = (),
    ) -> None:
        """`targets` are brokers without labels; `jobs` are further scrape configurations."""
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {"job_name": "ottla-broker", "static_configs": [{"targets": list(targets)}]},
                *jobs,
            ],
        }
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Prometheus:
        self.until(lambda: self._get("/-/ready") is not None, "Prometheus is ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series; raises if Prometheus refuses the expression."""
        found = self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert found is not None, f"no answer for {expression}"
        document = json.loads(found)
        assert document["status"] == "success", document
        return [(each["metric"], float(each["value"][1])) for each in document["data"]["result"]]

    def alerts(self) -> list[dict[str, Any]]:
        found = self._get("/api/v1/alerts")
        return [] if found is None else list(json.loads(found)["data"]["alerts"])

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.alerts() if each["state"] == "firing"}

    def until_firing(self, *names: str) -> None:
        self.until(lambda: set(names) <= self.firing(), f"{names} fire", _ALERT_S)

    def until_over(self, *names: str) -> None:
        self.until(lambda: not set(names) & self.firing(), f"{names} are over", _ALERT_S)

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = _START_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
            time.sleep(0.2)
        return found

    def _get(self, path: str) -> bytes | None:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
                return bytes(answer.read())
        except OSError:
            return None
