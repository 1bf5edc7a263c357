"""Records of an invented tuning job and its trials, the same in each run."""

import math
import random
from datetime import UTC, datetime, timedelta

from clary.contract.statuses import TrainingJobStatus
from clary.control.tuning.tuning_job import Trial, TrialOutcome, TuningJob, TuningStatus

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
METRIC = "accuracy"
RANGES = {
    "ContinuousParameterRanges": [
        {"Name": "lr", "MinValue": "0.00001", "MaxValue": "0.1", "ScalingType": "Logarithmic"},
        {"Name": "momentum", "MinValue": "0.5", "MaxValue": "0.999", "ScalingType": "ReverseLogarithmic"},
    ],
    "IntegerParameterRanges": [{"Name": "layers", "MinValue": "1", "MaxValue": "8"}],
    "CategoricalParameterRanges": [{"Name": "optimizer", "Values": ["sgd", "adam", "lamb"]}],
}


def tuning_request(name="tuned", *, ranges=RANGES, config=None, **definition):
    """Return a parsed CreateHyperParameterTuningJob that maximizes the metric."""
    return {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {
            "Strategy": "Bayesian",
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 40, "MaxParallelTrainingJobs": 4},
            "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": METRIC},
            "ParameterRanges": ranges,
            **(config or {}),
        },
        "TrainingJobDefinition": {
            "AlgorithmSpecification": {"TrainingImage": "pytorch:2.8", "TrainingInputMode": "File"},
            "StaticHyperParameters": {"epochs": "5", "api_token": "s3cr3t"},
            **definition,
        },
    }


def tuning_job(name="tuned", *, request=None, **changes):
    """Return the record of a tuning job that has completed."""
    given = {
        "status": TuningStatus.COMPLETED,
        "created_at": BEGIN,
        "modified_at": BEGIN + timedelta(minutes=30),
        "ended_at": BEGIN + timedelta(minutes=30),
        "end_reason": "all training jobs have ended",
        "seed": 7,
    }
    arn = f"arn:aws:sagemaker:us-west-2:123456789012:hyper-parameter-tuning-job/{name}"
    return TuningJob(name=name, arn=arn, request=request or tuning_request(name), **{**given, **changes})


def trial(number, value=0.5, *, tuning_job="tuned", parameters=None, minutes=None, definition="", **changes):
    """Return a trial that ended some minutes after the start; with value None it has reported no objective."""
    ended_at = BEGIN + timedelta(minutes=number if minutes is None else minutes)
    outcome = TrialOutcome(
        status=TrainingJobStatus.COMPLETED,
        value=value,
        curve=() if value is None else (value / 2, value),
        training_started_at=ended_at - timedelta(seconds=40),
        training_ended_at=ended_at,
        runtime_s=40,
    )
    given = {"outcome": outcome, "created_at": BEGIN + timedelta(seconds=number), **changes}
    name = f"{tuning_job}-{number:03d}-0000abcd"
    return Trial(
        tuning_job=tuning_job,
        number=number,
        job_name=name,
        job_arn=f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}",
        definition=definition,
        parameters=parameters or {"lr": "0.01", "momentum": "0.9", "layers": str(1 + number % 8), "optimizer": "adam"},
        **given,
    )


def many_trials(count, *, tuning_job="tuned", seed=1):
    """Return trials whose objective depends mostly on lr and a little on optimizer; some fail or are stopped."""
    dice = random.Random(seed)
    found = []
    for number in range(1, count + 1):
        lr = 10 ** dice.uniform(-5, -1)
        optimizer = dice.choice(("sgd", "adam", "lamb"))
        parameters = {
            "lr": repr(lr),
            "momentum": repr(1 - math.exp(dice.uniform(math.log(0.001), math.log(0.5)))),
            "layers": str(dice.randint(1, 8)),
            "optimizer": optimizer,
        }
        value = 0.97 - 0.12 * (math.log10(lr) + 2.6) ** 2 - 0.04 * (optimizer == "sgd") + dice.gauss(0, 0.01)
        value = max(0.1, value)
        minutes = 0.7 * number + dice.random()
        made = trial(number, value, tuning_job=tuning_job, parameters=parameters, minutes=minutes)
        curve = tuple(value * (1 - math.exp(-epoch / 3)) + dice.gauss(0, 0.01) for epoch in range(1, 11))
        outcome = {**vars(made.outcome), "curve": curve}
        changes = {}
        if number % 11 == 0:
            outcome |= {"status": TrainingJobStatus.FAILED, "value": None, "curve": ()}
            outcome["failure_reason"] = "AlgorithmError: ValueError: loss is nan at step 12; exit code: 1"
        elif number % 7 == 0:
            outcome |= {"status": TrainingJobStatus.STOPPED, "curve": curve[:4]}
            changes["stop_reason"] = (
                "early stopping: the best of its first 4 values of accuracy is 0.31, worse than 0.62, the median of 12 "
                "earlier training jobs up to there"
            )
        found.append(
            trial(number, parameters=parameters, tuning_job=tuning_job, **changes, outcome=TrialOutcome(**outcome))
        )
    return found
