"""Jobs of several ranks for the tests of failures: a job in script mode with a unique name."""

from boto3_clients import unique
from program_jobs import script_request, start

from clary.testing.gangs import HOSTS, INSTANCE_TYPE, PROGRAM, SCRIPT, Gang


def start_gang(service, aws, label, *, script=SCRIPT, instance_type=INSTANCE_TYPE):
    """Create a job of two hosts with two ranks each; return the job once all its ranks run."""
    request = script_request(
        aws,
        unique(label),
        {PROGRAM: script},
        program=PROGRAM,
        instance_count=len(HOSTS),
        hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
    )
    request["ResourceConfig"]["InstanceType"] = instance_type
    return Gang(service.home, start(aws, request), sagemaker=aws.sagemaker, logs=aws.logs)
