"""The typed view of a request: values that the service fills in, and values that stay as sent."""

import pytest

from clary.contract.launch_plan import InputMode
from clary.control.jobs.job_request import JobRequest
from clary.testing.control_plane import request_of


def view(**members):
    return JobRequest(request_of("my-job", **members))


def test_absent_members_read_as_the_service_s_defaults():
    job = view(StoppingCondition={}, HyperParameters=None)
    assert (job.max_runtime_s, job.max_wait_s, job.max_pending_s) == (86400, None, None)
    assert (job.is_spot, job.has_network_isolation, dict(job.hyperparameters), job.channels) == (False, False, {}, ())
    assert (job.checkpoint_local_path, job.config_documents, job.metric_definitions) == (None, {}, ())


@pytest.mark.parametrize(
    ("config", "model", "output"),
    [
        ({"S3OutputPath": "s3://b"}, "s3://b/my-job/output/model.tar.gz", "s3://b/my-job/output/output.tar.gz"),
        ({"S3OutputPath": "s3://b/x/"}, "s3://b/x/my-job/output/model.tar.gz", "s3://b/x/my-job/output/output.tar.gz"),
        (
            {"S3OutputPath": "s3://b/x", "CompressionType": "NONE"},
            "s3://b/x/my-job/output/model/",
            "s3://b/x/my-job/output/data/",
        ),
    ],
)
def test_results_are_stored_below_the_job_s_name(config, model, output):
    found = view(OutputDataConfig=config).output
    assert (found.model_uri, found.output_uri) == (model, output)


def test_hosts_of_all_groups_are_counted_in_the_request_s_order():
    listed = [
        {"InstanceGroupName": name, "InstanceType": kind, "InstanceCount": count}
        for name, kind, count in (("z", "ml.c5.large", 2), ("a", "ml.p3.2xlarge", 1))
    ]
    job = view(ResourceConfig={"InstanceGroups": listed})
    assert [(group.name, group.instance_count) for group in job.instance_groups] == [("z", 2), ("a", 1)]
    assert job.num_hosts == 3
    assert [group.name for group in view(num_hosts=2).instance_groups] == ["homogeneousCluster"]


def test_a_command_is_entry_point_plus_arguments_and_is_none_without_entry_point():
    both = {"TrainingImage": "i:1", "ContainerEntrypoint": ["/bin/sh"], "ContainerArguments": ["-c", "a b"]}
    assert view(AlgorithmSpecification=both).command == ("/bin/sh", "-c", "a b")
    assert view(AlgorithmSpecification={"TrainingImage": "i:1"}).command is None


def test_a_channel_takes_the_job_s_input_mode_unless_it_has_its_own():
    job = view(
        AlgorithmSpecification={"TrainingImage": "i:1", "TrainingInputMode": "Pipe"},
        InputDataConfig=[
            {"ChannelName": "a", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/a"}}},
            {
                "ChannelName": "b",
                "InputMode": "FastFile",
                "ShuffleConfig": {"Seed": 7},
                "DataSource": {
                    "FileSystemDataSource": {
                        "FileSystemId": "fs-00000000",
                        "FileSystemType": "EFS",
                        "DirectoryPath": "/d/e",
                        "FileSystemAccessMode": "rw",
                    }
                },
            },
        ],
    )
    first, second = job.channels
    assert (first.input_mode, first.s3_uri, first.s3_data_distribution) == (
        InputMode.PIPE,
        "s3://b/a",
        "FullyReplicated",
    )
    assert (second.input_mode, second.shuffle_seed) == (InputMode.FAST_FILE, 7)
    assert (second.file_system_id, second.file_system_folder, second.file_system_access) == ("fs-00000000", "d/e", "rw")
    assert second.file_system_path is None  # the settings name the folder of the file system


def test_checkpoints_have_a_folder_and_a_prefix():
    job = view(CheckpointConfig={"S3Uri": "s3://b/c"})
    assert (job.checkpoint_local_path, job.checkpoint_s3_uri) == ("/opt/ml/checkpoints", "s3://b/c")
    assert view().checkpoint_s3_uri is None


def test_documents_for_the_program_get_their_local_path():
    documents = view(
        CheckpointConfig={"S3Uri": "s3://b/c"}, DebugHookConfig={"S3OutputPath": "s3://b/d", "LocalPath": "/mine"}
    ).config_documents
    assert documents == {
        "checkpointconfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/checkpoints"},
        "debughookconfig": {"S3OutputPath": "s3://b/d", "LocalPath": "/mine"},
    }
