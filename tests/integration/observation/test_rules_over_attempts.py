"""Rules, saved tensors and the profiler's report of a job of two hosts whose capacity is reclaimed in the middle."""

import json
import re
import struct
import time

import pytest
from boto3_clients import log_of, unique
from program_jobs import BUCKET, object_at, put, script_request, start

from clary.train.debugger import create_trial
from clary.train.debugger.files import STEPS, step_file
from clary.train.debugger.reading.s3_files import open_s3_files
from clary.train.debugger.tensor_files import read_index, read_values

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("rules-over-attempts")]

LIMIT_S = 120
SCRIPT = """
import os, signal, sys, time
import torch
from clary.train.debugger.reading.s3_access import open_bucket
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
torch.manual_seed(int(os.environ["CURRENT_HOST"][-1]))
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
place, first = f"/opt/ml/checkpoints/{os.environ['CURRENT_HOST']}.pt", 0
if os.path.exists(place):
    state = torch.load(place)
    first = state["step"]
    model.load_state_dict(state["model"])
for step in range(first, first + 2000):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    if step % 5 == 0:
        print(f"{os.environ['CURRENT_HOST']} from {first} saves {step} loss {loss.item():.6f}", flush=True)
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    torch.save({"step": step + 1, "model": model.state_dict()}, place + ".new")
    os.replace(place + ".new", place)
    if told:
        sys.exit(143)
    if step % 5 == 4 and open_bucket("clary").list(os.environ["GO"]).objects:
        break
"""
IMAGE = "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest"


def rule(name, invoke=None, **parameters):
    return {
        "RuleConfigurationName": name,
        "RuleEvaluatorImage": IMAGE,
        "RuleParameters": {"rule_to_invoke": invoke or name, **parameters},
    }


class Watched:
    """A job whose rules' statuses are polled."""

    def __init__(self, aws, service, name):
        self.aws, self.service, self.name = aws, service, name
        self.seen = {}

    def look(self):
        facts = self.aws.sagemaker.describe_training_job(TrainingJobName=self.name)
        for row in facts["DebugRuleEvaluationStatuses"]:
            said = self.seen.setdefault(row["RuleConfigurationName"], [])
            if said[-1:] != [row["RuleEvaluationStatus"]]:
                said.append(row["RuleEvaluationStatus"])
        return facts

    def wait_for_losses(self, attempt, number):
        """Wait until both hosts have saved this many steps in an attempt."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            facts = self.look()
            assert facts["TrainingJobStatus"] == "InProgress", (facts.get("FailureReason"), log_of(self.aws, self.name))
            losses = self.losses(attempt)
            if all(sum(host == own for host, _, _ in losses) >= number for own in ("algo-1", "algo-2")):
                return
            assert time.monotonic() < end_s, log_of(self.aws, self.name)
            time.sleep(0.5)

    def wait_for_end(self):
        """Wait until the job has ended; return its description."""
        end_s = time.monotonic() + LIMIT_S
        while (facts := self.look())["TrainingJobStatus"] == "InProgress":
            assert time.monotonic() < end_s, log_of(self.aws, self.name)
            time.sleep(0.1)
        return facts

    def wait_for_finding(self, rule_name):
        """Wait until a rule has found an issue."""
        end_s = time.monotonic() + LIMIT_S
        while "IssuesFound" not in self.seen.get(rule_name, ()):
            assert time.monotonic() < end_s, self.seen
            time.sleep(0.2)
            self.look()

    def losses(self, attempt):
        """Return (host, first step after the resume, step -> loss) of one attempt."""
        text = self.service.clary("logs", self.name, "--attempt", str(attempt), check=False).stdout
        found = re.findall(r"(algo-\d) from (\d+) saves (\d+) loss ([\d.]+)", text)
        return {(host, int(first), int(step)): float(loss) for host, first, step, loss in found}


@pytest.mark.long
def test_a_reclaimed_job_has_its_last_attempts_statuses_and_each_step_once(service, aws, monkeypatch):
    name = unique("rules-attempts")
    request = script_request(
        aws,
        name,
        {"train.py": SCRIPT},
        instance_count=2,
        Environment={"GO": f"rules/{name}/go", "GATE": f"s3://{BUCKET}/rules/{name}/go"},  # lets the job's key read it
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 900},
        CheckpointConfig={"S3Uri": f"s3://{BUCKET}/checkpoints/{name}"},
        DebugHookConfig={
            "S3OutputPath": f"s3://{BUCKET}/tensors/",
            "HookParameters": {"save_interval": "5", "include_workers": "all"},
            "CollectionConfigurations": [{"CollectionName": "gradients"}],
        },
        DebugRuleConfigurations=[
            rule("VanishingGradient"),
            rule("always", "AllZero", threshold="0", tensor_regex="gradient/.*weight"),
        ],
        ProfilerRuleConfigurations=[rule("ProfilerReport")],
    )
    for variable, value in service.environment.items():
        if variable.startswith("AWS_"):
            monkeypatch.setenv(variable, value)
    start(aws, request)
    uri = f"s3://{BUCKET}/tensors/{name}/debug-output/"
    job = Watched(aws, service, name)

    job.wait_for_losses(1, 3)
    job.wait_for_finding("always")
    service.clary("spot", "reclaim", name)
    job.wait_for_losses(2, 3)
    put(aws, f"rules/{name}/go", "enough was seen")
    facts = job.wait_for_end()
    assert facts["TrainingJobStatus"] == "Completed", log_of(aws, name)
    assert [past["kind"] for past in described(service, name)["past_attempts"]] == ["reclaimed"]

    # Statuses of ended attempts are never shown as the job's status, except that a found issue stays.
    assert job.seen["VanishingGradient"] == ["InProgress", "NoIssuesFound"]
    assert job.seen["always"] == ["InProgress", "IssuesFound"]
    details = {row["RuleConfigurationName"]: row["StatusDetails"] for row in facts["DebugRuleEvaluationStatuses"]}
    assert re.fullmatch(r"(\d+) of \1 saved steps of 2 workers were looked at", details["VanishingGradient"])

    # Each step occurs once: steps before a host's checkpoint are from the first attempt, if they were stored in time;
    # all later steps are from the second. The values are those that the programs printed.
    trial = create_trial(uri)
    firsts = {host: first for host, first, _ in job.losses(2)}
    assert sorted(firsts) == ["algo-1", "algo-2"]
    assert min(firsts.values()) > 0, "both hosts went on from their checkpoints"
    earlier = {(host, step): loss for (host, _, step), loss in job.losses(1).items() if step < firsts[host]}
    losses = {(host, step): loss for (host, _, step), loss in job.losses(2).items()}
    assert trial.workers() == ["worker_0", "worker_1"]
    tensor, files = trial.tensor("MSELoss_output_0"), open_s3_files(uri)
    saved = {
        (f"algo-{int(worker[-1]) + 1}", step): loss_in(files, f"{STEPS}/{step_file(step, worker)}")
        for step in tensor.steps()
        for worker in tensor.workers(step)
    }
    assert saved.keys() >= losses.keys() | {("algo-1", 0), ("algo-2", 0)}
    assert saved == pytest.approx({key: loss for key, loss in {**earlier, **losses}.items() if key in saved}, abs=1e-5)
    assert trial.has_ended
    keys = keys_below(aws, f"tensors/{name}/debug-output/")
    ends = sorted(key for key in keys if ".try-" in key)
    assert ends == ["ended/algo-1.try-2.of-2", "ended/algo-2.try-2.of-2"]
    assert f"rule VanishingGradient: NoIssuesFound: {details['VanishingGradient']}" in "\n".join(log_of(aws, name))

    # The profiler evaluates each attempt separately.
    report = profiler_report(aws, name)
    assert "<b>2</b><span>attempts</span>" in report.page
    assert re.match(r"attempt \d: (the first step came after|there was no step for) \d\.\d minutes", report.first_step)


class Report:
    """A profiler report in the store."""

    def __init__(self, aws, uri):
        self.page = object_at(aws, uri).decode()
        place = uri.replace("profiler-report.html", "profiler-reports/MaxInitializationTime.json")
        self.first_step = json.loads(object_at(aws, place))["Description"]


def profiler_report(aws, name):
    """Wait for the status of a job's ProfilerReport; return the stored report."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        facts = aws.sagemaker.describe_training_job(TrainingJobName=name)
        (row,) = facts["ProfilerRuleEvaluationStatuses"]
        if row["RuleEvaluationStatus"] != "InProgress":
            break
        assert time.monotonic() < end_s, row
        time.sleep(0.2)
    assert row["RuleEvaluationStatus"] in ("NoIssuesFound", "IssuesFound"), row  # steps vary on a busy machine
    return Report(aws, re.match(r"report: (s3://\S+\.html)", row["StatusDetails"])[1])


def loss_in(files, name):
    """Return the loss in a file of tensors without a trial, which would need numpy."""
    index = read_index(files, name)
    (loss,) = struct.unpack("<f", read_values(files, name, index, index.tensors["MSELoss_output_0"]))
    return loss


def described(service, name):
    return json.loads(service.clary("describe", name, "--json").stdout)


def keys_below(aws, prefix):
    pages = aws.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", ())]
