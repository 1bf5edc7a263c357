"""Saved tensors, and rules that evaluate them, in real jobs whose scripts contain no debugger."""

import json
import re

import pytest
from boto3_clients import log_of, unique, wait
from program_jobs import BUCKET, put, run, script_request, start
from running_service import SDK2_PYTHON

from clary.train.debugger.errors import NoMoreData
from clary.train.debugger.reading.trial_places import create_trial

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("debugger-jobs")]

LIMIT_S = 150
SCRIPT = """
import os, subprocess, sys, time
import torch
if os.environ.get("GO"):
    from clary.train.debugger.reading.s3_access import open_bucket
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=float(os.environ["RATE"]))
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
for step in range(int(os.environ["STEPS"])):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    time.sleep(float(os.environ["PAUSE"]))
    if os.environ.get("GO") and step % 5 == 4 and open_bucket("clary").list(os.environ["GO"]).objects:
        break
if os.environ.get("SECOND"):
    subprocess.run([sys.executable, __file__], env={**os.environ, "SECOND": "", "STEPS": "3"}, check=True)
print("steps done", flush=True)
"""
RULES_FILE = """
import os
from smdebug.rules import Rule

class TooSmall(Rule):
    def __init__(self, base_trial, limit="1"):
        super().__init__(base_trial)
        self.limit = float(limit)

    def invoke_at_step(self, step):
        return self.base_trial.tensor("MSELoss_output_0").value(step).mean() < self.limit

class Crashing(Rule):
    def invoke_at_step(self, step):
        print("these are my last words", flush=True)
        os._exit(7)

class Raising(Rule):
    def invoke_at_step(self, step):
        raise KeyError("no such thing")
"""
BOTH_FILE = """
from smdebug.rules import Rule
from clary.train.debugger import Finding

class Both(Rule):
    def invoke_at_step(self, step):
        tensor = self.base_trial.tensor("MSELoss_output_0")
        losses = {name: float(tensor.value(step, worker=name)) for name in tensor.workers(step)}
        if len(losses) == 2 and losses["worker_0"] != losses["worker_1"]:
            said = ", ".join(f"{name} has a loss of {value}" for name, value in losses.items())
            return Finding(text=f"step {step}: {said}", step=step)
"""
IMAGE = "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"
STOP = r"[{\"training_job_prefix\": \"%s\", \"name\": \"stoptraining\"}, {\"endpoint\": \"a@b\", \"name\": \"email\"}]"


def rule(name, invoke=None, **parameters):
    return {
        "RuleConfigurationName": name,
        "RuleEvaluatorImage": IMAGE,
        "RuleParameters": {"rule_to_invoke": invoke or name, **parameters},
    }


def gate(name):
    """Return variables of a job that waits for an object; the full S3 address lets the job's key read it."""
    return {"GO": f"rules/{name}/go", "GATE": f"s3://{BUCKET}/rules/{name}/go"}


def hook():
    return {
        "S3OutputPath": f"s3://{BUCKET}/tensors/",
        "HookParameters": {"save_interval": "5"},
        "CollectionConfigurations": [
            {"CollectionName": "gradients"},
            {"CollectionName": "weights", "CollectionParameters": {"save_interval": "10"}},
        ],
    }


def debugged(aws, name, rules, *, rate="0.05", steps="60", pause="0", **environment):
    return script_request(
        aws,
        name,
        {"train.py": SCRIPT},
        Environment={"RATE": rate, "STEPS": steps, "PAUSE": pause, **environment},
        DebugHookConfig=hook(),
        DebugRuleConfigurations=rules,
    )


def statuses(facts):
    rows = facts["DebugRuleEvaluationStatuses"]
    return {row["RuleConfigurationName"]: (row["RuleEvaluationStatus"], row.get("StatusDetails", "")) for row in rows}


def keys_below(aws, prefix):
    pages = aws.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", ())]


@pytest.mark.long
def test_each_rule_evaluates_a_good_training_separately_and_none_fails_it(service, aws):
    name = unique("good-run")
    source = put(aws, f"rules/{name}/my_rules.py", RULES_FILE)
    rules = [
        rule("VanishingGradient"),
        rule("LossNotDecreasing", num_steps="10"),
        rule("ExplodingTensor"),
        rule("small loss", "TooSmall", source_s3_uri=source, limit="100"),
        rule("crashing", "Crashing", source_s3_uri=source),
        rule("raising", "Raising", source_s3_uri=source),
        rule("absent", "Absent", source_s3_uri=source),
        rule("NoSuchRule"),
        rule("no file", "TooSmall", source_s3_uri=f"s3://{BUCKET}/rules/{name}/other.py"),
    ]
    facts = run(aws, debugged(aws, name, rules, SECOND="yes"), timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", log_of(aws, name)
    found = statuses(facts)
    for good in ("VanishingGradient", "LossNotDecreasing", "ExplodingTensor"):
        assert found[good] == ("NoIssuesFound", "12 of 12 saved steps were looked at"), found
    assert found["small loss"] == ("IssuesFound", "rule TooSmall has fired at step 0")
    assert found["crashing"][0] == "Error"
    assert "exit code 7: these are my last words" in found["crashing"][1]
    assert found["raising"] == ("Error", "KeyError: 'no such thing'")
    assert "my_rules.py has no Absent; it has TooSmall, Crashing, Raising" in found["absent"][1]
    assert "'NoSuchRule' does not exist" in found["NoSuchRule"][1]
    assert "could not be fetched" in found["no file"][1]
    arns = {row["RuleEvaluationJobArn"] for row in facts["DebugRuleEvaluationStatuses"]}
    assert len(arns) == len(rules)

    assert sum("this process saves nothing, training goes on" in line for line in log_of(aws, name)) == 1

    keys = keys_below(aws, f"tensors/{name}/debug-output/")
    assert sum(key.startswith("steps/") for key in keys) == 12
    assert {"collections/worker_0.json", "ended/worker_0.json", "END_OF_JOB.ts"} < set(keys)

    text = service.clary("describe", name).stdout
    assert "VanishingGradient" in text
    assert "NoIssuesFound" in text
    page = json.loads(service.clary("describe", name, "--json").stdout)
    assert [item["status"] for item in page["rules"]][:3] == ["NoIssuesFound"] * 3


def test_a_rule_that_fires_stops_its_job_with_the_reason(service, aws):
    name = unique("exploding")
    rules = [rule("ExplodingTensor", action_json=STOP % name), rule("VanishingGradient")]
    request = debugged(aws, name, rules, rate="1e6", steps="10000", pause="0.02")
    facts = run(aws, request, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Stopped", log_of(aws, name)
    assert facts["SecondaryStatus"] == "Stopped"
    status, details = statuses(facts)["ExplodingTensor"]
    assert status == "IssuesFound"
    assert details.startswith("step ")
    messages = [row["StatusMessage"] for row in facts["SecondaryStatusTransitions"]]
    why = f"rule ExplodingTensor found an issue and its action is to stop the training: {details}"
    assert f"Stopping the training job: {why}" in messages
    assert messages[-1] == f"Training job stopped: {why}"
    assert not any("steps done" in line for line in log_of(aws, name))
    assert f"rule ExplodingTensor found an issue: {details}" in service.clary("describe", name, "--why").stdout
    assert "email cannot be sent from here" in service.clary("describe", name).stdout


@pytest.mark.long
def test_sdk_v2_gets_the_summary_of_its_rules_and_smdebug_the_losses(client_runs):
    client_runs.start(SDK2_PYTHON, "v2_debugger.py")
    output, facts = client_runs.result("v2_debugger.py")
    summary = {row["RuleConfigurationName"]: row["RuleEvaluationStatus"] for row in facts["summary"]}
    assert summary == {
        "VanishingGradient": "NoIssuesFound",
        "LossNotDecreasing": "NoIssuesFound",
        "MyRule": "IssuesFound",
    }
    assert facts["keys"], "tensors lie where estimator.latest_job_debugger_artifacts_path says"
    assert facts["status"] == "Stopped", "the action of the custom rule"
    printed = dict(re.findall(r"loss of step (\d+): ([\d.e-]+)", output))
    assert facts["losses"]
    assert "0" in printed
    assert {step: float(printed[step]) for step in facts["losses"] if step in printed} == {
        step: value for step, value in facts["losses"].items() if step in printed
    }
    assert (facts["has_ended"], facts["workers"]) == (True, ["worker_0"])


@pytest.mark.long
def test_rules_see_the_workers_of_all_hosts_and_a_client_reads_them_meanwhile(service, aws, monkeypatch):
    name = unique("two-hosts")
    source = put(aws, f"rules/{name}/both.py", BOTH_FILE)
    script = SCRIPT.replace("manual_seed(0)", "manual_seed(int(os.environ['CURRENT_HOST'][-1]))")
    config = hook()
    config["HookParameters"]["include_workers"] = "all"
    request = script_request(
        aws,
        name,
        {"train.py": script},
        instance_count=2,
        Environment={"RATE": "0.05", "STEPS": "2000", "PAUSE": "0.15", **gate(name)},
        DebugHookConfig=config,
        DebugRuleConfigurations=[rule("both", "Both", source_s3_uri=source), rule("VanishingGradient")],
    )
    for variable, value in service.environment.items():
        if variable.startswith("AWS_"):
            monkeypatch.setenv(variable, value)
    start(aws, request)
    trial = create_trial(f"s3://{BUCKET}/tensors/{name}/debug-output/")
    trial.wait_for_steps([0, 5], limit_s=LIMIT_S)
    assert not trial.has_ended
    put(aws, f"rules/{name}/go", "enough was seen")
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", log_of(aws, name)
    found = statuses(facts)
    assert found["both"][0] == "IssuesFound"
    assert found["both"][1].startswith("step 0: worker_0 has a loss of ")
    assert found["VanishingGradient"][0] == "NoIssuesFound"
    assert re.fullmatch(r"(\d+) of \1 saved steps of 2 workers were looked at", found["VanishingGradient"][1])

    with pytest.raises(NoMoreData):
        trial.wait_for_steps([10**6], limit_s=60)
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.steps() == list(range(0, len(trial.steps()) * 5, 5))
    loss = trial.tensor("MSELoss_output_0")
    assert all(loss.workers(step) == ["worker_0", "worker_1"] for step in (0, 5))
    keys = set(keys_below(aws, f"tensors/{name}/debug-output/"))
    assert {"ended/algo-1.try-1.of-2", "ended/algo-2.try-1.of-2"} < keys
    assert "END_OF_JOB.ts" not in keys
