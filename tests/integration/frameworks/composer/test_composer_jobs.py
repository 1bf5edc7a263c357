"""Composer's Trainer over smddp, with ranks started by torch_distributed on two hosts: training, checkpoints, FSDP.

Results are compared with one process that trains on the same batches.
"""

import pytest
from boto3_clients import Clients, unique
from library_jobs import facts_of, library_service, request_of, run_ranks

PROGRAM = "composer/composer_smddp_program.py"
NUM_RANKS = 4
DISTRIBUTION = {"sagemaker_torch_distributed_enabled": "true"}

pytestmark = [
    pytest.mark.long(180),
    pytest.mark.timeout(500),
    pytest.mark.xdist_group("composer-jobs"),
    pytest.mark.needs("composer"),
]


def test_two_hosts_train_like_one_process_and_resume_from_a_checkpoint(tmp_path):
    (alone,) = run_ranks(
        "composer",
        PROGRAM,
        "--plain=yes",
        num_ranks=1,
        folder=tmp_path / "alone",
        CHECKPOINT_FOLDER=str(tmp_path / "checkpoints"),
    )
    with library_service(tmp_path / "home", "composer") as service:
        aws = Clients(service)
        kept = {"CheckpointConfig": {"S3Uri": f"s3://clary/{unique('composer')}/"}}
        found = facts_of(aws, request_of(aws, "composer", PROGRAM, DISTRIBUTION, **kept), num_ranks=NUM_RANKS)
        given = {**DISTRIBUTION, "load": "ep3-ba3-rank0.pt"}
        resumed = facts_of(aws, request_of(aws, "composer", PROGRAM, given, **kept), num_ranks=NUM_RANKS)
    assert (alone["size"], alone["model"]) == (1, "Net")
    for rank, facts in enumerate(found):
        assert (facts["rank"], facts["node"], facts["size"]) == (rank, rank // 2, NUM_RANKS)
        assert (facts["backend"], facts["model"]) == ("smddp", "DistributedDataParallel")
        assert facts["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert facts["checksum"] == pytest.approx(alone["checksum"], rel=1e-6)
        assert facts["checksum"] == found[0]["checksum"]
    for facts in resumed:
        assert facts["losses"] == pytest.approx(alone["losses"][3:], rel=1e-5)
        assert facts["checksum"] == found[0]["checksum"]
    assert alone["losses"][-1] < 0.6 * alone["losses"][0]


def test_two_hosts_shard_a_models_parameters_and_resume_from_their_shards(tmp_path):
    """The test uses FSDP 2; Composer's FSDP 1 needs a CUDA device per process."""
    (alone,) = run_ranks(
        "composer",
        PROGRAM,
        "--plain=yes",
        num_ranks=1,
        folder=tmp_path / "alone",
        CHECKPOINT_FOLDER=str(tmp_path / "checkpoints"),
    )
    with library_service(tmp_path / "home", "composer") as service:
        aws = Clients(service)
        more = {
            "CheckpointConfig": {"S3Uri": f"s3://clary/{unique('composer')}/"},
            "Environment": {"FSDP_VERSION": "2"},
        }
        given = {**DISTRIBUTION, "fsdp": "yes"}
        found = facts_of(aws, request_of(aws, "composer", PROGRAM, given, **more), num_ranks=NUM_RANKS)
        given = {**given, "load": "ep3-ba3"}
        resumed = facts_of(aws, request_of(aws, "composer", PROGRAM, given, **more), num_ranks=NUM_RANKS)
    assert sum(facts["num_values"] for facts in found) == alone["num_values"]
    for facts in found:
        assert facts["backend"] == "smddp"
        assert facts["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    for facts in resumed:
        assert facts["losses"] == pytest.approx(alone["losses"][3:], rel=1e-5)
    for facts in (*found, *resumed):
        assert facts["checksum"] == pytest.approx(alone["checksum"], rel=1e-6)
