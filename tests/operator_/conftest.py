"""One API server with the operator's CRDs and rights, for all files of this folder that need it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import yaml

from operator_.api_server import ApiServer, find_program
from operator_.bodies import ROOT


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    program = find_program()
    assert program is not None
    server = ApiServer(program, tmp_path_factory.mktemp("api"))
    try:
        server.wait_ready()
        for name in ("crds", "rbac"):
            for document in yaml.safe_load_all((ROOT / f"manifests/{name}.yaml").read_text()):
                server.apply(document)
        server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        deadline = time.monotonic() + 30
        while "topics" not in str(server.request("GET", "/apis/ottla.dev/v1alpha1")):
            assert time.monotonic() < deadline, "the CRDs are not served"
            time.sleep(0.1)
        yield server
    finally:
        server.stop()
