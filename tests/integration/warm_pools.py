"""Functions that wait for the warm pools of a service, and end them."""

from __future__ import annotations

import time

LIMIT_S = 60


def pool_of(aws, name):
    return aws.sagemaker.describe_training_job(TrainingJobName=name).get("WarmPoolStatus", {})


def wait_for_pool(aws, name, status):
    deadline_s = time.monotonic() + LIMIT_S
    while (found := pool_of(aws, name)).get("Status") != status:
        assert time.monotonic() < deadline_s, f"the pool of {name} is {found}, expected {status}"
        time.sleep(0.1)
    return found


def end_pool(aws, name):
    aws.sagemaker.update_training_job(TrainingJobName=name, ResourceConfig={"KeepAlivePeriodInSeconds": 0})
    wait_for_pool(aws, name, "Terminated")
