"""Profiler rules over a job's life: evaluated while the job runs, finally judged at its end, reported once."""

import json
import time

import pytest

from clary.base.errors import ObjectStoreError
from clary.contract.agent_protocol import HostPhase
from clary.contract.metric_samples import SampleBatch
from clary.control.profiling.rules import RULES
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.profiler_rules import DISABLED, MOST_TRIES, NEVER_RAN, NOT_MEASURED, ProfilerRules
from clary.testing.control_plane import ControlPlane
from clary.testing.fake_clock import START

START_MS = int(START.timestamp() * 1000)
IMAGE = "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"
RUNNING = float(list(HostPhase).index(HostPhase.RUNNING))
IDLE_GPU = {"host/phase": RUNNING, "host/cpu_percent": 100.0, "gpu-0/utilisation_percent": 5.0}


def rule(kind, name="", **parameters):
    return {
        "RuleConfigurationName": name or kind,
        "RuleEvaluatorImage": IMAGE,
        "RuleParameters": {"rule_to_invoke": kind, **parameters},
    }


class FakeAnswer:
    def __init__(self, status):
        self.status = status


class FakeObjectStore:
    """Stores objects, or refuses them."""

    def __init__(self):
        self.objects = {}
        self.status = 200
        self.is_away = False

    async def request(self, method, bucket, *, key="", body=b""):
        if self.is_away:
            raise ObjectStoreError("no answer came")
        self.objects[f"s3://{bucket}/{key}"] = body
        return FakeAnswer(self.status)


class RulesPlane:
    """A service with one job, and the keeper of the job's rules."""

    def __init__(self, plane):
        self.plane = plane
        self.store = FakeObjectStore()
        self.rules = ProfilerRules(plane.hub, plane.store, plane.store.series, self.store, clock=plane.clock)
        self.samples = SampleGateway(plane.store.series, plane.clock)

    async def begin(self, *rules, **members):
        """Create a job with rules and advance it until its program runs."""
        await self.plane.create(ProfilerRuleConfigurations=list(rules), **members)
        await self.plane.passes()
        self.agent = self.plane.agent()
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            await self.agent.report(phase)

    async def measure(self, num_rows, columns=IDLE_GPU, *, first_row=0):
        """Store rows at intervals of half a second, and advance the clock by their time."""
        rows = range(first_row, first_row + num_rows)
        batch = SampleBatch(
            first_row=first_row,
            at_ms=tuple(START_MS + 500 * row for row in rows),
            names=tuple(columns),
            columns=tuple((value,) * num_rows for value in columns.values()),
        )
        self.plane.clock.advance(num_rows / 2)
        await self.samples.append(self.agent.authorize(), "algo-1", batch)

    async def end(self):
        """End the program and release the hosts."""
        for phase in (HostPhase.EXITED, HostPhase.DONE):
            exits = (self.plane.exit_of(0),)
            await self.agent.report(phase, exits=exits, uploaded=self.agent.model_uris(phase))
        self.plane.engine.end_all_agents("job")
        await self.plane.passes()

    async def statuses(self):
        rows = (await self.plane.describe())["ProfilerRuleEvaluationStatuses"]
        return {
            row["RuleConfigurationName"]: (row["RuleEvaluationStatus"], row.get("StatusDetails", "")) for row in rows
        }


@pytest.fixture
async def kept(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield RulesPlane(plane)


LOW = {"window": "20", "patience": "20"}


async def test_a_rule_is_in_progress_until_the_job_has_ended_and_then_has_its_verdict(kept):
    await kept.begin(rule("OverallSystemUsage", "usage"), rule("LowGPUUtilization", "low"))
    await kept.measure(60)
    await kept.rules.make_pass()
    assert {status for status, _ in (await kept.statuses()).values()} == {"InProgress"}
    await kept.end()
    assert {status for status, _ in (await kept.statuses()).values()} == {"InProgress"}, "until its rows are judged"
    await kept.rules.make_pass()
    statuses = await kept.statuses()
    assert statuses["usage"][0] == "NoIssuesFound"
    assert "processors" in statuses["usage"][1]
    assert statuses["low"] == (
        "NoIssuesFound",
        "60 datapoints so far; the rule judges what comes after the first 1500 (patience)",
    )


async def test_a_finding_while_the_job_runs_is_reported_then_and_kept(kept):
    await kept.begin(rule("LowGPUUtilization", "low", **LOW))
    await kept.rules.make_pass()
    await kept.measure(160)  # 80 s: the rule is evaluated every minute
    await kept.rules.make_pass()
    status, details = (await kept.statuses())["low"]
    assert status == "IssuesFound"
    assert "algo-1 gpu-0" in details
    await kept.measure(1000, IDLE_GPU | {"gpu-0/utilisation_percent": 99.0}, first_row=160)
    await kept.end()
    await kept.rules.make_pass()
    assert (await kept.statuses())["low"] == (status, details)


async def test_an_evaluation_is_not_due_before_the_interval_has_passed(kept):
    await kept.begin(rule("LowGPUUtilization", "low", scan_interval_us="120000000", **LOW))
    await kept.rules.make_pass()
    await kept.measure(160)
    await kept.rules.make_pass()
    assert (await kept.statuses())["low"][0] == "InProgress"
    await kept.measure(100, first_row=160)
    await kept.rules.make_pass()
    assert (await kept.statuses())["low"][0] == "IssuesFound"


async def test_a_report_is_stored_with_a_document_of_each_rule_before_its_status_changes(kept):
    await kept.begin(rule("ProfilerReport", "Report-1", **{f"LowGPUUtilization_{key}": LOW[key] for key in LOW}))
    await kept.measure(100)
    await kept.end()
    await kept.rules.make_pass()
    folder = "s3://bucket/out/job/rule-output/Report-1/profiler-output/"
    documents = {f"{folder}profiler-reports/{name}.json" for name in RULES}
    assert set(kept.store.objects) == {f"{folder}profiler-report.html", *documents}
    page = kept.store.objects[f"{folder}profiler-report.html"].decode()
    assert "LowGPUUtilization" in page
    low = json.loads(kept.store.objects[f"{folder}profiler-reports/LowGPUUtilization.json"])
    assert low["RuleTriggered"] == 1
    assert low["Datapoints"] > 0
    assert low["RuleParameters"].splitlines()[-2:] == ["window:20", "patience:20"]
    status, details = (await kept.statuses())["Report-1"]
    assert status == "IssuesFound"
    assert details.startswith(f"report: {folder}profiler-report.html. LowGPUUtilization: algo-1 gpu-0")


async def test_a_rule_s_own_output_path_wins_over_the_job_s(kept):
    await kept.begin(rule("ProfilerReport") | {"S3OutputPath": "s3://other/place"})
    await kept.measure(30)
    await kept.end()
    await kept.rules.make_pass()
    assert "s3://other/place/job/rule-output/ProfilerReport/profiler-output/profiler-report.html" in kept.store.objects


@pytest.mark.parametrize("trouble", ["away", "refuses"])
async def test_a_store_that_refuses_the_report_is_named_and_the_verdict_is_kept(kept, trouble):
    kept.store.is_away, kept.store.status = trouble == "away", 403
    await kept.begin(rule("ProfilerReport"))
    await kept.measure(30)
    await kept.end()
    await kept.rules.make_pass()
    status, details = (await kept.statuses())["ProfilerReport"]
    assert status == "NoIssuesFound"
    assert details.startswith("the report could not be stored:")


async def test_a_rule_that_does_not_exist_is_an_error_and_the_other_rules_are_judged(kept):
    await kept.begin(rule("DetailedProfilerProcessing", "deep"), rule("Dataloader", "loader"))
    await kept.rules.make_pass()
    assert (await kept.statuses())["deep"][0] == "Error"
    await kept.measure(30)
    await kept.end()
    await kept.rules.make_pass()
    statuses = await kept.statuses()
    assert statuses["deep"][0] == "Error"
    assert statuses["loader"][0] == "NoIssuesFound"
    job = await kept.plane.job()
    assert any("DetailedProfilerProcessing" in words for words in job.warnings)


async def test_rules_stop_while_profiling_is_off_and_continue_when_it_is_on_again(kept):
    await kept.begin(rule("LowGPUUtilization", "low", **LOW), ProfilerConfig={"DisableProfiler": True})
    await kept.rules.make_pass()
    assert (await kept.statuses())["low"] == ("Stopped", DISABLED)
    update = {"TrainingJobName": "job", "ProfilerConfig": {"DisableProfiler": False}}
    await kept.plane.call("sagemaker", "UpdateTrainingJob", **update)
    await kept.rules.make_pass()
    assert (await kept.statuses())["low"][0] == "InProgress"
    await kept.measure(160)
    await kept.rules.make_pass()
    assert (await kept.statuses())["low"][0] == "IssuesFound"


async def test_a_job_that_is_stopped_before_its_program_ran_has_no_report(kept):
    await kept.plane.create(ProfilerRuleConfigurations=[rule("ProfilerReport")])
    await kept.plane.stop()
    await kept.rules.make_pass()
    assert (await kept.statuses())["ProfilerReport"] == ("Stopped", NEVER_RAN)
    assert not kept.store.objects


async def test_a_program_that_ran_without_measurements_is_reported_as_not_measured(kept):
    await kept.begin(rule("ProfilerReport"))
    await kept.end()
    await kept.rules.make_pass()
    assert (await kept.statuses())["ProfilerReport"] == ("Stopped", NOT_MEASURED)


async def test_an_update_adds_rules_and_replaces_rules_of_the_same_name(kept):
    await kept.begin(rule("Dataloader", "one"), rule("StepOutlier", "two"))
    wanted = [rule("LowGPUUtilization", "three"), rule("IOBottleneck", "two")]
    await kept.plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", ProfilerRuleConfigurations=wanted)
    stored = (await kept.plane.job()).request["ProfilerRuleConfigurations"]
    assert [(one["RuleConfigurationName"], one["RuleParameters"]["rule_to_invoke"]) for one in stored] == [
        ("one", "Dataloader"),
        ("two", "IOBottleneck"),
        ("three", "LowGPUUtilization"),
    ]
    assert set(await kept.statuses()) == {"one", "two", "three"}


async def test_hosts_get_a_new_interval_with_their_next_report(kept):
    await kept.begin(ProfilerConfig={"ProfilingIntervalInMilliseconds": 1000})
    assert (await kept.agent.report()).metrics_interval_s == 1.0
    update = {"TrainingJobName": "job", "ProfilerConfig": {"ProfilingIntervalInMilliseconds": 100}}
    await kept.plane.call("sagemaker", "UpdateTrainingJob", **update)
    assert (await kept.agent.report()).metrics_interval_s == 0.1
    await kept.plane.call(
        "sagemaker", "UpdateTrainingJob", TrainingJobName="job", ProfilerConfig={"DisableProfiler": True}
    )
    assert (await kept.agent.report()).metrics_interval_s == 5.0


async def test_a_restarted_service_judges_jobs_that_ended_before(kept, tmp_path):
    await kept.begin(rule("OverallSystemUsage", "usage"))
    await kept.measure(60)
    await kept.end()
    later = ProfilerRules(
        kept.plane.hub, kept.plane.store, kept.plane.store.series, FakeObjectStore(), clock=kept.plane.clock
    )
    await later.take_up()
    await later.make_pass()
    assert (await kept.statuses())["usage"][0] == "NoIssuesFound"


async def test_a_job_that_was_deleted_is_forgotten(kept):
    await kept.begin(rule("OverallSystemUsage", "usage"))
    await kept.measure(10)
    await kept.end()
    await kept.plane.delete()
    await kept.rules.make_pass()
    await kept.rules.make_pass()
    assert not kept.store.objects


async def test_an_unanswered_query_is_retried_and_given_up_after_some_tries(kept, monkeypatch):
    await kept.begin(rule("OverallSystemUsage", "usage"))
    await kept.measure(60)
    await kept.end()
    asked = []

    async def refuse(query):
        asked.append(query)
        raise OSError("away")

    monkeypatch.setattr(kept.rules, "_series", type("FakeAwaySeries", (), {"query": staticmethod(refuse)}))
    for _ in range(MOST_TRIES + 3):
        await kept.rules.make_pass()
    assert len(asked) == MOST_TRIES


async def test_a_pass_over_many_jobs_without_rules_is_fast(kept):
    for number in range(50):
        await kept.plane.create(f"plain-{number}")
    began_s = time.monotonic()
    await kept.rules.make_pass()
    assert time.monotonic() - began_s < 5
    assert not kept.store.objects


async def test_rules_of_jobs_in_the_queue_are_not_evaluated(kept, monkeypatch):
    await kept.plane.create(ProfilerRuleConfigurations=[rule("NoSuchRule", "odd")])
    waiting = kept.plane.hub.live_job("job")
    assert waiting is not None
    assert not waiting.hosts
    await kept.rules.make_pass()
    assert kept.plane.hub.live_job("job") is waiting
    await kept.plane.passes()
    await kept.rules.make_pass()
    assert (await kept.statuses())["odd"][0] == "Error"


async def test_a_failing_listener_does_not_fail_the_change(kept, caplog):
    heard = []

    def failing(before, after):
        heard.append((before, after))
        raise RuntimeError("not today")

    kept.plane.hub.listen(failing)
    await kept.plane.create()
    created = kept.plane.hub.live_job("job")
    assert heard == [(None, created)]
    await kept.plane.passes()
    before, after = heard[1]
    assert before == created
    assert after.hosts
    assert "a change was not taken note of" in caplog.text
