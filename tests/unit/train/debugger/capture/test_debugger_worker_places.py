"""The worker that a process is, by its process group, its launcher or its host."""

import json
from pathlib import Path

import pytest

from clary.train.debugger.capture import ranks
from clary.train.debugger.capture.ranks import WorkerPlace, worker_place

VARIABLES = (*ranks._RANK_VARIABLES, *ranks._SIZE_VARIABLES, *ranks._LOCAL_SIZE_VARIABLES)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(tmp_path / "debughookconfig.json"))
    monkeypatch.setattr(ranks, "_from_group", lambda question: None)


def be_host(tmp_path: Path, current: str, *hosts: str) -> None:
    (tmp_path / "resourceconfig.json").write_text(json.dumps({"current_host": current, "hosts": hosts}))


def be_told(monkeypatch: pytest.MonkeyPatch, **variables: int) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_a_single_program_is_worker_0() -> None:
    assert worker_place() == WorkerPlace(name="worker_0", is_chief=True, num_workers=1)


@pytest.mark.parametrize("text", ["", "[]", '{"hosts": ["a"]}', '{"hosts": ["a"], "current_host": "b"}', "\0"])
def test_an_invalid_file_of_hosts_counts_as_no_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "resourceconfig.json").write_text(text)
    assert worker_place().name == "worker_0"


def test_a_rank_is_a_worker_wherever_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_host(tmp_path, "algo-2", "algo-1", "algo-2")
    be_told(monkeypatch, RANK=2, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2)
    assert worker_place() == WorkerPlace(name="worker_2", is_chief=False, num_workers=4)
    be_told(monkeypatch, RANK=0)
    assert worker_place().is_chief


def test_each_host_without_a_launcher_is_one_worker(tmp_path: Path) -> None:
    be_host(tmp_path, "algo-2", "algo-1", "algo-2")
    assert worker_place() == WorkerPlace(name="worker_1", is_chief=True, num_workers=2, num_trainings=2)


def test_ranks_that_are_numbered_per_host_get_numbers_over_all_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_host(tmp_path, "algo-2", "algo-1", "algo-2")
    be_told(monkeypatch, RANK=1, WORLD_SIZE=4, LOCAL_WORLD_SIZE=4)
    assert worker_place() == WorkerPlace(name="worker_5", is_chief=False, num_workers=8, num_trainings=2)


def test_a_process_group_takes_precedence_over_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_host(tmp_path, "algo-1", "algo-1", "algo-2")
    be_told(monkeypatch, RANK=0, WORLD_SIZE=1)
    monkeypatch.setattr(ranks, "_from_group", {"get_rank": 3, "get_world_size": 6}.get)
    assert worker_place() == WorkerPlace(name="worker_3", is_chief=False, num_workers=6)
