"""Tags of training jobs: limits, reserved keys, pages."""

import asyncio

import pytest

from clary.base.errors import WireError
from clary.testing.control_plane import ControlPlane

ARN = "arn:aws:sagemaker:us-west-2:000000000000:training-job/job"


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(Tags=[{"Key": "first", "Value": "1"}])
        yield plane


def tags(**values):
    return [{"Key": key, "Value": value} for key, value in values.items()]


async def listed(plane, **params):
    answer = await plane.call("sagemaker", "ListTags", ResourceArn=ARN, **params)
    return {tag["Key"]: tag["Value"] for tag in answer["Tags"]}, answer.get("NextToken")


async def test_tags_are_added_replaced_listed_and_deleted(plane):
    answer = await plane.call("sagemaker", "AddTags", ResourceArn=ARN, Tags=tags(first="2", zweite="3"))
    assert answer["Tags"] == tags(first="2", zweite="3")
    assert await listed(plane) == ({"first": "2", "zweite": "3"}, None)
    await plane.call("sagemaker", "DeleteTags", ResourceArn=ARN, TagKeys=["first", "never-there"])
    assert await listed(plane) == ({"zweite": "3"}, None)


async def test_a_job_has_at_most_50_tags(plane):
    await plane.call("sagemaker", "AddTags", ResourceArn=ARN, Tags=tags(**{f"k{n}": "v" for n in range(49)}))
    with pytest.raises(WireError) as error:
        await plane.call("sagemaker", "AddTags", ResourceArn=ARN, Tags=tags(one_more="v"))
    assert error.value.code == "ResourceLimitExceeded"
    assert "would have 51 tags; at most 50 fit" in error.value.message
    await plane.call("sagemaker", "AddTags", ResourceArn=ARN, Tags=tags(first="replaced"))


async def test_adding_a_tag_does_not_restore_another_tag_that_is_deleted_at_the_same_time(plane, monkeypatch):
    get_tags = plane.store.get_tags

    async def then_deleted(arn):
        found = await get_tags(arn)
        await plane.store.remove_tags(arn, ["first"])
        return found

    monkeypatch.setattr(plane.store, "get_tags", then_deleted)
    await plane.call("sagemaker", "AddTags", ResourceArn=ARN, Tags=tags(second="2"))
    assert await get_tags(ARN) == {"second": "2"}


async def test_pages_of_tags_hold_every_tag_once(plane):
    await plane.call("sagemaker", "AddTags", ResourceArn=ARN, Tags=tags(a="1", b="2"))
    first, token = await listed(plane, MaxResults=2)
    second, end = await listed(plane, MaxResults=2, NextToken=token)
    assert (first, second, end) == ({"a": "1", "b": "2"}, {"first": "1"}, None)


@pytest.mark.parametrize("token", ["x", "-1", "\u00b2", "1.5", "9" * 5000])
async def test_a_forged_token_is_refused(plane, token):
    with pytest.raises(WireError, match="Invalid NextToken"):
        await listed(plane, NextToken=token)


NO_ARN_OF_OURS = "is not the ARN of a training job, a tuning job or a record of experiments"


@pytest.mark.parametrize(
    ("arn", "words"),
    [
        ("arn:aws:sagemaker:us-west-2:000000000000:endpoint/e", NO_ARN_OF_OURS),
        ("training-job/job", NO_ARN_OF_OURS),
        ("arn:aws:sagemaker:us-west-2:000000000000:training-job/none", "Could not find resource"),
        ("arn:aws:sagemaker:eu-west-1:000000000000:training-job/job", "Could not find resource"),
    ],
)
async def test_only_existing_jobs_have_tags(plane, arn, words):
    for operation, params in (("AddTags", {"Tags": []}), ("ListTags", {}), ("DeleteTags", {"TagKeys": ["k"]})):
        with pytest.raises(WireError, match=words) as error:
            await plane.call("sagemaker", operation, ResourceArn=arn, **params)
        assert error.value.code == "ValidationException"


async def test_concurrent_callers_add_their_tags_without_loss(plane):
    await asyncio.gather(
        *(plane.call("sagemaker", "AddTags", ResourceArn=ARN, Tags=tags(**{f"k{n}": str(n)})) for n in range(5))
    )
    found, _ = await listed(plane)
    assert len(found) == 6
