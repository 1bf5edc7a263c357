"""Both SageMaker SDKs, unmodified, against a service whose hosts are nodes of a real Slurm. Needs root."""

import os

import pytest
from running_service import SDK2_PYTHON, SDK3_PYTHON

pytest_plugins = ["slurm_service"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of a cluster are namespaces: needs root"),
    pytest.mark.needs("slurm"),
    pytest.mark.clients,
    pytest.mark.xdist_group("slurm-clients"),
    pytest.mark.timeout(240),
]
FORMS = {
    "v2-estimator": (SDK2_PYTHON, "v2_generic.py"),
    "v2-pytorch": (SDK2_PYTHON, "v2_pytorch.py"),
    "v2-smddp": (SDK2_PYTHON, "v2_smddp.py", "smdistributed", "allreduce.py"),
    "v2-pytorchddp": (SDK2_PYTHON, "v2_smddp.py", "pytorchddp", "allreduce.py"),
    "v2-torchrun": (SDK2_PYTHON, "v2_smddp.py", "torch_distributed", "allreduce.py"),
    "v3-trainer": (SDK3_PYTHON, "v3_model_trainer.py", "none"),
    "v3-torchrun": (SDK3_PYTHON, "v3_model_trainer.py", "torchrun"),
    "v3-local-data": (SDK3_PYTHON, "v3_model_trainer.py", "local-data"),
}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_client_that_knows_nothing_of_slurm_gets_its_results(cluster, form):
    python, script, *arguments = FORMS[form]
    _, facts = cluster.service.run_client(python, script, *arguments)
    job = cluster.aws.sagemaker.describe_training_job(TrainingJobName=facts["name"])
    assert job["TrainingJobStatus"] == "Completed"
    granted = [row["StatusMessage"] for row in job["SecondaryStatusTransitions"]]
    assert any("granted: node-" in message for message in granted)
    if "ranks" in facts:
        assert len(facts["ranks"]) == 4
        assert all('"sum": 10.0' in text for text in facts["ranks"].values())
