"""Profiler rules of real jobs: evaluated by a real service, with their statuses and the stored report."""

import json
import time

import pytest
from boto3_clients import Clients, job_request, unique, wait
from running_service import SDK2_PYTHON, start_service

from clary.control.profiling.rules import RULES

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("profiler-jobs")]

LIMIT_S = 120
IMAGE = "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"
FOLDER = "ProfilerReport/profiler-output/"


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of this module."""
    own = start_service(tmp_path_factory.mktemp("profiler"))
    yield own
    own.clary("down")


def rule(kind, name="", **parameters):
    return {
        "RuleConfigurationName": name or kind,
        "RuleEvaluatorImage": IMAGE,
        "RuleParameters": {"rule_to_invoke": kind, **parameters},
    }


def statuses_of(aws, name):
    facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
    return {row["RuleConfigurationName"]: row for row in facts["ProfilerRuleEvaluationStatuses"]}


def wait_for_verdicts(aws, name, *, until=("InProgress",)):
    end_s = time.monotonic() + LIMIT_S
    while any(row["RuleEvaluationStatus"] in until for row in statuses_of(aws, name).values()):
        assert time.monotonic() < end_s, statuses_of(aws, name)
        time.sleep(0.3)
    return statuses_of(aws, name)


@pytest.mark.long(10)
def test_an_estimator_with_profiler_rules_ends_with_statuses_and_a_report_in_the_store(own_service, tmp_path):
    _, facts = own_service.run_client(SDK2_PYTHON, "v2_profiler.py")
    assert facts["statuses"] == {"ProfilerReport": "NoIssuesFound", "LowGPUUtilization": "NoIssuesFound"}
    assert facts["profiling"] == "Enabled"
    assert facts["details"]["LowGPUUtilization"] == "no GPU was measured"
    assert f"profiled/{facts['name']}/rule-output/{FOLDER}profiler-report.html" in facts["details"]["ProfilerReport"]
    assert facts["page"].startswith("<!DOCTYPE html>")
    documents = {f"{FOLDER}profiler-reports/{name}.json" for name in RULES}
    assert set(facts["keys"]) == {f"{FOLDER}profiler-report.html", *documents}
    assert "cpu_threshold:77" in json.loads(facts["bottleneck"])["RuleParameters"]
    # The same report by the command, with charts of the measurements.
    page = tmp_path / "report.html"
    said = own_service.clary("profile-report", facts["name"], "--output", str(page)).stdout
    assert "OverallSystemUsage" in said
    assert "<figure>" in page.read_text()
    described = json.loads(own_service.clary("describe", facts["name"], "--json").stdout)
    assert {item["name"]: item["status"] for item in described["rules"]} == facts["statuses"]


@pytest.mark.long
def test_rules_changed_while_a_job_runs_are_evaluated_and_unknown_ones_are_errors(own_service):
    aws, name = Clients(own_service), unique("changed")
    request = job_request(
        name,
        "sleep 60",
        ProfilerConfig={"S3OutputPath": "s3://clary/prof", "DisableProfiler": True},
        ProfilerRuleConfigurations=[rule("OverallSystemUsage", "usage"), rule("DetailedProfilerProcessing", "deep")],
    )
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",), timeout_s=LIMIT_S)
    end_s = time.monotonic() + LIMIT_S
    while statuses_of(aws, name)["usage"]["RuleEvaluationStatus"] != "Stopped":
        assert time.monotonic() < end_s
        time.sleep(0.3)
    assert statuses_of(aws, name)["deep"]["RuleEvaluationStatus"] == "Error"
    assert "DetailedProfilerProcessing" in own_service.clary("describe", name).stdout
    aws.sagemaker.update_training_job(
        TrainingJobName=name,
        ProfilerConfig={"DisableProfiler": False, "ProfilingIntervalInMilliseconds": 100},
        ProfilerRuleConfigurations=[rule("StepOutlier", "steps")],
    )
    facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
    assert facts["ProfilingStatus"] == "Enabled"
    assert facts["ProfilerConfig"]["S3OutputPath"] == "s3://clary/prof"
    # From now on there are ten rows per second instead of one in five seconds.
    while num_rows(own_service, name) < 30:
        assert time.monotonic() < end_s
        time.sleep(0.3)
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    assert wait(aws, name, timeout_s=LIMIT_S)["TrainingJobStatus"] == "Stopped"
    verdicts = wait_for_verdicts(aws, name)
    found = {key: row["RuleEvaluationStatus"] for key, row in verdicts.items()}
    assert found == {"usage": "NoIssuesFound", "deep": "Error", "steps": "NoIssuesFound"}
    assert "processors" in verdicts["usage"]["StatusDetails"]
    assert verdicts["steps"]["StatusDetails"] == "no steps were measured"


def num_rows(service, name):
    page = json.loads(service.clary("metrics", name, "--json", "--names", "host/phase").stdout)
    return sum(point[4] for one in page["series"] for point in one["points"])


@pytest.mark.long(10)
def test_an_estimator_enables_changes_and_disables_profiling_of_a_running_job(own_service):
    _, facts = own_service.run_client(SDK2_PYTHON, "v2_profiling_changes.py")
    states = facts["states"]
    place = "s3://clary/changed"
    usual = {"DisableProfiler": False, "S3OutputPath": place}
    assert states["created"] == ["Disabled", None]  # as the SDK's own test expects from the real service
    assert states["off twice"] == "Profiler is already disabled."
    assert states["on"] == ["Enabled", {**usual, "ProfilingIntervalInMilliseconds": 500}]
    assert "already enabled" in states["on twice"]
    changed = {**usual, "ProfilingIntervalInMilliseconds": 100}
    assert states["updated"] == ["Enabled", changed]
    detailed = states["framework"][1]["ProfilingParameters"]["DetailedProfilingConfig"]
    assert ('"StartStep": 3' in detailed, '"NumSteps": 2' in detailed) == (True, True)
    assert states["no framework"] == ["Enabled", {**changed, "ProfilingParameters": {}}]
    assert states["off"][0] == "Disabled"
    ((rule_name, status),) = facts["summary"]
    assert (rule_name, status) == ("LowGPUUtilization", "InProgress")
    assert facts["final"] == [["LowGPUUtilization", "Stopped"]]
    assert facts["place"] == f"{place}/{facts['name']}/profiler-output"
    assert facts["frame"]["metric_name"] == ["loss"] * len(facts["frame"]["value"])
    assert sum(facts["frame"]["value"]) > 0
