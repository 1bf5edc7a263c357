"""Lightning's Trainer with DDPStrategy over smddp, with ranks started by torch_distributed on two hosts.

Results are compared with one process that trains on the same batches.
"""

import pytest
from boto3_clients import Clients
from library_jobs import facts_of, library_service, request_of, run_ranks

PROGRAM = "lightning_smddp_program.py"

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("lightning-jobs"),
    pytest.mark.needs("lightning"),
]


def test_two_hosts_train_like_one_process(tmp_path):
    (alone,) = run_ranks("lightning", PROGRAM, "--plain=yes", num_ranks=1, folder=tmp_path / "alone")
    with library_service(tmp_path / "home", "lightning") as service:
        aws = Clients(service)
        given = {"sagemaker_torch_distributed_enabled": "true", "hosts": "2", "ranks_of_host": "2"}
        found = facts_of(aws, request_of(aws, "lightning", PROGRAM, given), num_ranks=4)
    assert alone["backend"] is None
    for rank, facts in enumerate(found):
        assert (facts["rank"], facts["size"]) == (rank, 4)
        assert (facts["backend"], facts["strategy"]) == ("smddp", "DDPStrategy")
        assert facts["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert facts["checksum"] == pytest.approx(alone["checksum"], rel=1e-6)
        assert facts["checksum"] == found[0]["checksum"]
    assert alone["losses"][-1] < alone["losses"][0] / 2
