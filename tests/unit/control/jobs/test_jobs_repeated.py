"""A repeated job: its name, its changes, and the resources that it shares with the original job."""

from datetime import UTC, datetime

import pytest

from clary.control.jobs.job_names import MAX_NAME, kind_of_name, next_name, stem
from clary.control.jobs.repeated_requests import Changes, repeated

NOW = datetime(2026, 1, 31, 12, 5, 6, 78_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train-2026-01-31-12-00-00-123", "train"),
        ("sweep-017-9f3ab2c1", "sweep"),
        ("bert-large", "bert-large"),
        ("gpt2", "gpt"),
        ("123", "123"),
        ("decade", "decade"),
        ("0" * 62 + "!", "0" * 62 + "!"),  # a regular expression with many ways to split this name never finished
    ],
)
def test_names_of_similar_jobs_differ_only_in_trailing_numbers(name, kind):
    assert stem(name) == kind


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sweep-017-lr-0-05-26", "sweep-#-lr"),
        ("sweep-018-lr-0-1", "sweep-#-lr"),
        ("run.9f3ab2c1.resnet50.decade-x", "run.#.resnet50.decade-x"),
        ("123", "#"),
    ],
)
def test_members_of_a_sweep_are_similar_wherever_their_numbers_are(name, told):
    assert kind_of_name(name) == told


def test_the_next_name_has_the_current_time_and_fits_the_length_limit():
    assert next_name("train-2026-01-31-12-00-00-123", NOW) == "train-2026-01-31-12-05-06-078"
    for name in ("resnet50", "llama-3", "sweep-017-9f3ab2c1", "2026"):  # numbers that are no times belong to the name
        assert next_name(name, NOW) == f"{name}-2026-01-31-12-05-06-078"
    assert len(next_name("x" * MAX_NAME, NOW)) == MAX_NAME


def test_new_hyperparameters_are_encoded_like_those_of_the_original_job():
    bare, _ = repeated({"HyperParameters": {"lr": "1"}}, name="n", changes=Changes(hyperparameters={"m": "b"}))
    assert bare["HyperParameters"] == {"lr": "1", "m": "b"}
    sdk = {"HyperParameters": {"sagemaker_program": '"a.py"', "sagemaker_job_name": '"old"'}}
    made, _ = repeated(sdk, name="new", changes=Changes(hyperparameters={"m": "b", "lr": "0.5"}))
    assert made["HyperParameters"] == {
        "sagemaker_program": '"a.py"',
        "sagemaker_job_name": '"new"',
        "m": '"b"',
        "lr": "0.5",
    }
    assert sdk["HyperParameters"]["sagemaker_job_name"] == '"old"', "the job before keeps its own"


def test_a_repeated_job_can_have_other_hosts_and_another_environment():
    request = {"ResourceConfig": {"InstanceType": "a", "InstanceCount": 1}, "Environment": {"A": "1"}}
    changes = Changes(environment={"B": "2"}, instance_type="b", instance_count=3)
    made, notes = repeated(request, name="n", changes=changes)
    assert made["ResourceConfig"] == {"InstanceType": "b", "InstanceCount": 3}
    assert made["Environment"] == {"A": "1", "B": "2"}
    assert notes == ()
    with pytest.raises(ValueError, match="instance groups"):
        repeated({"ResourceConfig": {"InstanceGroups": [{}]}}, name="n", changes=changes)


def test_a_shared_checkpoint_prefix_is_noted():
    _, notes = repeated({"CheckpointConfig": {"S3Uri": "s3://b/c"}}, name="n", changes=Changes())
    assert notes == ("it goes on from the checkpoints of the job before, at s3://b/c",)
