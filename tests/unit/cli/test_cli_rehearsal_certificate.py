"""A rehearsal keeps its certificate when a file cannot be written, and when the service is away for a while."""

import json
import time

import pytest

from clary.base.errors import WireError
from clary.cli import patience, rehearsal_run, rehearse
from clary.cli.main import main
from clary.cli.no_answer import NoAnswer
from clary.cli.rehearsal_run import JobWatch
from clary.control.rehearsal.faults import FaultKind, parse_fault

AWAY = NoAnswer("the service does not answer (refused); start it with: clary up")
LOST = NoAnswer("the service does not answer (reset); start it with: clary up", is_sent=True)
BUSY = WireError("ServiceUnavailable", "it is shutting down", http_status=503)
DEFECT = WireError("InternalFailure", "An internal error occurred", http_status=500)
TAKEN = WireError("ResourceInUse", "ResourceInUse: a training job with this name already exists")
NOW_S = 1e9  # of the service's clock, which is not this machine's
ENDED = {
    "status": "Completed",
    "state": "Completed",
    "secondary_status": "Completed",
    "attempt": 1,
    "past_attempts": [],
    "hosts": [],
    "failure_reason": "",
    "ledger": {"wall_s": 1.0, "seconds": {}},
}


class FakeService:
    """A service whose jobs end at once; `troubles` are raised first, by operation or page."""

    def __init__(self, **troubles):
        self.troubles, self.called, self.before_end = troubles, [], lambda: None
        self.age_s = 0.0  # of each job, by the service's clock

    def _meet(self, name):
        if self.troubles.get(name):
            raise self.troubles[name].pop(0)

    def get(self, page, query=None):
        return {"now_s": NOW_S} if page == "health" else {"refusals": {}, "largest_disk_bytes": 0}

    def call(self, operation, parameters):
        self.called.append((operation, parameters["TrainingJobName"]))
        self._meet(operation)
        return {"CreationTime": NOW_S - self.age_s} if operation == "DescribeTrainingJob" else {}

    def job_page(self, name, page="", query=None):
        self._meet(page or "job")
        self.before_end()
        if page == "logs":
            return {"lines": [], "tokens": {}, "sure_until_ms": None}
        return {"records": [], "is_released": True} if page == "records" else ENDED

    def again(self):
        return self


@pytest.fixture
def rehearsed(tmp_path, monkeypatch):
    """Return a function that runs `clary rehearse` against a fake service and returns the exit code."""
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"TrainingJobName": "job", "ResourceConfig": {"InstanceCount": 1}}))
    monkeypatch.setattr(patience, "RETRY_S", 0.0)
    monkeypatch.setattr(rehearsal_run, "POLL_S", 0.0)

    def run(service, *options):
        monkeypatch.setattr(rehearse, "connect", lambda: service)
        return main(["rehearse", str(request), "--kill", "algo-1@10s", "--suffix", "x", *options])

    return run


@pytest.mark.parametrize("place", ["missing/fit.json", ".", "request.json/fit.json"])
def test_a_file_that_cannot_be_written_is_refused_before_a_job_is_created(rehearsed, tmp_path, capsys, place):
    service = FakeService()
    assert rehearsed(service, "--certificate", str(tmp_path / place)) == 2
    assert service.called == []
    assert f"--certificate {tmp_path / place}: cannot be written: " in capsys.readouterr().err


def test_the_check_leaves_no_file_and_changes_none(rehearsed, tmp_path):
    file = tmp_path / "fit.json"
    refusal = WireError("ValidationException", "no such image")
    assert rehearsed(FakeService(CreateTrainingJob=[refusal]), "--certificate", str(file)) == 1
    assert not file.exists()
    file.write_text("of before")
    assert rehearsed(FakeService(CreateTrainingJob=[refusal]), "--certificate", str(file)) == 1
    assert file.read_text() == "of before"
    assert rehearsed(FakeService(), "--certificate", str(file)) == 3
    assert json.loads(file.read_text())["verdict"] == "INCONCLUSIVE"


def test_a_certificate_that_cannot_be_written_at_the_end_is_printed_with_a_code_of_its_own(rehearsed, tmp_path, capsys):
    folder = tmp_path / "folder"
    folder.mkdir()
    service = FakeService()
    service.before_end = lambda: folder.exists() and folder.rmdir()
    assert rehearsed(service, "--certificate", str(folder / "fit.json"), "--json") == 73
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "INCONCLUSIVE"
    assert f"clary: {folder / 'fit.json'} could not be written: No such file or directory" in said.err
    assert [operation for operation, _ in service.called] == ["CreateTrainingJob"] * 2, "nothing is deleted"


def test_a_disk_size_without_a_disk_is_said_to_have_no_effect(rehearsed, capsys):
    assert rehearsed(FakeService(), "--disk-size", "1GiB") == 3
    assert "--disk-size has no effect without --disk-full" in capsys.readouterr().err


def test_a_rehearsal_outlasts_restarts_and_creates_each_job_once(rehearsed, capsys):
    service = FakeService(CreateTrainingJob=[LOST, TAKEN], job=[AWAY], records=[AWAY], logs=[AWAY])
    assert rehearsed(service) == 3
    said = capsys.readouterr()
    assert "RESUME CERTIFICATE" in said.out
    assert said.err.count("this command waits for it") == 4


def test_a_service_that_stays_away_ends_a_rehearsal_with_a_code_of_its_own(rehearsed, capsys, monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    service = FakeService(job=[AWAY], StopTrainingJob=[AWAY])
    assert rehearsed(service, "--json") == 69
    said = capsys.readouterr()
    assert said.out == ""
    assert "clary: job-twin-x: could not be stopped: the service does not answer" in said.err


def test_a_taken_name_is_an_error_if_no_request_of_ours_got_through(rehearsed, capsys):
    assert rehearsed(FakeService(CreateTrainingJob=[AWAY, TAKEN])) == 1
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize("error", [LOST, BUSY, DEFECT])
def test_an_older_job_of_the_same_name_is_neither_taken_for_ours_nor_stopped(rehearsed, capsys, error):
    service = FakeService(CreateTrainingJob=[error, TAKEN])
    service.age_s = 60.0
    assert rehearsed(service) == 1
    assert "already exists" in capsys.readouterr().err
    assert "StopTrainingJob" not in [operation for operation, _ in service.called]


@pytest.mark.parametrize("age_s", [0.0, 60.0])
def test_a_job_that_may_have_been_created_is_stopped_only_if_it_is_ours(rehearsed, capsys, age_s):
    service = FakeService(CreateTrainingJob=[DEFECT] * 4)
    service.age_s = age_s
    assert rehearsed(service) == 1
    said = capsys.readouterr().err
    assert (("StopTrainingJob", "job-twin-x") in service.called) is (age_s == 0.0)
    assert ("clary: job-twin-x: not created by this rehearsal, so it is not stopped" in said) is (age_s > 0.0)


class FakeStrikes(FakeService):
    """A service with a running job; answers orders to strike as told."""

    def __init__(self, *answers):
        super().__init__()
        self.answers, self.struck = list(answers), 0

    def job_page(self, name, page="", query=None):
        if page == "logs":
            return {"lines": [], "tokens": {}}
        hosts = [{"name": f"algo-{number}", "phase": "running"} for number in (1, 2)]
        return {**ENDED, "status": "InProgress", "state": "Running", "secondary_status": "Training", "hosts": hosts}

    def post_job_page(self, name, page, body):
        self.struck += 1
        if self.answers:
            raise self.answers.pop(0)


class FakeReader:
    """Finds no values in lines."""

    def read_all(self, lines):
        return []


@pytest.mark.parametrize(
    ("kind", "text", "answer", "num_orders"),
    [
        (FaultKind.KILL, "algo-2@0s", AWAY, 2),  # it never arrived
        (FaultKind.KILL, "algo-2@0s", LOST, 1),  # a second kill would be a second fault
        (FaultKind.KILL, "algo-2@0s", DEFECT, 1),  # it may have struck before the service failed
        (FaultKind.PARTITION, "algo-2@0s", DEFECT, 2),
        (FaultKind.PARTITION, "algo-2@0s", LOST, 2),  # a cut link is cut once
    ],
)
def test_a_fault_strikes_at_most_once_whatever_becomes_of_the_answer(kind, text, answer, num_orders):
    service = FakeStrikes(answer)
    watch = JobWatch(service, "job", FakeReader(), lambda text: None, [parse_fault(kind, text)])
    for _ in range(4):
        watch.look()
    assert service.struck == num_orders
    (strike,) = watch.strikes()
    assert (strike.at_s is None) is (num_orders == 1)
    assert ("may have struck unseen" in strike.note) is (num_orders == 1)


@pytest.mark.parametrize("error", [LOST, BUSY])
def test_a_fault_whose_end_got_no_answer_is_ended_again(error):
    service = FakeStrikes()
    watch = JobWatch(
        service, "job", FakeReader(), lambda text: None, [parse_fault(FaultKind.PARTITION, "algo-2@0s+0.001s")]
    )
    watch.look()
    service.answers = [error]
    time.sleep(0.01)
    for _ in range(4):
        watch.look()
    assert service.struck == 3
