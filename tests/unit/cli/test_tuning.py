"""`clary tuning` without a service: its requests, output and exit codes."""

import io
import json

import pytest
from tuning_trials import many_trials, trial, tuning_job

from clary.base.errors import WireError
from clary.cli import tuning
from clary.cli.main import main
from clary.control.tuning.tuning_facts import facts_of, row_of
from clary.control.tuning.tuning_job import TuningStatus

RUNS = {"status": TuningStatus.IN_PROGRESS, "ended_at": None, "end_reason": ""}
ROWS = [row_of(tuning_job(name), [trial(1, 0.9, tuning_job=name)]) for name in ("newer", "older")]


def page_of(trials, **changes):
    """Return the page of a tuning job as the service sends it."""
    rows = [
        {
            "number": one.number,
            "job": one.job_name,
            "definition": one.definition,
            "status": "InProgress" if one.outcome is None else one.outcome.status.value,
            "state": "Running" if one.outcome is None else one.outcome.status.value,
            "value": one.value,
            "parameters": dict(one.parameters),
            "created_at": one.created_at.isoformat(),
            "started_at": None if one.outcome is None else one.outcome.training_started_at.isoformat(),
            "ended_at": None if one.outcome is None else one.outcome.training_ended_at.isoformat(),
            "stop_reason": one.stop_reason,
            "failure_reason": "" if one.outcome is None else one.outcome.failure_reason,
            "curve": [] if one.outcome is None else list(one.outcome.curve),
        }
        for one in trials
    ]
    return {**facts_of(tuning_job(**changes), trials), "trials": rows, "importance": None, "importance_why": "too few"}


class FakeService:
    """Returns pages in order; an error is raised."""

    def __init__(self, *answers):
        self.answers, self.asked, self.posted = list(answers), [], []

    def again(self):
        return self

    def post(self, path, body):
        self.posted.append(path)
        return {}

    def get(self, path, query=None):
        self.asked.append(path)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def use(monkeypatch):
    monkeypatch.setattr(tuning, "POLL_S", 0.0)

    def use(*answers):
        fake = FakeService(*answers)
        monkeypatch.setattr(tuning, "connect", lambda: fake)
        return fake

    return use


def test_without_a_name_tuning_jobs_are_listed(use, capsys):
    fake = use({"tuning_jobs": ROWS}, {"tuning_jobs": ROWS}, {"tuning_jobs": ROWS}, {"tuning_jobs": []})
    assert main(["tuning"]) == 0
    said = capsys.readouterr().out
    assert "NAME   STATUS     STRATEGY  TRIALS   OBJECTIVE  BEST" in said
    assert "newer  Completed  Bayesian  1 of 40  accuracy   0.9" in said
    assert main(["tuning", "--names"]) == 0
    assert capsys.readouterr().out == "newer\nolder\n"
    assert main(["tuning", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ROWS
    assert main(["tuning"]) == 0
    assert capsys.readouterr().out == "no tuning jobs yet\n"
    assert fake.asked == ["tuning"] * 4


def test_one_tuning_job_is_printed_whole_and_as_json(use, capsys):
    page = page_of(many_trials(3))
    fake = use(page, page)
    assert main(["tuning", "tuned"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("tuned  Completed\n  objective   maximize accuracy\n")
    assert "tuned-003-0000abcd" in said
    assert main(["tuning", "tuned", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == page
    assert fake.asked == ["tuning/tuned"] * 2


def test_a_missing_tuning_job_has_the_exit_code_of_absence(use, capsys):
    use(WireError("NotFound", "there is no tuning job 'x y'"))
    assert main(["tuning", "x y"]) == 3
    assert capsys.readouterr().err == "clary: there is no tuning job 'x y'\n"


def test_a_tuning_job_is_stopped_and_then_shown(use, capsys):
    fake = use(page_of([trial(1, 0.9)], **{**RUNS, "status": TuningStatus.STOPPING}))
    assert main(["tuning", "tu ned", "--stop"]) == 0
    assert fake.posted == ["tuning/tu%20ned/stop"]
    assert "Stopping" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--follow"], ["--stop"], ["tuned", "--names"]])
def test_conflicting_options_are_refused(use, capsys, arguments):
    use()
    assert main(["tuning", *arguments]) == 2
    assert capsys.readouterr().err.startswith("clary: ")


def test_a_pipe_that_follows_gets_a_line_for_each_trial_and_then_all(use, capsys):
    first, second = trial(1, 0.5), trial(2, None)
    running = [
        page_of([first, trial(2, outcome=None)], **RUNS),
        page_of([first, second], **{**RUNS, "status": TuningStatus.STOPPING}),
    ]
    use(*running, page_of([first, second]))
    assert main(["tuning", "tuned", "-f"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("trial 1 is Completed: accuracy=0.5 with lr=0.01, momentum=0.9, ")
    assert lines[1].startswith("trial 2 is Completed: no objective with ")
    assert lines[2] == "tuned  Completed"


def test_following_a_tuning_job_that_fails_ends_with_the_exit_code_of_failure(use, capsys):
    failed = page_of([trial(1, None)], status=TuningStatus.FAILED, end_reason="no training job has told a value")
    use(failed, failed, failed)
    assert main(["tuning", "tuned", "--follow"]) == 1
    assert main(["tuning", "tuned", "--follow", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["status"] == "Failed"
    assert main(["tuning", "tuned"]) == 0, "it was found, and that is all that was asked"


class FakeTerminal(io.StringIO):
    """Stdout that is a terminal of this size in columns and rows."""

    def isatty(self):
        return True


def test_a_terminal_that_follows_is_redrawn_in_place(use, monkeypatch):
    screen = FakeTerminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("LINES", "12")
    use(page_of(many_trials(20), **RUNS), page_of(many_trials(21), **RUNS), page_of(many_trials(21)))
    assert main(["tuning", "tuned", "--follow"]) == 0
    first, second, last = screen.getvalue().split("\x1b[J")[1:]
    assert first.count("\n") == 11, "a screen is as high as it is"
    assert first.splitlines()[-2].startswith("... and ")
    assert first.endswith("\x1b[11F")
    assert second.endswith("\x1b[11F")
    assert "tuned-021-0000abcd" in last, "at the end all is printed"
    assert max(len(line) for line in last.splitlines()) <= 140
