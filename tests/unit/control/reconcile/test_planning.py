"""Values of the service's settings in launch plans."""

from dataclasses import replace

import pytest

from clary.base.plain import from_plain
from clary.contract.launch_plan import AnsiCodes, LaunchPlan
from clary.control.settings import load_settings
from clary.testing.control_plane import ControlPlane


@pytest.mark.parametrize(
    ("variables", "ansi", "max_lines_per_s", "max_bytes_per_s"),
    [
        (
            {"CLARY_LOG_ANSI": "strip", "CLARY_LOG_MAX_LINES_PER_S": "7", "CLARY_LOG_MAX_BYTES_PER_S": "4096"},
            AnsiCodes.STRIP,
            7,
            4096,
        ),
        ({"CLARY_LOG_MAX_LINES_PER_S": "0", "CLARY_LOG_MAX_BYTES_PER_S": "0"}, AnsiCodes.KEEP, 0, 0),
        ({}, AnsiCodes.KEEP, 250_000, 64 * 1024 * 1024),
    ],
)
async def test_the_log_settings_reach_the_plan_that_agents_fetch(
    tmp_path, variables, ansi, max_lines_per_s, max_bytes_per_s
):
    async with ControlPlane.open(tmp_path) as plane:
        settings = load_settings({"CLARY_HOME": str(tmp_path), **variables})
        plane.reconciler.launcher._site = replace(plane.reconciler.launcher._site, settings=settings)
        await plane.create()
        await plane.passes()
        plan = (await plane.job()).plan
    rules = from_plain(LaunchPlan, plan).log_rules
    assert (rules.ansi, rules.max_lines_per_s, rules.max_bytes_per_s) == (ansi, max_lines_per_s, max_bytes_per_s)


async def test_disk_sizes_in_the_environment_apply_to_rehearsals_only(tmp_path):
    variables = {"CLARY_REHEARSAL_DISKS": "1000000 algo-2"}
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create("rehearsal", num_hosts=2, Environment={"CLARY_REHEARSAL": "1", **variables})
        await plane.create("other", num_hosts=2, Environment=variables)
        await plane.passes()
        plans = [from_plain(LaunchPlan, (await plane.job(name)).plan) for name in ("rehearsal", "other")]
    assert [host.disk_bytes for host in plans[0].hosts] == [None, 1_000_000]
    assert [host.disk_bytes for host in plans[1].hosts] == [None, None]


@pytest.mark.parametrize(("bucket", "is_own"), [("sagemaker-sample-files", True), ("clary", False)])
async def test_agents_read_public_buckets_of_aws_through_the_service_with_the_jobs_key(tmp_path, bucket, is_own):
    source = {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/data/"}}
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(InputDataConfig=[{"ChannelName": "train", "DataSource": source}])
        await plane.passes()
        plan = from_plain(LaunchPlan, (await plane.job()).plan)
    assert (plan.object_store == plan.job_endpoint) is is_own
