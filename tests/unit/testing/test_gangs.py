"""The processes of a gang: those of its hosts' agents, and the anchor, whose file lies in the folder of the pool."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clary.base.plain import to_plain
from clary.base.processes import ProcessId
from clary.control.engines.local.attempt_record import AttemptRecord, NetworkReady, write_record
from clary.control.engines.local.network.network_spec import READY_FILE, write_json
from clary.testing.gangs import HOSTS, PROGRAM, Gang

RANK = f'sh -c "sleep 600; :" {PROGRAM} &'


class FakeSagemaker:
    """Has one job, which trains."""

    def describe_training_job(self, **_: Any) -> dict[str, str]:
        return {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}


class FakeLogs:
    """Has the line that each rank prints."""

    def describe_log_streams(self, **_: Any) -> dict[str, Any]:
        return {"logStreams": [{"logStreamName": "demo/algo-1"}]}

    def get_log_events(self, **_: Any) -> dict[str, Any]:
        return {"events": [{"message": "asleep"}] * 4}


@pytest.fixture
def agent() -> Iterator[ProcessId]:
    """Two ranks below a process of their own session."""
    process = subprocess.Popen(["sh", "-c", f"{RANK} {RANK} wait"], start_new_session=True)
    found = ProcessId.of(process.pid)
    assert found is not None
    yield found
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def anchor() -> Iterator[ProcessId]:
    process = subprocess.Popen(["sleep", "600"])
    found = ProcessId.of(process.pid)
    assert found is not None
    yield found
    process.kill()
    process.wait()


@pytest.mark.parametrize("has_network", [True, False])
def test_the_anchor_of_the_pool_is_a_process_of_the_gang(
    tmp_path: Path, agent: ProcessId, anchor: ProcessId, has_network: bool
) -> None:
    job, pool = tmp_path / "jobs" / "demo" / "1", tmp_path / "jobs" / "pool-7" / "1"
    for folder in (job, pool):
        folder.mkdir(parents=True)
    write_record(job, AttemptRecord(boot_id="now", mark="", pool="pool-7"))
    write_record(pool, AttemptRecord(boot_id="now", mark="mark", agents=dict.fromkeys(HOSTS, agent)))
    if has_network:
        ready = NetworkReady(pid=anchor.pid, started=anchor.started, error=None)
        write_json(str(pool / READY_FILE), to_plain(ready))
    gang = Gang(tmp_path, "demo", sagemaker=FakeSagemaker(), logs=FakeLogs())
    assert (anchor in gang.processes) == has_network
    assert agent in gang.processes
    assert set(gang.ranks["algo-1"]) <= set(gang.processes)
