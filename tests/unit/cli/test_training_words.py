"""Text about a training: progress as a line, metrics as a table."""

from __future__ import annotations

import pytest

from clary.cli import logs
from clary.cli.top_words import job_row, screen
from clary.cli.training_words import progress_text, training_text


def progress(**changes):
    said = {"percent": 45.0, "done": 450, "total": 1000, "unit": "steps", "epoch": 2, "max_epoch": 3, "eta_s": 72.0}
    return said | changes


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "45 % (450 of 1000 steps, epoch 2 of 3), 1m 12s left"),
        ({"eta_s": None, "max_epoch": None}, "45 % (450 of 1000 steps)"),
        ({"unit": "percent", "total": 100, "done": 45, "max_epoch": None, "eta_s": None}, "45 %"),
        ({"unit": "epochs", "done": 3, "total": 10, "percent": 30.0, "eta_s": None}, "30 % (3 of 10 epochs)"),
        ({"percent": None, "total": None, "max_epoch": None, "eta_s": None}, "450 steps"),
    ],
)
def test_progress_is_one_line(changes, text):
    assert progress_text(progress(**changes)) == text


def test_metrics_are_a_table_and_non_numbers_are_shown_as_such():
    rows = [
        {"name": "loss", "last": 0.123456789, "step": 12, "least": 0.1, "greatest": 2.5, "num_values": 12},
        {"name": "rate", "last": None, "step": None, "least": None, "greatest": None, "num_values": 1},
    ]
    text = training_text({"job": "demo", "status": "InProgress", "progress": progress(), "metrics": rows})
    lines = text.splitlines()
    assert lines[0] == "demo  InProgress, 45 % (450 of 1000 steps, epoch 2 of 3), 1m 12s left"
    assert lines[2].split() == ["METRIC", "LAST", "STEP", "MIN", "MAX", "VALUES"]
    assert lines[3].split() == ["loss", "0.12346", "12", "0.1", "2.5", "12"]
    assert lines[4].split() == ["rate", "nan", "-", "nan", "nan", "1"]


def test_a_job_without_metrics_gets_a_message():
    page = {"job": "demo", "status": "Completed", "progress": None, "metrics": []}
    assert "said nothing" in training_text(page)


def test_a_followed_log_shows_progress_when_it_has_changed(monkeypatch, capsys):
    pages = [{"progress": None}, {"progress": progress()}, {"progress": progress()}, {"progress": progress(done=460)}]

    class FakeConnection:
        """Returns the next page."""

        def job_page(self, name):
            return pages.pop(0)

    monkeypatch.setattr(logs, "PROGRESS_S", 0.0)
    lines = logs._ProgressLines(FakeConnection(), "demo")
    while pages:
        lines.say()
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.split(",")[0] for line in said.err.splitlines()] == [
        "demo: 45 % (450 of 1000 steps",
        "demo: 45 % (460 of 1000 steps",
    ]


def test_a_name_with_control_characters_reaches_no_terminal_as_such():
    row = {"name": "\x1b]0;owned\x07\x1b[2J", "last": 1.0, "step": 1, "least": 1.0, "greatest": 1.0, "num_values": 1}
    text = training_text({"job": "demo", "status": "InProgress", "progress": None, "metrics": [row]})
    assert "\x1b" not in text
    assert "\\x1b]0;owned\\x07\\x1b[2J" in text
    top = job_row(
        {
            "name": "demo",
            "status": "InProgress",
            "secondary_status": "Training",
            "state": "Running",
            "hosts": [],
            "past_attempts": [],
            "pending_reason": "",
            "queue": None,
            "metrics": [{"name": row["name"], "value": 1.0, "at": "2026"}],
        },
        {},
    )
    lines = screen([top], opened=frozenset(), chosen="demo", width=300, height=20, head="")
    assert "\\x1b[2J" in lines[-1][0]


def test_histograms_and_images_are_listed_with_what_was_kept_of_them():
    pictures = [
        {"kind": "histogram", "tag": "weights", "last_step": 900, "num_seen": 900, "num_values": 100},
        {"kind": "image", "tag": "\x1bsample", "last_step": None, "num_seen": 1, "num_values": 1},
    ]
    page = {"job": "demo", "status": "InProgress", "progress": None, "metrics": [], "pictures": pictures}
    lines = training_text(page).splitlines()
    assert lines[2].split() == ["PICTURE", "KIND", "STEP", "WRITTEN", "KEPT"]
    assert lines[3].split() == ["weights", "histogram", "900", "900", "100"]
    assert lines[4].split() == ["\\x1bsample", "image", "-", "1", "1"]
    assert "clary console" in lines[5]
    many = training_text({**page, "pictures": pictures * 50})
    assert "and 80 more" in many
    assert len(many.splitlines()) < 30
