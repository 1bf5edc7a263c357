"""Last signs of life of dead hosts, from the files that they left."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from clary.control.engines.local import last_signs as module
from clary.control.engines.local.last_signs import last_signs
from clary.testing.launch_plans import make_plan


@pytest.fixture
def plan(tmp_path):
    return make_plan(work_folder=str(tmp_path / "job/1"), pool_folder=str(tmp_path / "pool/1"))


def write(path, at):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    for place in (path, path.parent):
        os.utime(place, (at.timestamp(), at.timestamp()))


def test_the_newest_file_of_agent_or_program_counts_for_its_host_alone(plan, tmp_path):
    then = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    write(tmp_path / "pool/1/algo-1/agent.log", then)
    write(tmp_path / "job/1/algo-1/ml/checkpoints/c", then + timedelta(hours=1))
    write(tmp_path / "pool/1/algo-2/agent.log", then)
    for folder in ("pool/1/algo-1", "job/1/algo-1", "job/1/algo-1/ml"):
        os.utime(tmp_path / folder, (then.timestamp(), then.timestamp()))
    assert last_signs(plan, ["algo-1", "algo-3"]) == {"algo-1": then + timedelta(hours=1)}


def test_times_after_the_present_are_no_signs(plan, tmp_path):
    write(tmp_path / "pool/1/algo-1/agent.log", datetime.now(UTC) + timedelta(days=1))
    assert last_signs(plan, ["algo-1"]) == {}


def test_links_are_not_followed_and_a_large_folder_is_left_early(plan, tmp_path, monkeypatch):
    then = datetime(2026, 1, 2, tzinfo=UTC)
    host = tmp_path / "pool/1/algo-1"
    write(host / "agent.log", then)
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere/file", then + timedelta(hours=1))
    (host / "link").symlink_to(tmp_path / "elsewhere")
    os.utime(host / "link", (then.timestamp(), then.timestamp()), follow_symlinks=False)
    assert last_signs(plan, ["algo-1"]) == {"algo-1": then}
    monkeypatch.setattr(module, "MOST_FILES", 0)
    assert last_signs(plan, ["algo-1"]) == {}


def test_a_folder_of_millions_is_not_listed_whole(plan, tmp_path, monkeypatch):
    for number in range(30):
        write(tmp_path / f"job/1/algo-1/ml/{number}", datetime(2026, 1, 2, tzinfo=UTC))
    monkeypatch.setattr(module, "MOST_FILES", 5)
    listed = []

    class Listing:
        def __init__(self, place):
            self._real = scandir(place)

        def __enter__(self):
            return self

        def __iter__(self):
            return self

        def __next__(self):
            entry = next(self._real)
            listed.append(entry.name)
            return entry

        def __exit__(self, *_):
            self._real.close()

    scandir = os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "scandir", Listing)
        last_signs(plan, ["algo-1"])
    assert len(listed) <= 5


def test_times_before_all_calendars_are_no_signs(plan, tmp_path, monkeypatch):
    write(tmp_path / "pool/1/algo-1/agent.log", datetime.now(UTC))
    monkeypatch.setattr(module, "_changes", lambda _: [-1e14])  # as file systems with 64 bits for seconds keep them
    assert last_signs(plan, ["algo-1"]) == {}
