"""The action that runs a job again from its page: changes, refusals, and notes on shared resources."""

import json

import pytest
from own_pages import FewParts
from server_parts import request

from clary.base.errors import WireError
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(
            "fit-001",
            AlgorithmSpecification={
                "TrainingImage": "generic:1",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["true"],
            },
            HyperParameters={"lr": "0.1"},
            CheckpointConfig={"S3Uri": "s3://bucket/c"},
        )
        yield plane


async def rerun(plane, body, name="fit-001"):
    routes = FewParts(plane.services)
    asked = request(f"/clary/v1/jobs/{name}/rerun", method="POST", body=json.dumps(body).encode())
    return json.loads((await routes.handle(asked)).body)


async def test_a_job_is_created_again_with_the_changes(plane):
    made = await rerun(plane, {"name": "again", "hyperparameters": {"lr": "0.5"}, "instance_count": 2})
    assert made == {"name": "again", "notes": ["it goes on from the checkpoints of the job before, at s3://bucket/c"]}
    job = await plane.job("again")
    assert job.request["HyperParameters"] == {"lr": "0.5"}
    assert job.request["ResourceConfig"]["InstanceCount"] == 2


async def test_a_name_is_generated_if_none_is_given(plane):
    made = await rerun(plane, {})
    assert made["name"].startswith("fit-001-20")
    assert await plane.store.get_job(made["name"]) is not None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "expected an object"),
        ({"role": "x"}, "expected an object with name"),
        ({"name": 5}, "name must be str"),
        ({"instance_count": True}, "instance_count must be int"),
        ({"hyperparameters": {"lr": 1}}, "hyperparameters must be an object whose values are strings"),
        ({"name": "no name!"}, "regular expression pattern"),
        ({"instance_count": 99}, "account-level service limit"),
        ({"name": "fit-001"}, "already exists"),
    ],
)
async def test_an_impossible_change_is_refused_with_a_message(plane, body, words):
    with pytest.raises(WireError, match=words):
        await rerun(plane, body)
