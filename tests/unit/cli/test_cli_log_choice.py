"""The lines of a log that `clary logs` shows: chosen by time, attempt and pattern."""

import argparse
import io
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from clary.cli import logs
from clary.cli.main import main
from clary.cli.moments import moment_ms

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        (" 1d ago ", timedelta(days=1)),
        ("2w", timedelta(weeks=2)),
        ("0s", timedelta()),
    ],
)
def test_a_duration_before_now_is_a_time(text, ago):
    assert moment_ms(text, now=NOW) == (NOW - ago).timestamp() * 1000


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00.000+01:00", "2026-01-31 12:00:00+00:00"])
def test_an_iso_time_is_a_time(text):
    assert moment_ms(text) == NOW.timestamp() * 1000


def test_an_iso_time_without_a_zone_is_in_this_machines_zone():
    local = NOW.astimezone().replace(tzinfo=None)
    assert moment_ms(local.isoformat()) == NOW.timestamp() * 1000


def test_times_before_1970_become_1970():
    assert moment_ms("999999999w", now=NOW) == 0
    assert moment_ms("1901-01-01T00:00:00Z") == 0


@pytest.mark.parametrize("text", ["", "soon", "10", "m", "-5m", "10m later", "2026-13-01", "1e3s", "\u0661m", "9" * 30])
def test_an_invalid_time_is_refused_with_the_valid_forms(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected how long ago"):
        moment_ms(text)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Return the list of queries of `clary logs`; the service has two lines, one of them on a second page."""
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    queries = []

    def job_page(job, page, query):
        queries.append(dict(query))
        number = len(queries)
        text = ["epoch 1 loss=0.5", "saved [model]"][number - 1]
        line = {"host": "algo-1", "at_ms": number, "text": text, "rank": 0}
        sure_until_ms = number if number == 1 else None
        return {"lines": [line], "tokens": {}, "sure_until_ms": sure_until_ms, "is_over": True}

    monkeypatch.setattr(logs, "connect", lambda: SimpleNamespace(job_page=job_page))
    return queries


def test_time_and_attempt_are_sent_with_the_request_for_every_page(asked):
    when = ["--since", "2026-01-31T11:00:00Z", "--until", "2026-01-31T12:00:00Z"]
    assert main(["logs", "x", *when, "--attempt", "1", "--rank", "0"]) == 0
    end_ms = int(NOW.timestamp() * 1000)
    wanted = {"since_ms": str(end_ms - 3_600_000), "until_ms": str(end_ms), "attempt": "1", "rank": "0"}
    assert asked == [wanted, wanted]


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        (r"loss=\d", ["epoch 1 loss=0.5"]),
        (r"^saved \[", ["saved [model]"]),
        (r"(?i)EPOCH|model", ["epoch 1 loss=0.5", "saved [model]"]),
        ("algo-1", []),
    ],
)
def test_grep_shows_lines_in_which_the_expression_is_found(asked, capsys, pattern, shown):
    assert main(["logs", "x", "--grep", pattern]) == 0
    assert capsys.readouterr().out.splitlines() == [f"algo-1 | {text}" for text in shown]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--grep", "loss=("], "'loss=(' is not a regular expression: missing )"),
        (["--since", "yesterday"], "'yesterday' is no moment: expected how long ago"),
        (["--attempt", "first"], "invalid int value: 'first'"),
    ],
)
def test_invalid_options_are_wrong_usage(asked, capsys, arguments, complaint):
    with pytest.raises(SystemExit) as ended:
        main(["logs", "x", *arguments])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
    assert asked == []


def test_a_period_that_ends_before_it_begins_is_refused(asked, capsys):
    assert main(["logs", "x", "--since", "1h", "--until", "2h"]) == 2
    assert capsys.readouterr().err == "clary: --since must be a time before --until\n"
    assert asked == []


@pytest.mark.parametrize(("no_colour", "is_painted"), [("", True), ("1", False)])
def test_hosts_are_coloured_on_a_terminal_unless_no_color_is_set(asked, monkeypatch, capsys, no_colour, is_painted):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setattr(logs.sys.stdout, "isatty", lambda: True)
    assert main(["logs", "job"]) == 0
    assert ("\x1b[" in capsys.readouterr().out) is is_painted


def test_a_rank_without_lines_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    line = {"host": "algo-1", "at_ms": 1, "text": "epoch 1", "rank": 0}
    lines = {"0": [line], "7": []}

    def job_page(job, page, query):
        return {"lines": lines[query["rank"]], "tokens": {}, "sure_until_ms": None, "is_over": True}

    monkeypatch.setattr(logs, "connect", lambda: SimpleNamespace(job_page=job_page))
    assert main(["logs", "x", "--rank", "7"]) == 0
    assert capsys.readouterr() == ("", "clary: no line of rank 7 was found in the log of x\n")
    assert main(["logs", "x", "--rank", "0", "--grep", "nothing"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\u2713 \\ud800"), ("utf-8", "\u2713 \\ud800")])
def test_text_that_the_outputs_encoding_lacks_is_spelled_out(tmp_path, monkeypatch, encoding, shown):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    line = {"host": "algo-1", "at_ms": 1, "text": "\u2713 \ud800", "rank": None}
    page = {"lines": [line], "tokens": {}, "sure_until_ms": None, "is_over": True}
    monkeypatch.setattr(logs, "connect", lambda: SimpleNamespace(job_page=lambda *_: page))
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    assert main(["logs", "x"]) == 0
    assert output.getvalue().decode(encoding) == f"algo-1 | {shown}\n"
