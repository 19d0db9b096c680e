from __future__ import annotations

import json
import subprocess
import sys

import kopf

from ottla_operator import handlers
from ottla_operator.crds import all_crds
from ottla_operator.settings import Settings


def test_nothing_of_kopfs_own_names_remains() -> None:
    settings = kopf.OperatorSettings()
    handlers.configure(settings)
    for storage in (settings.persistence.progress_storage, settings.persistence.diffbase_storage):
        assert storage.prefix == "ottla.dev"  # type: ignore[attr-defined]
    waits = (
        settings.watching.server_timeout,
        settings.watching.client_timeout,
        settings.watching.connect_timeout,
    )
    assert all(waits), "a watch that the network forgot is given up some time"


def test_nothing_gets_a_finalizer() -> None:
    """A resource with one cannot be deleted without an operator, nor can its namespace."""
    registry = kopf.get_default_registry()
    holding = [
        handler
        for part in (registry._changing, registry._spawning)
        for handler in part._handlers
        if getattr(handler, "requires_finalizer", False)
    ]
    assert holding == []


def test_settings_come_from_the_environment() -> None:
    assert Settings.of({}).namespaces == ()
    made = Settings.of({"OTTLA_OPERATOR_NAMESPACES": "shop, bank", "OTTLA_OPERATOR_BROKER_IMAGE": "mine:1"})
    assert (made.namespaces, made.images.broker) == (("shop", "bank"), "mine:1")


def test_it_prints_its_crds_and_refuses_nonsense() -> None:
    run = [sys.executable, "-m", "ottla_operator"]
    printed = subprocess.run([*run, "crds"], capture_output=True, text=True, check=True, timeout=60)
    assert [json.loads(line) for line in printed.stdout.splitlines()] == all_crds()
    wrong = subprocess.run([*run, "dance"], capture_output=True, text=True, check=False, timeout=60)
    assert wrong.returncode == 2 and "dance" in wrong.stderr
