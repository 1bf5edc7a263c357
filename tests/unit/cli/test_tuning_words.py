"""Text of `clary tuning`: facts of a tuning job, importance, the table of trials."""

from datetime import timedelta

from tuning_trials import BEGIN

from clary.cli.tuning_words import head_lines, list_text, trial_line, trials_text, tuning_text

NOW = BEGIN + timedelta(minutes=10)
PAGE = {
    "name": "tuned",
    "status": "InProgress",
    "strategy": "Hyperband",
    "seed": 7,
    "objective": {"metric": "loss", "is_maximized": False},
    "counters": {"Completed": 1, "InProgress": 1, "RetryableError": 1, "NonRetryableError": 2, "Stopped": 0},
    "num_trials": 5,
    "max_trials": None,
    "best": {
        "number": 1,
        "job": "tuned-001-a",
        "value": 0.123456789,
        "parameters": {"lr": "0.000123456", "opt": "sgd"},
    },
    "parents": ["older"],
    "created_at": BEGIN.isoformat(),
    "ended_at": None,
    "end_reason": "",
    "ends": ["after 3600 s", "when loss reaches 0.1"],
    "definitions": [{"name": "", "ranges": [{"name": "lr"}, {"name": "opt"}], "hyperparameters": {}}],
    "importance": {"lr": 0.75, "opt": 0.25},
    "importance_why": "",
}
ENDED = {
    "number": 1,
    "job": "tuned-001-a",
    "definition": "",
    "status": "Completed",
    "state": "Completed",
    "value": 0.123456789,
    "parameters": {"lr": "0.000123456", "opt": "sgd"},
    "created_at": BEGIN.isoformat(),
    "started_at": BEGIN.isoformat(),
    "ended_at": (BEGIN + timedelta(seconds=30)).isoformat(),
    "stop_reason": "",
    "failure_reason": "",
    "curve": [0.5, 0.123456789],
}
RUNS = {**ENDED, "number": 2, "job": "tuned-002-b", "state": "Running", "value": None, "ended_at": None, "curve": [0.4]}
WAITS = {**RUNS, "number": 3, "job": "tuned-003-c", "state": "Queued", "started_at": None, "curve": []}


def test_the_head_shows_progress_the_best_trial_and_the_limits():
    assert head_lines(PAGE, now=NOW) == [
        "tuned  InProgress",
        "  objective   minimize loss",
        "  strategy    Hyperband, seed 7",
        "  trials      5: 1 completed, 1 in progress, 2 failed, 1 failed by the service",
        "  time        10m 00s",
        "  best        0.12346 by trial 1, tuned-001-a",
        "  with        lr=0.00012346, opt=sgd",
        "  begins with trials of older",
        "  ends        after 3600 s; when loss reaches 0.1",
    ]


def test_the_head_of_an_ended_tuning_job_shows_the_reason():
    ended = {**PAGE, "status": "Failed", "ended_at": NOW.isoformat(), "end_reason": "all\x1b[2J failed", "best": None}
    lines = head_lines(ended, now=NOW + timedelta(hours=3))
    assert lines[-1] == "  ended       all\\x1b[2J failed"
    assert "  time        10m 00s" in lines


def test_the_table_of_trials_has_current_values_and_marks_the_best():
    lines = trials_text({**PAGE, "trials": [ENDED, RUNS, WAITS]}, now=BEGIN + timedelta(seconds=90)).splitlines()
    assert [line.split() for line in lines] == [
        ["#", "JOB", "STATE", "LOSS", "LR", "OPT", "TOOK"],
        ["1*", "tuned-001-a", "Completed", "0.12346", "0.00012346", "sgd", "30.0", "s"],
        ["2", "tuned-002-b", "Running", "(0.4)", "0.00012346", "sgd", "1m", "30s"],
        ["3", "tuned-003-c", "Queued", "-", "0.00012346", "sgd", "-"],
    ]


def test_trials_of_several_definitions_name_theirs_and_why_they_stopped():
    definitions = [{**PAGE["definitions"][0], "name": name} for name in ("small", "large")]
    stopped = {**ENDED, "definition": "large", "stop_reason": "early stopping: worse", "parameters": {"lr": "0.1"}}
    text = trials_text({**PAGE, "definitions": definitions, "trials": [stopped]}, now=NOW)
    assert text.splitlines()[0].split() == ["#", "JOB", "DEFINITION", "STATE", "LOSS", "LR", "OPT", "TOOK", "WHY"]
    assert "large" in text
    assert text.endswith("early stopping: worse")


def test_importance_is_drawn_or_its_absence_explained():
    page = {**PAGE, "trials": []}
    assert "importance\n  lr    75 %  ###############\n  opt   25 %  #####\n" in tuning_text(page, now=NOW)
    absent = tuning_text({**page, "importance": None, "importance_why": "It needs 8."}, now=NOW)
    assert "importance: It needs 8.\n\nno trial has started yet" in absent


def test_a_line_on_a_trial_has_its_objective_its_parameters_and_why_it_ended():
    failed = {**ENDED, "status": "Failed", "value": None, "failure_reason": "AlgorithmError: boom\nTraceback"}
    assert trial_line(ENDED, "loss") == "trial 1 is Completed: loss=0.12346 with lr=0.00012346, opt=sgd"
    assert trial_line(failed, "loss") == (
        "trial 1 is Failed: no objective with lr=0.00012346, opt=sgd; AlgorithmError: boom"
    )


def test_a_trial_that_continues_another_names_it():
    trial = {**ENDED, "continues": 2, "stop_reason": "Hyperband: after 3 values of loss others of its rung are better"}
    line = trial_line(trial, "loss")
    assert line.endswith("; goes on from trial 2; Hyperband: after 3 values of loss others of its rung are better")


def test_the_list_has_a_row_for_each_tuning_job():
    row = {**PAGE, "max_trials": 40}
    assert list_text([row], now=NOW).splitlines()[1].split() == (
        ["tuned", "InProgress", "Hyperband", "5", "of", "40", "loss", "0.12346", "10m", "00s", "ago", "10m", "00s"]
    )
    assert list_text([{**row, "best": None}], now=NOW).splitlines()[1].split()[7] == "-"
    assert list_text([], now=NOW) == "no tuning jobs yet"
