"""Commands that wait for a job outlast a restart of the service, and say so when it stays away."""

import http.client
import json
import os
import re
import ssl
from types import SimpleNamespace

import pytest

from clary.base.errors import WireError
from clary.base.processes import ProcessId
from clary.cli import logs, patience, tuning
from clary.cli.connection import Connection, connect
from clary.cli.main import main
from clary.cli.no_answer import NoAnswer
from clary.cli.patience import PatientConnection
from clary.control.state_folder import ServiceRecord, StateFolder

AWAY = NoAnswer("the service at http://127.0.0.1:9 does not answer (refused); start it with: clary up")
LOST = NoAnswer("the service at http://127.0.0.1:9 does not answer (reset)", is_sent=True)
BUSY = WireError("ServiceUnavailable", "it is shutting down", http_status=503)
DEFECT = WireError("InternalFailure", "An internal error occurred", http_status=500)


class FakeService:
    """Answers each page and each operation with the next of its answers; errors among them are raised."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def _next(self, name):
        self.asked.append(name)
        answer = self.answers[name].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def job_page(self, job, page="", query=None):
        return self._next(page or "job")

    def get(self, path, query=None):
        return self._next(path.partition("/")[0])

    def call(self, operation, parameters):
        return self._next(operation)

    def post_job_page(self, job, page, body):
        return self._next(f"post {page}")

    def again(self):
        return self


@pytest.fixture
def serve(monkeypatch):
    """Return a function that makes a verb talk to a fake service, which answers without delay."""
    monkeypatch.setattr(patience, "RETRY_S", 0.0)

    def serve(verb, **answers):
        fake = FakeService(**answers)
        monkeypatch.setattr(f"clary.cli.{verb}.connect", lambda: fake)
        for name in ("POLL_S", "_POLL_S"):
            monkeypatch.setattr(f"clary.cli.{verb}.{name}", 0.0, raising=False)
        return fake

    return serve


def told(state):
    return {"name": "x", "status": state, "secondary_status": state, "state": state, "failure_reason": ""}


@pytest.mark.parametrize("error", [AWAY, LOST, BUSY])
def test_wait_outlasts_a_restart_and_says_so_once(serve, capsys, error):
    serve("wait", state=[told("Running"), error, error, error, told("Completed")])
    assert main(["wait", "x"]) == 0
    said = capsys.readouterr()
    assert said.out == "x is Completed\n"
    first, last = said.err.splitlines()
    assert re.fullmatch(r"clary: the service .*; this command waits for it, at most 120 s", first)
    assert last == "clary: the service answers again, after 0 s"


@pytest.mark.parametrize("error", [AWAY, BUSY])
def test_wait_ends_with_a_code_of_its_own_when_the_service_stays_away(serve, capsys, monkeypatch, error):
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    serve("wait", state=[told("Completed"), error])
    assert main(["wait", "a", "b", "--json"]) == 69
    said = capsys.readouterr()
    assert [job["TrainingJobName"] for job in json.loads(said.out)] == ["a"]
    assert "this command has waited 0 s for it and ends" in said.err


def test_waits_own_limit_is_its_patience(serve, capsys, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    serve("wait", state=[AWAY, told("Completed")])
    assert main(["wait", "x", "--timeout", "600"]) == 0
    assert "at most 600 s" in capsys.readouterr().err
    serve("wait", state=[AWAY])
    assert main(["wait", "x", "--timeout", "0"]) == 69


def test_stop_outlasts_a_restart_only_while_it_waits(serve, capsys):
    serve("stop", StopTrainingJob=[{}], state=[AWAY, told("Stopped")])
    assert main(["stop", "x", "--wait", "60"]) == 0
    assert capsys.readouterr().out == "x is Stopped\n"
    serve("stop", StopTrainingJob=[AWAY])
    assert main(["stop", "x"]) == 69


def page(text, *, over=False):
    lines = [{"host": "algo-1", "at_ms": 1, "text": text, "rank": 0}] if text else []
    return {"lines": lines, "tokens": {}, "sure_until_ms": None, "is_over": over}


def test_logs_outlast_a_restart_while_they_are_followed(serve, capsys, monkeypatch):
    serve("logs", logs=[page("one"), AWAY, page("two", over=True)])
    assert main(["logs", "x", "--follow"]) == 0
    assert capsys.readouterr().out == "algo-1 | one\nalgo-1 | two\n"
    monkeypatch.setattr(logs, "PROGRESS_S", 0.0)
    progress = {"progress": {"done": 3.0, "total": None, "unit": "steps", "percent": None, "eta_s": None}}
    serve("logs", logs=[page("one"), page("", over=True)], job=[AWAY, progress])
    assert main(["logs", "x", "--follow", "--progress"]) == 0
    serve("logs", logs=[AWAY])
    assert main(["logs", "x"]) == 69


def test_tuning_outlasts_a_restart_while_it_is_followed(serve, capsys, monkeypatch):
    monkeypatch.setattr(tuning, "tuning_text", lambda page, **_: page["status"])
    running = {"name": "t", "status": "InProgress", "trials": [], "objective": {"metric": "loss"}}
    serve("tuning", tuning=[running, AWAY, BUSY, {**running, "status": "Completed"}])
    assert main(["tuning", "t", "--follow"]) == 0
    assert capsys.readouterr().out == "Completed\n"


@pytest.mark.parametrize("num_defects", [3, 4])
def test_a_defect_of_the_service_is_told_after_three_repetitions(serve, capsys, num_defects):
    fake = serve("wait", state=[DEFECT] * num_defects + [told("Completed")])
    assert main(["wait", "x"]) == (0 if num_defects == 3 else 1)
    assert fake.asked == ["state"] * 4
    assert ("clary: An internal error occurred" in capsys.readouterr().err.splitlines()) is (num_defects == 4)


def states(*names):
    return [name if isinstance(name, Exception) else {"TrainingJobStatus": name} for name in names]


def test_delete_outlasts_a_restart_and_does_nothing_twice(serve, capsys):
    fake = serve(
        "delete",
        DescribeTrainingJob=states("InProgress", "Stopping", AWAY, "Stopped"),
        StopTrainingJob=[LOST],
        DeleteTrainingJob=[LOST, WireError("NotFound", "there is no training job 'x'")],
    )
    assert main(["delete", "x", "--stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"TrainingJobName": "x", "Deleted": True}]
    assert fake.asked.count("StopTrainingJob") == 1


@pytest.mark.parametrize("error", [AWAY, BUSY])
def test_a_job_that_did_not_exist_is_not_deleted_by_a_repeated_request(serve, capsys, error):
    gone = WireError("NotFound", "there is no training job 'x'")
    serve("delete", DescribeTrainingJob=states("Stopped"), DeleteTrainingJob=[error, gone])
    assert main(["delete", "x", "--stop"]) == 3


@pytest.mark.parametrize("option", [[], ["--stop"]])
def test_delete_prints_what_it_has_deleted_before_the_error(serve, capsys, monkeypatch, option):
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    serve("delete", DescribeTrainingJob=states("Stopped", "Stopped"), DeleteTrainingJob=[{}, AWAY])
    assert main(["delete", "a", "b", "c", *option, "--json"]) == 69
    assert json.loads(capsys.readouterr().out) == [{"TrainingJobName": "a", "Deleted": True}]


def test_a_profile_is_awaited_over_a_restart(serve, capsys):
    taken = {"is_over": True, "summary": {"ranks": []}}
    serve("profile", **{"post profile": [{"number": 1}]}, profile=[AWAY, taken])
    assert main(["profile", "x", "--json"]) == 1, "no rank has a trace"
    assert json.loads(capsys.readouterr().out) == taken


def test_a_restarted_service_is_asked_at_its_new_address_and_nobody_else_is(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLARY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    folder, process = StateFolder(tmp_path), ProcessId.of(os.getpid())
    folder.create()
    folder.load_secrets()

    def run(url, started):
        values = {"tls_url": "", "proxy_url": "", "region": "us-west-2", "version": "0"}
        folder.write_service_record(ServiceRecord(pid=process.pid, process_started=started, url=url, **values))

    run("http://127.0.0.1:9", process.started)
    connection = connect()
    run("http://127.0.0.1:10", process.started)
    assert connection.again().record.url == "http://127.0.0.1:10"
    run("http://127.0.0.1:10", str(int(process.started) - 1))  # it has ended; its port may be another program's
    with pytest.raises(NoAnswer, match="no service runs"):
        connection.again()


class FormerService:
    """Stands for a service that has ended: another program may listen at its port now, and gets no request."""

    def __init__(self, now):
        self.now = now

    def again(self):
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


REQUESTS = [
    lambda service: service.job_page("x", "state"),
    lambda service: service.get("state"),
    lambda service: service.call("state", {}),
    lambda service: service.post_job_page("x", "state", {}),
    lambda service: service.change("state", {}, done_code="NotFound"),
]
NAMES = ["job_page", "get", "call", "post", "change"]


@pytest.mark.parametrize("request_it", REQUESTS, ids=NAMES)
def test_every_request_goes_to_the_service_as_it_runs_now(request_it):
    now = FakeService(**{"state": [{}], "post state": [{}]})
    request_it(PatientConnection(FormerService(now)))
    assert len(now.asked) == 1


@pytest.fixture
def opened(monkeypatch):
    """Return the URLs at which connections are opened; no server answers there."""
    urls = []

    def connect_nowhere(self):
        urls.append(self.record.url)
        raise OSError("nobody listens")

    monkeypatch.setattr(Connection, "_open", connect_nowhere)
    return urls


@pytest.mark.parametrize("request_it", REQUESTS, ids=NAMES)
def test_the_record_of_an_ended_process_gets_no_request(tmp_path, monkeypatch, opened, request_it):
    for name in [name for name in os.environ if name.startswith("CLARY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    folder, process = StateFolder(tmp_path), ProcessId.of(os.getpid())
    folder.create()
    folder.load_secrets()
    values = {"pid": process.pid, "url": "http://127.0.0.1:9", "tls_url": "", "proxy_url": "", "region": "us-west-2"}
    folder.write_service_record(ServiceRecord(process_started=process.started, version="0", **values))
    patient = PatientConnection(connect())
    ended = str(int(process.started) - 1)
    folder.write_service_record(ServiceRecord(process_started=ended, version="0", **values))
    with pytest.raises(NoAnswer, match="no service runs"):
        request_it(patient)
    assert opened == []


def test_deleting_several_jobs_looks_for_the_service_before_each(monkeypatch, capsys):
    now = FakeService(DeleteTrainingJob=[{}, {}])
    monkeypatch.setattr("clary.cli.delete.connect", lambda: FormerService(now))
    assert main(["delete", "a", "b"]) == 0
    assert now.asked == ["DeleteTrainingJob"] * 2


class FakeLine:
    """A connection to an HTTP server that answers always the same."""

    num_requests = 0

    def __init__(self, status, text):
        self.answer = SimpleNamespace(status=status, read=lambda: text)

    def connect(self):
        """Succeed."""

    def request(self, *_, **__):
        type(self).num_requests += 1

    def getresponse(self):
        return self.answer

    def close(self):
        """Succeed."""


@pytest.mark.parametrize(
    ("status", "text", "code", "num_requests"),
    [
        (401, b"<html>log in</html>", 1, 1),
        (404, b"<html>no such page</html>", 1, 1),
        (404, b"[]", 1, 1),
        (200, b"<html>welcome</html>", 1, 1),
        (500, b"<html>oops</html>", 1, 4),
        (502, b"<html>bad gateway</html>", 69, 1),
    ],
)
def test_an_answer_without_json_is_told_for_what_it_is(monkeypatch, capsys, tmp_path, status, text, code, num_requests):
    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setenv("CLARY_URL", "https://gpu1:4571")
    for name in ("CLARY_ADMIN_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    monkeypatch.setattr(patience, "RETRY_S", 0.0)
    if status == http.client.BAD_GATEWAY:
        monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    monkeypatch.setattr(FakeLine, "num_requests", 0)
    monkeypatch.setattr(Connection, "_open", lambda self: FakeLine(status, text))
    assert main(["wait", "x"]) == code
    said = capsys.readouterr().err
    assert "https://gpu1:4571" in said
    assert f"HTTP {status}" in said
    assert text.decode() in said
    assert FakeLine.num_requests == num_requests


def test_a_certificate_that_is_not_trusted_is_no_reason_to_wait(tmp_path, monkeypatch, capsys):
    def connect_to_another():
        raise ssl.SSLCertVerificationError(1, "self-signed certificate")

    monkeypatch.setenv("CLARY_HOME", str(tmp_path))
    monkeypatch.setenv("CLARY_URL", "https://gpu1:4571")
    for name in ("CLARY_ADMIN_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x" * 20)
    line = SimpleNamespace(connect=connect_to_another, close=lambda: None)
    monkeypatch.setattr(Connection, "_open", lambda self: line)
    assert main(["wait", "x"]) == 1
    assert "the service at https://gpu1:4571 is not to be trusted" in capsys.readouterr().err
