"""Times of a rehearsal: when its job failed, and a job that does not end in time."""

import json
import math

from clary.cli import rehearse
from clary.cli.main import main
from clary.cli.rehearsal_run import JobWatch, failed_at_s

TRANSITIONS = [
    {"status": "Starting", "started_at": "2026-01-01T00:00:00+00:00"},
    {"status": "Training", "started_at": "2026-01-01T00:00:10+00:00"},
    {"status": "Training", "started_at": "2026-01-01T00:01:10+00:00"},
]
CAUSE = {"kind": "cause", "at": "2026-01-01T00:02:12.500000+00:00"}


def test_a_failure_is_timed_from_the_first_training():
    timeline = [{"kind": "status", "at": "2026-01-01T00:00:00+00:00"}, CAUSE]
    assert failed_at_s({"transitions": TRANSITIONS, "timeline": timeline}) == 122.5


def test_an_unknown_failure_has_no_time():
    assert failed_at_s({}) is None
    assert failed_at_s({"transitions": TRANSITIONS, "timeline": []}) is None
    assert failed_at_s({"transitions": TRANSITIONS[:1], "timeline": [CAUSE]}) is None


def test_a_last_value_that_is_no_number_is_accepted():
    class FakeConnection:
        """Returns one job that has ended."""

        def job_page(self, name, page="", query=None):
            return {"is_released": True} if page == "records" else facts

    facts = {
        "attempt": 0,
        "past_attempts": [],
        "hosts": [],
        "status": "Completed",
        "failure_reason": "",
        "ledger": {"wall_s": 1.0, "seconds": {}},
        "metrics": [{"name": "loss", "value": None}, {"name": "rate", "value": 0.5}],
    }
    watch = JobWatch(connection=FakeConnection(), name="job", reader=None, say=print)
    metrics = watch.result(has_checkpoints=False).metrics
    assert math.isnan(metrics["loss"])
    assert metrics["rate"] == 0.5


def test_a_job_that_does_not_end_in_time_is_stopped_and_the_exit_code_says_so(tmp_path, monkeypatch, capsys):
    class FakeConnection:
        """A service whose jobs never end."""

        called: list[str] = []

        def get(self, page, query=None):
            return {"refusals": {}, "largest_disk_bytes": 0}

        def call(self, action, body):
            self.called.append(action)
            return {}

        def job_page(self, name, page="", query=None):
            return {"lines": [], "tokens": {}} if page == "logs" else facts

        def again(self):
            return self

    facts = {"status": "InProgress", "state": "Running", "secondary_status": "Training", "attempt": 1, "hosts": []}
    monkeypatch.setattr(rehearse, "connect", FakeConnection)
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"TrainingJobName": "job", "ResourceConfig": {"InstanceCount": 1}}))
    assert main(["rehearse", str(file), "--kill", "algo-1@10s", "--timeout", "0"]) == 124
    assert "did not end within 0 s" in capsys.readouterr().err
    assert FakeConnection.called == ["CreateTrainingJob", "StopTrainingJob"]
