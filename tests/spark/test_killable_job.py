"""Which kills of a job count as hits: those that end a process in the middle of a task."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from spark.killable_job import SparkJob
from spark.stepping_source import marked


def test_a_task_that_fails_does_not_count_as_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKERS", str(tmp_path))
    monkeypatch.setattr("spark.stepping_source._SLOW_S", (0.0, 0.0))
    with pytest.raises(ZeroDivisionError), marked():
        assert [each.name for each in tmp_path.iterdir()] == [str(os.getpid())]
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_only_processes_of_the_job_run_its_tasks_and_are_hit(tmp_path: Path) -> None:
    job = SparkJob("no.module", [], tmp_path)
    markers = tmp_path / "markers"
    ended = subprocess.Popen(["true"])
    ended.wait()
    # Left by a process that has ended, and by one whose number another process has now.
    for pid in (ended.pid, os.getpid()):
        (markers / str(pid)).touch()
    assert job.running_tasks() == set()
    for in_task in (True, False):
        job._process = subprocess.Popen(
            ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True
        )
        assert job._process.stdout is not None
        with job._process.stdout as output:
            worker = int(output.readline())
        if in_task:
            (markers / str(worker)).touch()
        assert job.running_tasks() == ({worker} if in_task else set())
        assert job.kill() == in_task
        assert not (markers / str(worker)).exists()
