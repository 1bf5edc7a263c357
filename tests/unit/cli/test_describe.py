"""`clary describe --why`: the failure, its location, the advice on a retry, and the rows of the timeline."""

import json
import sys
import time

import pytest

from clary.cli import describe as describe_command
from clary.cli.describe import describe, why
from clary.cli.main import main


def facts(*, cause=None, timeline=(), **members):
    return {
        "name": "job",
        "status": "Failed",
        "secondary_status": "Failed",
        "state": "Failed",
        "failure_reason": "AlgorithmError: algo-2: rank 3: KeyError: 'label', exit code: 1",
        "cause": cause,
        "timeline": list(timeline),
        **members,
    }


def cause(**members):
    return {"host": "algo-2", "rank": 3, "verdict": "user", "is_retryable": False, **members}


def row(at, kind, where, what):
    return {"at": f"2026-01-01T00:00:{at}+00:00", "kind": kind, "where": where, "what": what, "num_folded": 1}


def test_the_cause_is_shown_with_location_verdict_and_advice():
    lines = why(facts(cause=cause())).splitlines()
    assert lines[0] == "job  Failed (Failed)"
    assert lines[1] == "  failure   AlgorithmError: algo-2: rank 3: KeyError: 'label', exit code: 1"
    assert lines[2] == "  where     algo-2, rank 3"
    assert lines[3] == "  verdict   your program"
    assert lines[4] == "  retry     will not help as it stands"


def test_a_transient_failure_says_that_a_retry_can_help():
    text = why(facts(cause=cause(rank=None, verdict="host", is_retryable=True)))
    assert "  where     algo-2\n" in text
    assert "  retry     can help: nothing of the job has to change\n" in text


def test_a_failure_of_no_host_is_the_services_and_an_old_one_has_no_verdict():
    text = why(facts(cause=cause(host=None, rank=None, verdict="")))
    assert "  where     the service\n" in text
    assert "  verdict   unknown\n" in text


def test_a_job_without_a_failure_shows_none():
    lines = why(facts(status="Completed", secondary_status="Completed", state="Completed")).splitlines()
    assert lines[:2] == ["job  Completed (Completed)", "  failure   none"]


def test_a_waiting_job_shows_its_place_and_reason():
    queue = {"place": 2, "num_waiting": 9, "start_in_s": 60.0, "basis": "past jobs", "estimate": "if all goes on so"}
    text = why(facts(state="Queued", queue=queue, pending_reason="Needs 4 hosts; 2 of 4 hosts are free."))
    assert "  queue     place 2 of 9, starts in about 1m 00s (if all goes on so)\n" in text
    assert "  waits for Needs 4 hosts; 2 of 4 hosts are free.\n" in text
    assert "failure" not in text


def test_a_job_ended_without_a_failure_shows_its_last_message():
    last = {"status": "MaxRuntimeExceeded", "message": "Training job runtime exceeded MaxRuntimeInSeconds provided"}
    lines = why(facts(status="Stopped", state="Stopped", transitions=[last])).splitlines()
    assert lines[1:3] == [
        "  failure   none",
        "  ended     Training job runtime exceeded MaxRuntimeInSeconds provided",
    ]


def test_a_job_that_never_had_hosts_has_no_share_of_their_time():
    waits = described(ledger={"num_attempts": 0, "wall_s": 20.0, "hosts": [], "seconds": {"queued": 20.0}})
    assert "time and money" not in describe(waits)


def test_rows_show_time_in_milliseconds_kind_location_and_message():
    text = why(
        facts(
            cause=cause(),
            timeline=[
                row("01", "status", "", "Starting: begins"),
                row("02.250", "cause", "algo-2, rank 3", "rank 3: KeyError: 'label'"),
            ],
        )
    )
    rows = [line.split() for line in text.split("what happened\n")[1].splitlines()]
    assert rows[0] == ["TIME", "KIND", "WHERE", "WHAT"]
    assert rows[1][2:] == ["status", "-", "Starting:", "begins"]
    assert rows[2] == [rows[2][0], "cause", "algo-2,", "rank", "3", "rank", "3:", "KeyError:", "'label'"]
    assert rows[2][0].endswith(":02.250")


@pytest.fixture
def two_hours_east(monkeypatch):
    """Set the time zone of this process to UTC+2; in POSIX, offsets count to the west."""
    monkeypatch.setenv("TZ", "EAST-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_rows_show_the_local_time_and_the_date_where_it_changes(two_hours_east):
    moments = ("2026-01-01T21:00:00", "2026-01-01T21:00:00.25", "2026-01-01T22:30:00", "2026-01-04T22:30:00")
    timeline = [
        {"at": f"{moment}+00:00", "kind": "status", "where": "", "what": "x", "num_folded": 1} for moment in moments
    ]
    text = why(facts(timeline=timeline)).split("what happened\n")[1]
    assert [line.partition("status")[0] for line in text.splitlines()[1:]] == [
        "  2026-01-01 23:00:00.000  ",
        "             23:00:00.250  ",
        "  2026-01-02 00:30:00.000  ",
        "  2026-01-05 00:30:00.000  ",
    ]


def described(**members):
    return facts(transitions=[], hosts=[], metrics=[{"name": "loss", "value": float("nan")}], **members)


def test_control_codes_in_a_programs_output_do_not_reach_the_terminal():
    said = described(warnings=["algo-1: \033[2J"])
    said["failure_reason"] = "AlgorithmError: ValueError: \033]0;owned\007\nsecond line"
    for text in (describe(said), why({**said, "cause": cause()})):
        assert "\033" not in text
        assert "\\x1b]0;owned\\x07\nsecond line" in text
    assert "  - algo-1: \\x1b[2J" in describe(said)


def test_differences_of_this_machine_have_their_own_heading():
    text = describe(described(warnings=["the disk is full"], emulation=["ml.m5.large has 4 CPUs", "torch 2.8"]))
    lines = text.splitlines()
    assert lines[lines.index("warnings") :] == [
        *("warnings", "  - the disk is full", ""),
        *("emulation", "  - ml.m5.large has 4 CPUs", "  - torch 2.8"),
    ]
    assert "emulation" not in describe(described(warnings=["the disk is full"])), "no heading over nothing"


def test_a_loss_that_is_no_number_is_null_in_json_and_nan_for_people(monkeypatch, capsys):
    class FakeConnection:
        """Returns one job."""

        def job_page(self, name):
            return described()

    monkeypatch.setattr(describe_command, "connect", FakeConnection)
    assert main(["describe", "job", "--json"]) == 0

    def refuse(name):
        pytest.fail(f"{name} is not JSON")

    assert json.loads(capsys.readouterr().out, parse_constant=refuse)["metrics"] == [{"name": "loss", "value": None}]
    assert main(["describe", "job"]) == 0
    assert "loss=nan" in capsys.readouterr().out


def test_a_loss_that_the_service_has_as_null_is_nan_for_people():
    assert "loss=nan" in describe(described() | {"metrics": [{"name": "loss", "value": None}]})


LONG = "AlgorithmError: algo-2: rank 3: FileNotFoundError: /opt/ml/input/data/train/part-00001-of-01024.parquet is gone"


def wide_facts():
    host = {
        "name": "algo-1",
        "phase": "released",
        "instance_type": "ml.p4d.24xlarge",
        "processes_per_host": 8,
        "timings_s": {"environment": 12.5, "code": 0.25, "channels": 103.75, "upload": 7.125},
        "exits": ", ".join(f"rank {rank}: signal 9" for rank in range(8)),
    }
    began = {"started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T00:01:00+00:00"}
    seconds = {"queued": 20.0, "productive": 100.0}
    ledger = {
        "wall_s": 120.0,
        "hosts": [{"name": f"algo-{number}", "seconds": seconds} for number in range(1, 13)],
        "seconds": seconds,
        "goodput": 0.8,
        "num_attempts": 1,
        "num_reclaimed": 0,
        "num_restarted": 0,
        "bill": None,
    }
    return facts(
        cause=cause(),
        timeline=[row("01", "cause", "algo-2, rank 3", LONG)],
        transitions=[{"status": "Failed", "message": LONG, **began}],
        hosts=[host],
        past_attempts=[{"number": 1, "kind": "restarted", "asked_at": began["started_at"], "reason": LONG}],
        rules=[{"name": "VanishingGradient", "kind": "debug", "status": "IssuesFound", "details": LONG}],
        ledger=ledger,
        failure_reason="",
    )


@pytest.mark.parametrize("words", [describe, why])
@pytest.mark.parametrize("width", [80, 100])
def test_on_a_terminal_tables_fit_and_every_word_is_still_there(words, width):
    told, whole = words(wide_facts(), width=width), words(wide_facts())
    assert max(map(len, whole.splitlines())) > width
    assert max(map(len, told.splitlines())) <= width
    assert sorted(set("".join(whole.split()))) == sorted(set("".join(told.split())))
    for word in ("FileNotFoundError:", "103.75s", "7:") if words is describe else ("FileNotFoundError:",):
        assert (word in told) == (word in whole)


def test_pipes_get_unfolded_lines(monkeypatch, capsys):
    class FakeConnection:
        """Returns one job."""

        def job_page(self, name):
            return wide_facts()

    monkeypatch.setattr(describe_command, "connect", FakeConnection)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["describe", "job"]) == 0
    assert LONG in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["describe", "job"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
