"""Where the parts of a job are that `clary cp` copies."""

from types import SimpleNamespace

import pytest

from clary.base.errors import ClaryError, WireError
from clary.cli.copying import CHECKPOINTS, CODE, MODEL, fetch_logs, place_of


def connection(**request):
    sent = {"TrainingJobName": "job-1", "OutputDataConfig": {"S3OutputPath": "s3://b/out"}, **request}
    return SimpleNamespace(job_page=lambda _job, _page: {"request": sent})


def channel(name, uri):
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3Uri": uri}}}


DRIVERS = channel("sm_drivers", "s3://b/drivers")


@pytest.mark.parametrize(
    ("request_", "uri"),
    [
        ({"HyperParameters": {"sagemaker_submit_directory": '"s3://b/sourcedir.tar.gz"'}}, "s3://b/sourcedir.tar.gz"),
        ({"InputDataConfig": [channel("code", "s3://b/in/code"), DRIVERS]}, "s3://b/in/code/"),
        ({"InputDataConfig": [channel("code", "s3://b/in/code.tar.gz"), DRIVERS]}, "s3://b/in/code.tar.gz"),
    ],
)
def test_the_code_of_both_sdks_is_found(request_, uri):
    assert place_of(connection(**request_), "job-1", CODE) == uri


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"InputDataConfig": [channel("code", "s3://b/data")]},  # a user's own channel
        {"HyperParameters": {"sagemaker_submit_directory": '"file:///opt/ml/input/data/code/sourcedir.tar.gz"'}},
    ],
)
def test_a_job_whose_code_is_not_in_s3_is_told_so(request_):
    with pytest.raises(WireError, match="job-1 was given no code by an SDK"):
        place_of(connection(**request_), "job-1", CODE)


def test_other_parts():
    found = connection(CheckpointConfig={"S3Uri": "s3://b/ckpt"})
    assert place_of(found, "job-1", CHECKPOINTS) == "s3://b/ckpt/"
    assert place_of(found, "job-1", MODEL) == "s3://b/out/job-1/output/model.tar.gz"
    with pytest.raises(WireError, match="no CheckpointConfig"):
        place_of(connection(), "job-1", CHECKPOINTS)


@pytest.mark.parametrize("host", ["../algo-1", "/algo-1", "a/../../algo-1", "a\0b"])
def test_a_service_that_names_a_path_as_a_host_writes_nothing_beside_the_folder(tmp_path, host):
    pages = {"hosts": [host], "lines": [], "sure_until_ms": None}
    fake = SimpleNamespace(job_page=lambda job, page, query: pages)
    with pytest.raises(ClaryError, match="is not a path of a file below a folder"):
        list(fetch_logs(fake, "job-1", tmp_path / "logs"))
    assert [path.name for path in tmp_path.rglob("*")] == ["logs"]
