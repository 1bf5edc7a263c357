"""A hook's first step, the count that it stores, and a trial's view of the earlier attempts."""

import json
import os
import time
from pathlib import Path

import pytest
from fake_steps_of_hooks import LIMIT_S, FakeStep, write_steps

from clary.base.plain import to_plain
from clary.contract.step_counts import (
    FOLDER_VARIABLE,
    HEADER_BYTES,
    RESTORED_FILE,
    RestoredCounts,
    StepCounts,
    read_header,
    read_rows,
)
from clary.train.debugger.capture.step_counting import CountsFile, restored_counts
from clary.train.debugger.capture.writing import Writer
from clary.train.debugger.errors import NoMoreData
from clary.train.debugger.files import LocalFiles
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.reading.trial_places import create_trial
from clary.train.debugger.rule import Rule, invoke_rule

OWN, FIRST = StepCounts(30, 20, 9), StepCounts(43, 40, 2, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    at = tmp_path / "counts"
    at.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(at))
    return at


def test_a_hook_continues_from_the_restored_counts(folder: Path) -> None:
    (folder / RESTORED_FILE).write_text(json.dumps(to_plain(RestoredCounts(own=OWN, first=FIRST))))
    assert restored_counts(trains_alone=False) == FIRST
    assert restored_counts(trains_alone=True) == OWN
    (folder / RESTORED_FILE).write_text(json.dumps(to_plain(RestoredCounts(first=FIRST))))
    assert restored_counts(trains_alone=True) == StepCounts()


def test_without_checkpoints_a_hook_counts_from_0_and_stores_no_counts(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert restored_counts(trains_alone=False) == StepCounts()
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / RESTORED_FILE).write_text(json.dumps(to_plain(RestoredCounts(first=FIRST))))
    assert restored_counts(trains_alone=False) == StepCounts()
    CountsFile(StepCounts()).add("worker_0", 0, -1, -1, -1)
    assert os.listdir(folder) == []
    assert caplog.text == ""


FOREIGN = (
    "",
    '{"own": null, "fir',
    "[1]",
    '{"first": 7}',
    '{"first": {"total": "x"}}',
    '{"first": {"total": 3, "train": 4}}',
    '{"first": {"total": -2}}',
    '{"first": {"total": 99999999999999999999}}',
    "[" * 30000,
)


@pytest.mark.parametrize("content", FOREIGN, ids=range(len(FOREIGN)))
def test_a_torn_or_foreign_file_of_counts_costs_a_log_line(
    folder: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / RESTORED_FILE).write_text(content)
    assert restored_counts(trains_alone=False) == StepCounts()
    assert "debugger: steps are counted from 0" in caplog.text


def test_a_path_that_is_no_regular_file_is_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "elsewhere").write_text(json.dumps(to_plain(RestoredCounts(first=FIRST))))
    (folder / RESTORED_FILE).symlink_to("elsewhere")
    assert restored_counts(trains_alone=False) == StepCounts()
    (folder / RESTORED_FILE).unlink()
    os.mkfifo(folder / RESTORED_FILE)
    assert restored_counts(trains_alone=False) == StepCounts()
    assert caplog.text.count("debugger: steps are counted from 0") == 2


def test_each_step_adds_a_row(folder: Path) -> None:
    began_ns = time.time_ns()
    file = CountsFile(FIRST)
    assert os.listdir(folder) == [], "as long as nobody trains"
    for step in (44, 45):
        file.add("worker_3", step, step - 3, 2, 0)
    file.close()
    file.add("worker_3", 46, 43, 2, 0)
    (name,) = os.listdir(folder)
    data = (folder / name).read_bytes()
    header, rows = read_header(data), read_rows(data[HEADER_BYTES:])
    assert header is not None
    assert (name, header.worker, header.before) == (f"worker_3-{os.getpid()}.counts", 3, FIRST)
    assert [row.counts for row in rows] == [StepCounts(44, 41, 2, 0), StepCounts(45, 42, 2, 0)]
    assert began_ns <= header.began_ns <= rows[0].at_ns <= rows[1].at_ns <= time.time_ns()


def test_counts_that_cannot_be_stored_cost_a_log_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.rmdir()
    file = CountsFile(StepCounts())
    for step in range(3):
        file.add("worker_0", step, -1, -1, -1)
    assert caplog.text.count("debugger: checkpoints are stored without the number of their step") == 1
    folder.mkdir()
    os.mkfifo(folder / f"worker_1-{os.getpid()}.counts")
    CountsFile(StepCounts()).add("worker_1", 0, -1, -1, -1)
    assert caplog.text.count("debugger: checkpoints are stored without the number of their step") == 2
    file = CountsFile(StepCounts())
    file.add("worker_0", 0, -1, -1, -1)
    with (folder / "of the program").open("wb") as own:
        os.dup2(own.fileno(), file._descriptor)  # the program closes a descriptor of ours, and opens a file
    taken = file._descriptor
    file.add("worker_0", 1, -1, -1, -1)
    os.close(taken)  # the descriptor still belongs to the program
    assert (folder / "of the program").read_bytes() == b""
    assert "the program has closed the file of step counts" in caplog.text


def goes_on(at: Path, *steps: int, after: int, ends: bool = True) -> Writer:
    """Save in the same folder as a later attempt does."""
    writer = Writer(at, "worker_0")
    writer.write_collections({}, 1, goes_on_after=after)
    for step in steps:
        writer.submit(FakeStep(step))
    if ends:
        assert writer.close(limit_s=LIMIT_S)
    return writer


def test_a_trial_shows_one_training_over_attempts_with_each_step_once(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 10, 20, 30, 40)
    follower = create_trial(tmp_path)
    assert follower.steps() == [0, 10, 20, 30, 40]
    second = goes_on(tmp_path, 30, after=25, ends=False)
    trial = create_trial(tmp_path)
    trial.wait_for_steps([30], limit_s=LIMIT_S)
    assert trial.steps() == [0, 10, 20, 30], "step 40 is of what was lost, and not saved again yet"
    assert trial.written_at[30] >= second.began_at > trial.written_at[20]
    second.submit(FakeStep(40))
    assert second.close(limit_s=LIMIT_S)
    goes_on(tmp_path, 20, after=19)
    assert create_trial(tmp_path).steps() == [0, 10, 20]
    write_steps(tmp_path, 0)
    assert create_trial(tmp_path).steps() == [0], "one that begins anew hides all that was there"


def test_an_open_trial_keeps_the_steps_from_which_another_attempt_continues(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, 10, 20, ends=False).close(limit_s=LIMIT_S)
    (tmp_path / "ended" / "worker_0.json").unlink()  # as if it had been killed
    trial = create_trial(tmp_path)
    assert trial.steps() == [0, 10, 20]
    writer = goes_on(tmp_path, after=15, ends=False)
    assert trial.steps() == [0, 10]
    assert (trial.num_restarts, trial.tensor("weight").steps()) == (1, [0, 10])
    writer.submit(FakeStep(20))
    assert writer.close(limit_s=LIMIT_S)
    assert trial.steps() == [0, 10, 20]
    assert trial.has_ended


@pytest.mark.parametrize("value", ["Infinity", "null", '"x"', "{}"])
def test_a_wrong_start_step_of_a_worker_hides_no_steps_of_that_worker(tmp_path: Path, value: str) -> None:
    goes_on(tmp_path, 30, 40, after=25)
    place = tmp_path / "collections" / "worker_0.json"
    place.write_text(place.read_text().replace('"goes_on_after": 25', f'"goes_on_after": {value}'))
    assert value in place.read_text()
    trial = create_trial(tmp_path)
    assert trial.steps() == [30, 40]


class Seen(Rule):
    """Records the steps for which it is called."""

    def __init__(self, base_trial: Trial) -> None:
        super().__init__(base_trial)
        self.steps: list[int] = []

    def invoke_at_step(self, step: int) -> bool:
        self.steps.append(step)
        return False


def test_a_rule_of_a_later_attempt_sees_only_that_attempt_s_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_steps(tmp_path, 0, 500_000)
    time.sleep(0.01)
    since = time.time()
    goes_on(tmp_path, 1_000_000, 1_000_500, after=999_999)
    trial = Trial(LocalFiles(tmp_path), name="later", since=since)
    calls = []
    monkeypatch.setattr(trial, "wait_for_steps", _counted(trial.wait_for_steps, calls))
    rule = Seen(trial)
    with pytest.raises(NoMoreData):
        invoke_rule(rule)
    assert rule.steps == [1_000_000, 1_000_500]
    assert len(calls) < 10


def _counted(call, calls):
    def counted(*arguments, **keywords):
        calls.append(arguments)
        return call(*arguments, **keywords)

    return counted
