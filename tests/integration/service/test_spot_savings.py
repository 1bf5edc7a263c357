"""Output of both SDKs at the end of a spot job, by their own functions, from the service's description."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from running_service import SDK2_PYTHON, SDK3_PYTHON

from clary.base.plain import to_plain
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs.training_job import AttemptEnd, PastAttempt, StatusTransition, TrainingJob
from clary.control.scheduling.prices import load_prices
from clary.control.services.job_descriptions import describe
from clary.control.settings import Settings
from clary.testing.control_plane import request_of

pytestmark = [pytest.mark.clients, pytest.mark.timeout(240)]

START = datetime(2026, 1, 1, tzinfo=UTC)
LIFE = [
    (SecondaryStatus.STARTING, 0),
    (SecondaryStatus.DOWNLOADING, 2),
    (SecondaryStatus.TRAINING, 5),
    (SecondaryStatus.INTERRUPTED, 60),  # its hosts are released at 62
    (SecondaryStatus.STARTING, 100),
    (SecondaryStatus.DOWNLOADING, 101),
    (SecondaryStatus.TRAINING, 104),
    (SecondaryStatus.UPLOADING, 160),
    (SecondaryStatus.COMPLETED, 162),
]


def at(seconds):
    return START + timedelta(seconds=seconds)


def spot_job(**members):
    ends = [begin for _, begin in LIFE[1:]] + [LIFE[-1][1]]
    rows = [
        StatusTransition(status=status, started_at=at(begin), ended_at=at(end), message="m")
        for (status, begin), end in zip(LIFE, ends, strict=True)
    ]
    past = PastAttempt(number=1, kind=AttemptEnd.RECLAIMED, reason="gone", asked_at=at(60), ended_at=at(62))
    return TrainingJob(
        name="job",
        arn="arn",
        request=request_of("job", EnableManagedSpotTraining=True, **members),
        status=TrainingJobStatus.COMPLETED,
        secondary_status=SecondaryStatus.COMPLETED,
        transitions=tuple(rows),
        created_at=START,
        modified_at=at(162),
        training_started_at=at(2),
        training_ended_at=at(162),
        attempt=2,
        past_attempts=(past,),
    )


ONE_HOST = {"InstanceType": "ml.p3.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}
THREE_HOSTS = {"InstanceType": "ml.c5.xlarge", "InstanceCount": 3, "VolumeSizeInGB": 1}


@pytest.mark.parametrize(
    ("python", "module"),
    [
        pytest.param(SDK2_PYTHON, "sagemaker.session", id="v2", marks=pytest.mark.needs("sdk2")),
        pytest.param(SDK3_PYTHON, "sagemaker.core.helper.session_helper", id="v3", marks=pytest.mark.needs("sdk3")),
    ],
)
@pytest.mark.long
def test_the_sdk_prints_training_seconds_billable_seconds_and_savings(tmp_path, python, module):
    paths = []
    for resources in (ONE_HOST, THREE_HOSTS):
        job = spot_job(ResourceConfig=resources)
        description = describe(job, load_prices(), Settings(home=str(tmp_path)), now=job.modified_at)
        paths.append(tmp_path / f"description-{len(paths)}.json")
        paths[-1].write_text(json.dumps(to_plain(description)))
    program = Path(__file__).with_name("savings_program.py")
    ended = subprocess.run(
        [str(python), str(program), module, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    one_host = "Training seconds: 121\nBillable seconds: 36\nManaged Spot Training savings: 70.2%\n"
    # The SDK multiplies by the number of hosts; c5 has another price.
    three_hosts = "Training seconds: 363\nBillable seconds: 144\nManaged Spot Training savings: 60.3%\n"
    assert one_host in ended.stdout
    assert ended.stdout.endswith(three_hosts)
