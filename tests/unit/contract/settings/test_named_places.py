"""Paths and URIs of a request that agents use literally, and refused ones, with messages that say the correction."""

import pytest

from clary.contract.settings.named_places import (
    code_source_problem,
    local_folder_problem,
    real_folder_problem,
    s3_uri_problem,
)

REFUSED_URIS = (
    *("https://b/p", "file:///etc", "/etc", "", "s3:/b", "S3://b/p"),
    *(
        "s3://",
        "s3:///p",
        "s3://./p",
        "s3://../p",
        "s3://b?x=1",
        "s3://b#x/",
        "s3://b@127.0.0.1/x",
        "s3://127.0.0.1:1/x",
    ),
    *("s3://b\\c/p", "s3://b%2f..", "s3://b c/p", "s3://b\n/p"),
    *("s3://b/..", "s3://b/../c", "s3://b/a/./c", "s3://b/a/..", "s3://b/a/.."),
)


@pytest.mark.parametrize("uri", REFUSED_URIS)
def test_an_address_that_no_store_takes_literally_is_refused(uri):
    assert s3_uri_problem(uri)


@pytest.mark.parametrize("uri", ["s3://b", "s3://b/", "s3://my.bucket-1/a b/..c/d..", "s3://b//x", "s3://b/%2e%2e/x"])
def test_an_address_with_any_other_key_is_accepted(uri):
    assert s3_uri_problem(uri) is None


@pytest.mark.parametrize(
    "source",
    ["/etc", "file:///etc", "//etc", "etc", "/opt/mlx", "/opt/ml/../../etc", "https://h/x", "s3://../x", "/opt/ml/\0"],
)
def test_code_comes_from_s3_or_from_below_opt_ml_alone(source):
    assert code_source_problem(source).startswith("sagemaker_submit_directory is ")


@pytest.mark.parametrize("source", ["s3://b/code.tar.gz", "/opt/ml/input/data/code", "file:///opt/ml/input/data/code"])
def test_the_usual_sources_of_code_are_accepted(source):
    assert code_source_problem(source) is None


COVERING = (
    *("/proc", "/proc/self", "//proc", "/opt/ml/../../proc", "/sys/fs", "/dev", "/dev/null", "/run", "/run/lock"),
    *("/etc", "/usr", "/usr/", "/usr/bin", "/lib64", "/", "/opt", "/opt/ml", "relative", "", "."),
    *("/opt/ml/.clary", "/opt/ml/.clary/errors", "/opt/ml/input", "/opt/ml/input/config", "/opt/ml/input/config/x"),
)


@pytest.mark.parametrize("path", COVERING)
def test_checkpoints_cover_nothing_that_a_host_works_with(path):
    assert local_folder_problem("CheckpointConfig.LocalPath", path).startswith("CheckpointConfig.LocalPath ")
    assert local_folder_problem("Hook", path, is_mirrored=True).startswith("Hook ")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/opt/ml/checkpoints",
            "/opt/ml/checkpoints/",
            "/opt/ml/model",
            "/opt/ml/input/data/train",
            "/tmp",
            "/data/x",
        ),
        *("/dev/shm", "/dev/shm/x", "/root/runs", "/usr/src/app/runs", "/processes", "/opt/ml/.clary-mine"),
    ],
)
def test_any_other_folder_may_hold_checkpoints(path):
    assert local_folder_problem("CheckpointConfig.LocalPath", path) is None


@pytest.mark.parametrize("path", ["//etc/x", "/usr/src/app/runs", "/opt/ml/input/data/train", "//opt/ml/input/x"])
def test_mirrored_folders_that_are_inputs_or_parts_of_the_system_are_refused(path):
    assert local_folder_problem("Hook", path) is None
    assert local_folder_problem("Hook", path, is_mirrored=True).startswith("Hook ")


def test_paths_that_reach_refused_folders_through_links_are_refused(tmp_path):
    (tmp_path / "link").symlink_to("/run")
    for path in ("/var/run/x", str(tmp_path / "link/x")):
        assert local_folder_problem("Hook", path) is None
        assert "the host itself uses this folder" in real_folder_problem("Hook", path)
    assert real_folder_problem("Hook", str(tmp_path / "folder"), is_mirrored=True) is None
    assert real_folder_problem("Hook", "/opt/ml/output/tensors", is_mirrored=True) is None
