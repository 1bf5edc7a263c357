"""Requests of twin and rehearsal never write to the paths of the original job."""

import json

import pytest

from clary.contract.rehearsals import disk_bytes, disks_value
from clary.control.rehearsal.requests import host_names, rehearsal_requests

REQUEST = {
    "TrainingJobName": "fit",
    "OutputDataConfig": {"S3OutputPath": "s3://team/out/", "KmsKeyId": ""},
    "CheckpointConfig": {"S3Uri": "s3://team/ck/fit", "LocalPath": "/opt/ml/ck"},
    "DebugHookConfig": {"S3OutputPath": "s3://team/tensors"},
    "ResourceConfig": {"InstanceCount": 2, "InstanceType": "local", "KeepAlivePeriodInSeconds": 600},
    "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    "HyperParameters": {
        "sagemaker_submit_directory": '"s3://team/out/fit/source/sourcedir.tar.gz"',
        "sagemaker_job_name": '"fit"',
        "resume_from": '"s3://team/ck/fit/last.pt"',
        "model_dir": '"s3://team/out/fit/model"',
        "lr": "0.1",
    },
    "Environment": {"STATE": "s3://team/ck/fit", "OTHER": "s3://team/ck/fitness"},
    "Tags": [{"Key": "a", "Value": "b"}],
}


def make(request=REQUEST, **options):
    return rehearsal_requests(request, suffix="ab12", **{"num_faults": 1, "needs_spot": False, **options})


def test_names_and_every_output_path_are_new():
    made = make()
    assert made.twin["TrainingJobName"] == "fit-twin-ab12"
    assert made.rehearsal["TrainingJobName"] == "fit-rehearsal-ab12"
    place = "s3://team/out/clary-rehearsals/fit-rehearsal-ab12"
    assert made.rehearsal["OutputDataConfig"] == {"S3OutputPath": place, "KmsKeyId": ""}
    assert made.rehearsal["CheckpointConfig"] == {"S3Uri": f"{place}/checkpoints", "LocalPath": "/opt/ml/ck"}
    assert made.rehearsal["DebugHookConfig"] == {"S3OutputPath": f"{place}/tensors"}
    assert made.twin["CheckpointConfig"]["S3Uri"] != made.rehearsal["CheckpointConfig"]["S3Uri"]


def test_values_that_name_a_path_of_the_job_are_replaced_and_code_paths_are_kept():
    made = make()
    parameters = made.twin["HyperParameters"]
    place = "s3://team/out/clary-rehearsals/fit-twin-ab12"
    assert json.loads(parameters["resume_from"]) == f"{place}/checkpoints/last.pt"
    assert json.loads(parameters["model_dir"]) == f"{place}/fit-twin-ab12/model"
    assert json.loads(parameters["sagemaker_job_name"]) == "fit-twin-ab12"
    assert parameters["sagemaker_submit_directory"] == REQUEST["HyperParameters"]["sagemaker_submit_directory"]
    assert parameters["lr"] == "0.1"
    assert made.twin["Environment"] == {
        "STATE": f"{place}/checkpoints",
        "OTHER": "s3://team/ck/fitness",
        "CLARY_REHEARSAL": "1",
    }
    assert any(note.startswith("resume_from names a place of the job") for note in made.notes)


def test_words_of_the_command_that_name_a_path_of_the_job_are_replaced():
    command = {
        "ContainerEntrypoint": ["bash", "-c", "train --ck 's3://team/ck/fit' --out s3://team/out/fit/a,s3://team/b"],
        "ContainerArguments": ["--ck", "s3://team/ck/fit/", "--state=s3://team/ck/fit/x", "s3://team/ck/fit-2"],
    }
    made = make({**REQUEST, "AlgorithmSpecification": command})
    place = "s3://team/out/clary-rehearsals/fit-twin-ab12"
    assert made.twin["AlgorithmSpecification"] == {
        "ContainerEntrypoint": [
            *("bash", "-c"),
            f"train --ck '{place}/checkpoints' --out {place}/fit-twin-ab12/a,s3://team/b",
        ],
        "ContainerArguments": [
            *("--ck", f"{place}/checkpoints/", f"--state={place}/checkpoints/x"),
            "s3://team/ck/fit-2",
        ],
    }
    notes = [note for note in made.notes if note.startswith("Container")]
    assert notes == [
        f"{name} names a place of the job and names the rehearsal's instead"
        for name in ("ContainerEntrypoint", "ContainerArguments")
    ]


def test_a_path_inside_of_a_value_is_replaced():
    request = {**REQUEST, "HyperParameters": {"stores": '["s3://team/ck/fit/a", "s3://other/fit"]'}}
    stores = json.loads(make(request).twin["HyperParameters"]["stores"])
    assert stores == ["s3://team/out/clary-rehearsals/fit-twin-ab12/checkpoints/a", "s3://other/fit"]


def test_the_job_s_own_checkpoint_prefix_is_in_neither_request():
    made = make()
    for request in (made.twin, made.rehearsal):
        assert "s3://team/ck/fit/" not in json.dumps(request)
        assert '"s3://team/ck/fit"' not in json.dumps(request)


def test_the_original_request_is_not_changed():
    before = json.dumps(REQUEST)
    make()
    assert json.dumps(REQUEST) == before


def test_the_rehearsal_may_restart_and_the_twin_keeps_its_retry_strategy():
    made = make(num_faults=3)
    assert made.rehearsal["RetryStrategy"] == {"MaximumRetryAttempts": 5}
    assert "RetryStrategy" not in made.twin
    assert "KeepAlivePeriodInSeconds" not in made.twin["ResourceConfig"]
    assert make({**REQUEST, "RetryStrategy": {"MaximumRetryAttempts": 30}}, num_faults=40).rehearsal[
        "RetryStrategy"
    ] == {"MaximumRetryAttempts": 30}


def test_twin_and_rehearsal_get_equal_disks_and_no_disks_of_an_earlier_rehearsal():
    request = {**REQUEST, "Environment": {"CLARY_REHEARSAL_DISKS": "1 algo-1"}}
    for made in _both_of(make(request)):
        assert made["Environment"] == {"CLARY_REHEARSAL": "1"}
        assert disk_bytes(made, "algo-1") is None
    for made in _both_of(make(request, disks=disks_value(["algo-2"], 1 << 30))):
        assert disk_bytes(made, "algo-2") == 1 << 30
        assert disk_bytes(made, "algo-1") is None


@pytest.mark.parametrize("value", ["", " ", "algo-1", "0 algo-1", "-5 algo-1", "1e9 algo-1", "5", "5 algo-10"])
def test_a_variable_that_names_no_disk_of_the_host_gives_none(value):
    request = {"Environment": {"CLARY_REHEARSAL": "1", "CLARY_REHEARSAL_DISKS": value}}
    assert disk_bytes(request, "algo-1") is None


def test_a_job_that_is_no_rehearsal_has_no_disk_of_its_own():
    assert disk_bytes({"Environment": {"CLARY_REHEARSAL_DISKS": "5 algo-1"}}, "algo-1") is None


def test_a_reclaim_needs_spot_capacity_and_a_time_to_wait_for_it():
    made = make(needs_spot=True)
    assert made.rehearsal["EnableManagedSpotTraining"] is True
    assert made.rehearsal["StoppingCondition"] == {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 4200}
    assert "EnableManagedSpotTraining" not in made.twin
    assert "the rehearsal runs on spot capacity, so that it can be reclaimed" in made.notes


def test_a_request_without_checkpoints_gets_a_note_that_nothing_is_restored():
    request = {name: value for name, value in REQUEST.items() if name != "CheckpointConfig"}
    assert any("nothing is restored" in note for note in make(request).notes)
    assert "CheckpointConfig" not in make(request).rehearsal


def test_long_names_are_shortened_to_the_limit_of_the_api():
    names = {request["TrainingJobName"] for request in _both_of(make({**REQUEST, "TrainingJobName": "n" * 63}))}
    assert {len(name) for name in names} == {63}
    assert len(names) == 2


def _both_of(made):
    return (made.twin, made.rehearsal)


def test_hosts_are_counted_over_all_groups():
    assert host_names({"ResourceConfig": {"InstanceCount": 2}}) == ("algo-1", "algo-2")
    groups = [{"InstanceCount": 1}, {"InstanceCount": 2}]
    assert host_names({"ResourceConfig": {"InstanceGroups": groups}}) == ("algo-1", "algo-2", "algo-3")
