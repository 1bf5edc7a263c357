"""Program that calls an SDK's own function to show finished jobs, from JSON descriptions and with empty logs.

Arguments: module of the SDK that has `_logs_for_job`, files with descriptions.
"""

import importlib
import json
import sys
from datetime import datetime
from types import SimpleNamespace


class FakeLogs:
    """CloudWatch Logs without any stream."""

    def describe_log_streams(self, **options):
        return {"logStreams": []}


def show(module, path):
    with open(path) as file:
        description = json.load(file)
    for row in description["SecondaryStatusTransitions"]:
        row["StartTime"] = datetime.fromisoformat(row["StartTime"])
    description["LastModifiedTime"] = datetime.fromisoformat(description["LastModifiedTime"])
    session = SimpleNamespace(
        sagemaker_client=SimpleNamespace(describe_training_job=lambda TrainingJobName: description),
        boto_session=SimpleNamespace(client=lambda *names, **options: FakeLogs()),
    )
    module._logs_for_job(session, description["TrainingJobName"], wait=True)


sdk = importlib.import_module(sys.argv[1])
for argument in sys.argv[2:]:
    show(sdk, argument)
