"""The notice of a stop: written atomically, replaced by a later one, and never written outside the host's tree."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clary.agent.environments.config_files import run_folder
from clary.agent.environments.stop_notice import stop_notice_path, write_stop_notice
from clary.contract.ml_tree import MlTree
from clary.testing.fake_clock import FakeClock

NOW = datetime(2026, 1, 2, 3, 4, 5, 500000, tzinfo=UTC)


@pytest.fixture
def tree(tmp_path: Path) -> MlTree:
    made = MlTree(tmp_path / "ml")
    run_folder(made).mkdir(parents=True)
    return made


def test_the_notice_holds_the_reason_and_the_deadline(tree: MlTree) -> None:
    write_stop_notice(tree, reason="StopTrainingJob", grace_s=120.0, clock=FakeClock(NOW))
    path = stop_notice_path(tree)
    assert json.loads(path.read_text()) == {
        "reason": "StopTrainingJob",
        "deadline": "2026-01-02T03:06:05.500000+00:00",
        "deadline_s": NOW.timestamp() + 120.0,
        "deadline_monotonic_s": FakeClock(NOW).monotonic() + 120.0,
        "grace_s": 120.0,
    }
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in run_folder(tree).iterdir()] == [path.name]


def test_a_later_notice_replaces_an_earlier_one(tree: MlTree) -> None:
    write_stop_notice(tree, reason="first", grace_s=120.0, clock=FakeClock(NOW))
    with stop_notice_path(tree).open() as reader:
        write_stop_notice(tree, reason="second", grace_s=1.0, clock=FakeClock(NOW))
        assert json.load(reader)["reason"] == "first"
    assert json.loads(stop_notice_path(tree).read_text())["reason"] == "second"


def test_links_that_the_program_has_left_are_not_followed(tree: MlTree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    for name in (stop_notice_path(tree).name, f".{stop_notice_path(tree).name}.part"):
        (run_folder(tree) / name).symlink_to(outside)
    write_stop_notice(tree, reason="why", grace_s=1.0, clock=FakeClock(NOW))
    assert outside.read_text() == "kept"
    assert not stop_notice_path(tree).is_symlink()


def test_a_folder_that_the_program_has_replaced_by_a_link_takes_no_notice(tree: MlTree, tmp_path: Path) -> None:
    folder = tmp_path / "outside"
    folder.mkdir()
    os.rename(run_folder(tree), tmp_path / "moved")
    run_folder(tree).symlink_to(folder)
    with pytest.raises(OSError, match="clary"):
        write_stop_notice(tree, reason="why", grace_s=1.0, clock=FakeClock(NOW))
    assert list(folder.iterdir()) == []
