"""The time at which the job of a rehearsal failed, taken from its page."""

import math

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
