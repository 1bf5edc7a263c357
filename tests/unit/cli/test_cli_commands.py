"""Commands without a service: exit codes, messages, and the conversion of pages to lines."""

import argparse
import http.server
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from clary.base.errors import ClaryError, Fault, WireError
from clary.base.processes import ProcessId
from clary.cli import connection, logs
from clary.cli.connection import Connection
from clary.cli.describe import describe
from clary.cli.main import main
from clary.cli.moments import moment_ms
from clary.cli.tables import clock_time, duration, table
from clary.control.settings import Settings
from clary.control.state_folder import ServiceRecord, StateFolder


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLARY_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CA_BUNDLE", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLARY_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def left_record(home, *, process, url="http://127.0.0.1:9", **changes):
    folder = StateFolder(home)
    folder.create()
    folder.load_secrets()
    values = {"tls_url": "", "proxy_url": "", "region": "us-west-2", "version": "0"} | changes
    record = ServiceRecord(pid=process.pid, process_started=process.started, url=url, **values)
    folder.write_service_record(record)
    return folder


@pytest.mark.parametrize("command", ["jobs", "describe x", "logs x", "stop x", "plan x", "env", "console"])
def test_without_a_service_a_command_says_how_to_start_one(home, capsys, command):
    assert main(command.split()) == 69
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"clary: no service runs for {home}; start one with: clary up\n"


def test_down_without_a_service_succeeds(home, capsys):
    assert main(["down"]) == 0
    assert capsys.readouterr().out == f"clary does not run for {home}\n"


def test_another_server_on_the_port_of_a_killed_service_gets_no_keys(home, capsys):
    requests = []

    class FakeStranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.headers)

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), FakeStranger) as server:
        server.timeout = 0
        own = ProcessId.of(os.getpid())
        url = f"http://127.0.0.1:{server.server_port}"
        left_record(home, process=ProcessId(own.pid, str(int(own.started) - 1)), url=url)
        assert main(["describe", "x"]) == 69
        assert main(["jobs"]) == 69
        server.handle_request()
    assert requests == []
    assert "no service runs" in capsys.readouterr().err


def test_a_service_that_does_not_answer_is_named_with_its_address(home, capsys):
    left_record(home, process=ProcessId.of(os.getpid()))
    assert main(["describe", "x"]) == 69
    assert "the service at http://127.0.0.1:9 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "down", "jobs", "env", "doctor", "describe x"])
def test_a_wrong_settings_file_is_named_with_its_key_by_every_command(home, capsys, command):
    home.mkdir()
    (home / "settings.toml").write_text("prot = 1\n")
    assert main(command.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"clary: {home}/settings.toml: unknown setting 'prot'; known are ")


def test_a_damaged_record_is_an_error_and_does_not_mean_no_service(home, capsys):
    folder = left_record(home, process=ProcessId.of(os.getpid()))
    folder.service_record_path.write_text("{")
    assert main(["jobs"]) == 69
    assert "127.0.0.1:9 does not answer" in capsys.readouterr().err  # the copy of the damaged record names this port
    folder.service_record_copy_path.write_text("")
    assert main(["jobs"]) == 2
    assert "service.json does not name a service" in capsys.readouterr().err


def test_a_command_makes_no_keys_where_they_are_missing(home, capsys):
    folder = left_record(home, process=ProcessId.of(os.getpid()))
    folder.secrets_path.unlink()
    assert main(["jobs"]) == 2
    assert "secrets/root.json are missing" in capsys.readouterr().err
    assert not folder.has_secrets


@pytest.mark.parametrize(
    "command",
    ["", "nonsense", "describe", "jobs --status Ended", "jobs -n 0", "jobs -n x", "stop x --wait soon", "logs"],
)
def test_wrong_usage_ends_with_two_and_says_it_on_stderr(home, capsys, command):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "usage: clary" in output.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WireError("NotFound", "gone"), 3),
        (WireError("ThrottlingException", "slow down"), 1),
        (ClaryError("yours", fault=Fault.USER), 2),
        (ClaryError("ours"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_exit_codes(home, capsys, monkeypatch, error, code):
    def fail():
        raise error

    monkeypatch.setattr("clary.cli.jobs.connect", fail)
    assert main(["jobs"]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (f"clary: {error.message}\n" if isinstance(error, ClaryError) else "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/x/y"), "/x/y: No such file or directory"),
        (OSError(18, "Invalid cross-device link", "/x", None, "/y"), "/x -> /y: Invalid cross-device link"),
        (OSError("odd"), "odd"),
    ],
)
def test_errors_of_files_name_the_file_and_the_reason(home, capsys, monkeypatch, error, words):
    def fail():
        raise error

    monkeypatch.setattr("clary.cli.jobs.connect", fail)
    assert main(["jobs"]) == 2
    assert capsys.readouterr().err == f"clary: {words}\n"


def test_a_closed_pipe_ends_the_command_without_a_traceback(home):
    code = (
        "import sys\nfrom clary.cli import main, plan\n"
        "plan.connect = lambda: type('C', (), {'job_page': lambda self, *names: {'x': 'y' * 10**6}})()\n"
        "sys.exit(main.main(['plan', 'x']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 1


class FakeConnection(Connection):
    """Answers each request with the next of the given answers, and records the requests."""

    def __init__(self, answers):
        self.__dict__.update(answers=list(answers), asked=[])

    def again(self):
        return self

    def job_page(self, job, page="", query=None):
        self.asked.append((job, page, dict(query or {})))
        return self.answers.pop(0)

    def get(self, path, query=None):
        self.asked.append((path, dict(query or {})))
        return self.answers.pop(0)

    def call(self, operation, parameters):
        self.asked.append((operation, dict(parameters)))
        return self.answers.pop(0)


def page(*lines, sure=None, over=False, token="t"):
    return {
        "lines": [{"host": host, "at_ms": at_ms, "text": f"{host} at {at_ms}", "rank": 0} for host, at_ms in lines],
        "tokens": {"s": token},
        "sure_until_ms": sure,
        "is_over": over,
    }


def run_logs(monkeypatch, pages, *arguments):
    fake = FakeConnection(pages)
    monkeypatch.setattr(logs, "connect", lambda: fake)
    monkeypatch.setattr(logs, "POLL_S", 0.0)
    assert main(["logs", "x", *arguments]) == 0
    return fake


def printed(capsys):
    return [line.partition(" | ")[2] for line in capsys.readouterr().out.splitlines()]


def test_logs_of_many_pages_come_in_the_order_of_their_times(home, monkeypatch, capsys):
    fake = run_logs(
        monkeypatch,
        [page(("algo-1", 1), ("algo-1", 2), ("algo-2", 9), sure=2), page(("algo-1", 5), token="u")],
    )
    assert printed(capsys) == ["algo-1 at 1", "algo-1 at 2", "algo-1 at 5", "algo-2 at 9"]
    assert fake.asked[1] == ("x", "logs", {"after.s": "t"})


def test_a_full_page_without_a_wanted_line_does_not_end_the_log(home, monkeypatch, capsys):
    fake = run_logs(monkeypatch, [page(sure=2), page(("algo-1", 5))], "--rank", "0", "--host", "algo-1")
    assert printed(capsys) == ["algo-1 at 5"]
    assert fake.asked[0][2] == {"host": "algo-1", "rank": "0"}


def test_without_follow_a_growing_log_ends_with_its_present_lines(home, monkeypatch, capsys):
    assert len(run_logs(monkeypatch, [page(("algo-1", 1)), page(("algo-1", 2))]).asked) == 1
    assert printed(capsys) == ["algo-1 at 1"]


def test_follow_continues_until_the_job_has_ended_and_every_line_is_printed(home, monkeypatch, capsys):
    pages = [page(("algo-1", 1)), page(), page(("algo-1", 2), sure=2, over=True), page(("algo-1", 3), over=True)]
    assert run_logs(monkeypatch, pages, "--follow").answers == []
    assert printed(capsys) == ["algo-1 at 1", "algo-1 at 2", "algo-1 at 3"]


@pytest.fixture
def two_hours_east(monkeypatch):
    """Set the time zone of this process to UTC+2; in POSIX, offsets count to the west."""
    monkeypatch.setenv("TZ", "EAST-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_lines_begin_with_their_local_time_if_requested(home, two_hours_east, monkeypatch, capsys):
    run_logs(monkeypatch, [page(("algo-1", 3_723_004))], "--timestamps")
    shown = "1970-01-01T03:02:03.004+02:00"
    assert capsys.readouterr().out == f"{shown} algo-1 | algo-1 at 3723004\n"
    assert moment_ms(shown) == moment_ms(shown.removesuffix("+02:00")) == 3_723_004, "what is shown can be asked for"


def test_follow_until_a_time_ends_when_no_earlier_line_can_arrive(home, monkeypatch, capsys):
    pages = [page(("algo-1", 1)), page(), page(("algo-1", 2))]
    moments = iter([100.0, 160.5, 161.0])
    monkeypatch.setattr("clary.cli.logs.time", SimpleNamespace(time=lambda: next(moments), sleep=lambda _: None))
    fake = run_logs(monkeypatch, pages, "--follow", "--until", "1970-01-01T00:02:40Z")
    assert fake.answers == []
    assert printed(capsys) == ["algo-1 at 1", "algo-1 at 2"]


def test_jobs_beyond_one_page_are_listed(home, monkeypatch, capsys):
    def pages_of(first, count):
        rows = [listed(f"job-{number}", state="Failed") for number in range(first, first + count)]
        return {"jobs": rows, "next": "more", "total": 700, "states": {"Failed": 700}}

    fake = FakeConnection([pages_of(0, 500), pages_of(500, 20), {"problems": ["1 record cannot be read"], "facts": []}])
    monkeypatch.setattr("clary.cli.jobs.connect", lambda: fake)
    assert main(["jobs", "-n", "520", "--json", "--status", "Failed"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert len(found) == 520
    assert found[0]["TrainingJobName"] == "job-0"
    assert found[0]["CreationTime"] == 1767225600.0
    assert said.err == "clary: 1 record cannot be read\nclary: 520 of 700 jobs; -n 700 prints all\n"
    assert fake.asked[1] == ("jobs", {"state": "Failed", "limit": 20, "after": "more"})


def listed(name, **members):
    """Return a job as it appears on the service's page of all jobs."""
    return {
        "name": name,
        "status": "InProgress",
        "secondary_status": "Pending",
        "state": "Queued",
        "created_at": "2026-01-01T00:00:00+00:00",
        "started_at": None,
        "ended_at": None,
        "duration_s": None,
        "pending_reason": "",
        "failure_reason": "",
        "queue": None,
        **members,
    }


def test_waiting_jobs_show_place_reason_and_estimated_start(home, monkeypatch, capsys):
    place = {"place": 2, "num_waiting": 205, "start_in_s": 720.0, "basis": "past jobs", "estimate": "if so"}
    rows = [
        listed("waits", pending_reason="Needs 2 hosts.", queue=place),
        listed("far", pending_reason="many", queue={**place, "start_in_s": None, "basis": "unknown"}),
        listed("runs", secondary_status="Training", state="Running", duration_s=3.0),
    ]
    states = {"Queued": 205, "Running": 3}
    fake = FakeConnection([{"jobs": rows, "next": None, "total": 208, "states": states}, {"problems": []}])
    monkeypatch.setattr("clary.cli.jobs.connect", lambda: fake)
    assert main(["jobs", "-n", "3"]) == 0
    head, waits, far, runs, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "STATUS", "PHASE", "CREATED", "TOOK", "WAITS", "FOR"]
    assert waits.endswith(" -      place 2 of 205, in about 12m 00s; Needs 2 hosts")
    assert far.endswith("place 2 of 205, start unknown; many")
    assert runs.split()[:3] == ["runs", "Running", "Training"]
    assert runs.endswith(" 3.0 s")
    assert total == "3 of 208 jobs; -n 208 shows all (in total 205 Queued, 3 Running)"


def state_page(state, status=None):
    return {"name": "x", "status": status or state, "state": state, "failure_reason": ""}


def test_stop_waits_up_to_its_timeout_and_reports_the_end(home, monkeypatch, capsys):
    answers = [{}, state_page("Stopping"), state_page("Stopped")]
    monkeypatch.setattr("clary.cli.stop.connect", lambda: FakeConnection(answers))
    monkeypatch.setattr("clary.cli.stop.POLL_S", 0.0)
    assert main(["stop", "x", "--wait", "5"]) == 0
    assert capsys.readouterr().out == "x is Stopped\n"
    monkeypatch.setattr("clary.cli.stop.connect", lambda: FakeConnection([{}, state_page("Stopping")]))
    assert main(["stop", "x", "--wait", "0"]) == 124
    assert "has not ended within 0 s" in capsys.readouterr().err


def test_stop_reports_a_waiting_job_as_stopped(home, monkeypatch, capsys):
    monkeypatch.setattr("clary.cli.stop.connect", lambda: FakeConnection([{}, state_page("Stopped")]))
    assert main(["stop", "x"]) == 0
    assert capsys.readouterr().out == "x is Stopped\n"
    monkeypatch.setattr("clary.cli.stop.connect", lambda: FakeConnection([{}, state_page("Stopped")]))
    assert main(["stop", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["TrainingJobStatus"] == "Stopped"
    monkeypatch.setattr("clary.cli.stop.connect", lambda: FakeConnection([{}, state_page("Stopping")]))
    assert main(["stop", "x"]) == 0
    assert capsys.readouterr().out.startswith("x is stopping; follow it with")


def test_the_number_of_names_left_out_is_printed_to_stderr(home, monkeypatch, capsys):
    answers = [{"jobs": [listed("a"), listed("b")], "next": "t", "total": 208, "states": {}}]
    monkeypatch.setattr("clary.cli.jobs.connect", lambda: FakeConnection(answers))
    assert main(["jobs", "--names", "-n", "2", "--status", "Failed"]) == 0
    told = capsys.readouterr()
    assert told.out == "a\nb\n"
    assert told.err == "clary: 2 of 208 jobs; -n 208 prints all\n"


def test_a_job_name_is_one_segment_of_the_path_whatever_its_characters(monkeypatch):
    asked = []
    monkeypatch.setattr(connection.Connection, "get", lambda self, path, query=None: asked.append(path) or {})
    fake = Connection(Settings(), None, None, None)
    fake.job_page("a/plan?x=1#", "logs")
    fake.job_page("a")
    assert asked == ["jobs/a%2Fplan%3Fx%3D1%23/logs", "jobs/a"]


def test_describe_of_a_failed_job_shows_the_reason_and_each_host():
    text = describe(
        {
            "name": "job-1",
            "status": "Failed",
            "secondary_status": "Failed",
            "state": "Failed",
            "failure_reason": "AlgorithmError: boom",
            "metrics": [{"name": "loss", "value": 0.25}],
            "transitions": [
                {
                    "status": "Training",
                    "started_at": "2026-01-01T00:00:00+00:00",
                    "ended_at": "2026-01-01T00:01:05+00:00",
                    "message": "runs",
                },
                {"status": "Failed", "started_at": "2026-01-01T00:01:05+00:00", "ended_at": None, "message": "boom"},
            ],
            "hosts": [
                {
                    "name": "algo-1",
                    "phase": "done",
                    "instance_type": "ml.m5.large",
                    "processes_per_host": 2,
                    "timings_s": {"code": 0.5},
                    "exits": "rank 0: 1",
                }
            ],
            "warnings": ["two hosts and no distribution"],
            "not_isolated": ["the clock"],
        }
    )
    lines = text.splitlines()
    assert lines[0] == "job-1  Failed (Failed)"
    assert "  failure   AlgorithmError: boom" in lines
    assert "  metrics   loss=0.25" in lines
    assert any(line.startswith("  Training") and "1m 05s" in line and line.endswith("runs") for line in lines)
    assert any("algo-1" in line and "code 0.50s" in line and line.endswith("rank 0: 1") for line in lines)
    assert lines[-5:] == ["warnings", "  - two hosts and no distribution", "", "not isolated", "  - the clock"]


def test_tables_align_and_leave_no_space_behind():
    assert table(("A", "LONG"), [("xyz", ""), ("", "b")]) == "A    LONG\nxyz\n     b"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (59.99, "1m 00s"), (60, "1m 00s"), (3599.7, "1h 00m"), (7380, "2h 03m")],
)
def test_durations_never_show_sixty_of_anything(seconds, text):
    assert duration(seconds) == text


def test_times_of_day_are_local():
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert clock_time(moment) == moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def test_counts_are_whole_numbers_from_one():
    from clary.cli.jobs import _count

    assert _count("7") == 7
    for text in ("0", "-1", "1.5", "", "x", "\u00b2"):
        with pytest.raises(argparse.ArgumentTypeError, match="whole number from 1"):
            _count(text)


@pytest.mark.parametrize(
    ("command", "of"),
    [("", "clary"), ("nonsense", "clary"), ("describe", "clary describe"), ("describe x --whyy", "clary describe")],
)
def test_wrong_usage_names_the_commands_help(home, capsys, monkeypatch, command, of):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: {of} [-h] [")
    assert said.endswith(f"; see: {of} --help\n")


def test_every_command_describes_itself_in_its_own_help(home, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["dump", "--help"])
    told = capsys.readouterr().out
    assert "stacks of all processes of a job, and who stands out\n" in told
    assert "JOB         name of a training job" in told
