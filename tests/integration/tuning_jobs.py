"""Tuning jobs for tests: their requests, and the wait until they complete."""

import time

from boto3_clients import job_request
from program_jobs import archive_of, put


def tuning_request(aws, name, program, *, strategy, ranges, most, parallel, static=None, config=None, **members):
    """Store a program as a code archive; return a request that minimizes `loss=...` in its output.

    Args:
        aws: clients of the service.
        name: name of the tuning job.
        program: text of the trials' train.py.
        strategy: the search strategy.
        ranges: ParameterRanges.
        most: maximum number of trials.
        parallel: maximum number of trials at a time.
        static: hyperparameters of every trial.
        config: further members of the tuning job's configuration.
        members: further members of the training job definition.
    """
    job = job_request("x", "")
    specification = {key: value for key, value in job["AlgorithmSpecification"].items() if "Container" not in key}
    code = put(aws, f"code/{name}.tar.gz", archive_of({"train.py": program}))
    return {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {
            "Strategy": strategy,
            "ResourceLimits": {"MaxNumberOfTrainingJobs": most, "MaxParallelTrainingJobs": parallel},
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ParameterRanges": ranges,
            **(config or {}),
        },
        "TrainingJobDefinition": {
            **{member: job[member] for member in ("RoleArn", "OutputDataConfig", "StoppingCondition")},
            "AlgorithmSpecification": specification,
            "HyperParameterTuningResourceConfig": job["ResourceConfig"],
            "StaticHyperParameters": {
                "sagemaker_program": "train.py",
                "sagemaker_submit_directory": code,
                **(static or {}),
            },
            **members,
        },
    }


def categories(**axes):
    """Return ParameterRanges with `count` numbered categories for each name."""
    ranges = [{"Name": name, "Values": [str(number) for number in range(count)]} for name, count in axes.items()]
    return {"CategoricalParameterRanges": ranges}


def completed(aws, name, *, timeout_s):
    """Wait until a tuning job is Completed; return its description and its trials."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        facts = aws.sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)
        if facts["HyperParameterTuningJobStatus"] != "InProgress":
            break
        assert time.monotonic() < deadline_s, facts
        time.sleep(0.3)
    assert facts["HyperParameterTuningJobStatus"] == "Completed", facts.get("FailureReason")
    pages = aws.sagemaker.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job").paginate(
        HyperParameterTuningJobName=name, PaginationConfig={"PageSize": 5}
    )
    return facts, [row for page in pages for row in page["TrainingJobSummaries"]]
