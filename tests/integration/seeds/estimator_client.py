"""Client of SDK v2 that runs listings one after the other, waits for all their jobs, and writes the outcomes.

python estimator_client.py LISTINGS.json TOLD.json
"""

import ast
import json
import os
import shutil
import sys
import tempfile
import time
import traceback

import sagemaker
import sagemaker.debugger
import sagemaker.estimator
import sagemaker.huggingface
import sagemaker.pytorch

ROLE = "arn:aws:iam::000000000000:role/ClaryExecutionRole"
WAIT_S = 300
ENDS = ("Completed", "Failed", "Stopped")
GROUP = "/aws/sagemaker/TrainingJobs"
REST = {
    "entry_point": "train.py",
    "role": ROLE,
    "framework_version": "2.2.0",
    "py_version": "py310",
    "instance_count": 1,
    "instance_type": "ml.p4d.24xlarge",
}
NAMES = {
    "PyTorch": sagemaker.pytorch.PyTorch,
    "HuggingFace": sagemaker.huggingface.HuggingFace,
    "TrainingCompilerConfig": sagemaker.pytorch.TrainingCompilerConfig,
}


def run(listing, name):
    """Execute a listing in its own folder; return its estimator, whose job has started."""
    text = listing["text"]
    for printed, replacement in listing["changes"].items():
        assert printed in text, printed
        text = text.replace(printed, replacement)
    text = text.replace("...", "**the_rest")
    rest = {**REST, "base_job_name": name.replace("_", "-"), **listing["rest"]}
    said = {one.arg for call in ast.walk(ast.parse(text)) if is_of_the_reader(call) for one in call.keywords}
    rest = {argument: value for argument, value in rest.items() if argument not in said}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if listing["beside"]:
            shutil.copytree(listing["beside"], folder, dirs_exist_ok=True)
            rest["source_dir"] = "."
        with open("train.py", "w") as file:
            file.write(listing["program"])
        scope = {**NAMES, "the_rest": rest}
        exec(compile(text, name, "exec"), scope)
        estimator = scope.get("estimator") or NAMES["PyTorch"](**rest, distribution=scope["distribution"])
        if estimator.latest_training_job is None:
            estimator.fit(listing["channels"] or None, wait=False)
        os.chdir("/")
    return estimator


def is_of_the_reader(node):
    """Return whether a node is a call with `**the_rest`, the arguments left to the reader."""
    return isinstance(node, ast.Call) and any(one.arg is None for one in node.keywords)


def wait_for(session, name):
    """Wait until a job has ended; return its description."""
    deadline = time.monotonic() + WAIT_S
    while not has_ended(job := session.describe_training_job(name)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} did not end in {WAIT_S} s: {job['SecondaryStatusTransitions'][-1]}")
        time.sleep(0.5)
    return job


def has_ended(job):
    """Return whether a job and its rules have ended."""
    rules = job.get("ProfilerRuleEvaluationStatuses", [])
    return job["TrainingJobStatus"] in ENDS and all(rule["RuleEvaluationStatus"] != "InProgress" for rule in rules)


def described(session, name):
    """Return the status of an ended job, its description from the service, and its log."""
    job = wait_for(session, name)
    logs = session.boto_session.client("logs")
    lines = []
    for stream in logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]:
        page = logs.get_log_events(logGroupName=GROUP, logStreamName=stream["logStreamName"], startFromHead=True)
        lines += [event["message"] for event in page["events"]]
    return {
        "name": name,
        "status": job["TrainingJobStatus"],
        "reason": job.get("FailureReason", ""),
        "hyperparameters": job.get("HyperParameters", {}),
        "job": json.loads(json.dumps(job, default=str)),
        "log": lines,
    }


def main():
    with open(sys.argv[1]) as file:
        listings = json.load(file)
    session = sagemaker.Session()
    told, jobs = {}, {}
    for name, listing in listings.items():
        if listing["after"] in jobs:
            wait_for(session, jobs[listing["after"]])
        try:
            jobs[name] = run(listing, name).latest_training_job.name
        except Exception as error:  # noqa: BLE001 - whatever the SDK refuses a listing with is an outcome
            traceback.print_exc()
            told[name] = {"error": f"{type(error).__name__}: {error}"}
    for name, job in jobs.items():
        told[name] = described(session, job)
    with open(sys.argv[2], "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
