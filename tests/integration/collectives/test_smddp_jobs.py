"""SMDDP end to end: the imports of users' scripts, under every distribution, on two hosts with two ranks each.

The programs are in `clients/source`; unmodified SDK v2 submits them.
"""

import json
import os
import shutil

import pytest
from boto3_clients import Clients, log_of, unique
from program_jobs import failure_of, model_of, run, script_request
from running_service import CLIENTS, SDK2_PYTHON, SETTINGS, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("smddp-jobs")]

SIZE = 4
SUMS, MNIST = "smddp_sums.py", "smddp_mnist.py"
FORMS = [
    ("smdistributed", SUMS, "way=none"),
    ("pytorchddp", SUMS, "way=torch_smddp"),
    ("torch_distributed", SUMS, "way=none"),
    ("smdistributed", MNIST, "epochs=3"),
]
SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true"}


@pytest.fixture(scope="module")
def submitted(client_runs):
    for form in FORMS:
        client_runs.start(SDK2_PYTHON, "v2_smddp.py", *form)

    def ranks(*form):
        output, facts = client_runs.result("v2_smddp.py", *form)
        assert sorted(facts["ranks"]) == [f"rank-{rank}.json" for rank in range(SIZE)], output[-3000:]
        return [json.loads(facts["ranks"][f"rank-{rank}.json"]) for rank in range(SIZE)]

    return ranks


def check_sums(ranks, *, size=SIZE):
    """Assert that every rank has correct results of the collectives, and that all ranks have the same bits."""
    assert len(ranks) == size
    for rank, facts in enumerate(ranks):
        assert (facts["rank"], facts["size"], facts["backend"]) == (rank, size, "smddp")
        assert facts["all_reduce"] is True
        assert facts["largest"] == [size - 1, 0]
        assert facts["all_gather"] == [[float(other), 0.5] for other in range(size)]
        assert facts["broadcast"] == (size - 1) * 7
        assert facts["pair"] == rank // 2 * 4 + 1
        assert facts["gradient_error"] < 1e-6
        assert facts["gradient"] == ranks[0]["gradient"], "ranks differ in a bit"


@pytest.mark.parametrize("form", FORMS[:3], ids=lambda form: form[0])
@pytest.mark.long
def test_collectives_and_gradients_of_four_ranks_on_two_hosts(submitted, form):
    ranks = submitted(*form)
    check_sums(ranks)
    is_imported = form[2] == "way=torch_smddp"
    for rank, facts in enumerate(ranks):
        assert ("smdistributed.dataparallel.torch.torch_smddp" in facts["imported"]) == is_imported
        is_below_mpirun = form[0] != "torch_distributed"
        expected = str(rank % 2) if is_below_mpirun else None
        assert facts["environment"]["SMDATAPARALLEL_LOCAL_RANK"] == expected
        assert facts["environment"]["OMPI_COMM_WORLD_LOCAL_RANK"] == expected
        assert facts["environment"]["OMPI_COMM_WORLD_RANK"] == (str(rank) if is_below_mpirun else None)
        assert facts["environment"]["LOCAL_RANK"] == str(rank % 2)


@pytest.mark.long(95)
def test_a_script_of_smddp_1_3_trains_with_its_own_dist_and_ddp(submitted):
    for rank, facts in enumerate(submitted(*FORMS[3])):
        assert (facts["available"], facts["initialized"], facts["backend"]) == (True, True, "smddp")
        assert facts["equal"], "models of ranks differ"
        assert facts["accuracy"] > 0.9
        assert facts["broadcast"] == 5.0
        assert facts["all_to_all"] == [0.0, 1.0, 2.0, 3.0]
        assert facts["handle of a synchronous call"] == "None"
        assert facts["local_rank"] == rank % 2


def smddp_request(aws, label, files, *, hyperparameters=None, instance_count=2, **members):
    """Return a request for hosts with two ranks each."""
    return script_request(
        aws,
        unique(label),
        files,
        hyperparameters={**SMDDP, **(hyperparameters or {})},
        instance_count=instance_count,
        ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "VolumeSizeInGB": 10},
        **members,
    )


DIES = """
import os, signal
import torch
torch.set_num_threads(1)
torch.distributed.init_process_group("smddp")
values = torch.ones(100_000)
for step in range(1_000_000):
    if step == 20 and torch.distributed.get_rank() == 2: os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.AVG)
"""


@pytest.mark.long(10)
def test_a_rank_that_dies_in_a_collective_is_the_first_cause_and_its_peers_are_not(aws):
    request = smddp_request(aws, "smddp-dies", {"train.py": DIES})
    reason = failure_of(run(aws, request, timeout_s=150))
    assert "rank 2" in reason
    assert "algo-2" in reason
    assert "signal 9" in reason


LARGE = """
import json, os
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("smddp")
rank, size = dist.get_rank(), dist.get_world_size()
gathered = torch.zeros(size * 300_001)
dist.all_gather_into_tensor(gathered, torch.full((300_001,), float(rank)))
total = torch.arange(300_001.0) * (rank + 1)
dist.all_reduce(total)
right = torch.equal(total, torch.arange(300_001.0) * (size * (size + 1) / 2))
right = right and torch.equal(gathered, torch.arange(size).repeat_interleave(300_001).float())
found = {"right": right, "read": dist.group.WORLD._core.counters()["peer_bytes_read"]}
with open(f"/opt/ml/model/{rank}", "w") as file:
    json.dump(found, file)
dist.barrier()
"""


@pytest.mark.long(10)
def test_ranks_of_one_host_read_large_tensors_from_each_other(aws):
    request = smddp_request(aws, "smddp-large", {"train.py": LARGE}, instance_count=1)
    ranks = [json.loads(one) for one in model_of(aws, run(aws, request)).values()]
    assert [one["right"] for one in ranks] == [True, True]
    assert all(one["read"] >= 300_001 * 4 for one in ranks), ranks


PRINTS = """
import os, subprocess, sys
print("secret", len(os.environ["CLARY_COLLECTIVE_SECRET"]), "interface", os.environ["CLARY_COLLECTIVE_INTERFACE"])
print("path", os.environ["PYTHONPATH"].split(":")[-1])
import importlib.util, smdistributed.dataparallel
print("version", smdistributed.dataparallel.__version__, [n for n in ("agent", "control", "train")
      if importlib.util.find_spec("clary." + n)])
for command in (["smddprun"], ["smddpmprun", "-i", "ml.p4d.24xlarge", "--allow-bypass"]):
    code = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])"
    print(command[0], subprocess.check_output([*command, sys.executable, "-c", code], text=True).strip())
with open(f"/opt/ml/model/{os.environ['RANK']}", "w") as file:
    file.write(os.environ["CLARY_COLLECTIVE_SECRET"])
"""


@pytest.mark.long(10)
def test_ranks_get_launchers_and_one_secret_that_no_output_shows(aws, service):
    request = smddp_request(aws, "smddp-secret", {"train.py": PRINTS})
    described = run(aws, request)
    lines = log_of(aws, request["TrainingJobName"])
    (secret,) = set(model_of(aws, described).values())
    assert sum("secret 64 interface" in line for line in lines) == SIZE
    assert sum(line.endswith("/ml/.clary/python") for line in lines) == SIZE
    assert sum("version 2.6.0 ['train']" in line for line in lines) == SIZE
    for rank in range(SIZE):
        assert any(line.endswith(f"smddprun {rank} {SIZE}") for line in lines), lines
        assert any(line.endswith(f"smddpmprun {rank} {SIZE}") for line in lines), lines
    shown = [service.clary("plan", request["TrainingJobName"]).stdout, str(described), *lines]
    shown.append(service.clary("describe", request["TrainingJobName"], "--json").stdout)
    assert not any(secret.decode() in text for text in shown)
    again = smddp_request(aws, "smddp-secret", {"train.py": PRINTS})
    assert set(model_of(aws, run(aws, again)).values()) != {secret}


OTHERS_INSTALLED = """
import sys
sys.path.append("/opt/ml/code/site")  # where site-packages stand
import torch
print("backends", "smddp" in torch.distributed.Backend.backend_list)
import smdistributed.dataparallel.torch.torch_smddp as theirs
print("theirs", theirs.WHOSE)
"""


@pytest.mark.long(11)
def test_an_installed_aws_package_has_precedence(aws):
    base = "site/smdistributed/dataparallel"
    files = {"train.py": OTHERS_INSTALLED, f"{base}/__init__.py": "", f"{base}/torch/__init__.py": ""}
    files[f"{base}/torch/torch_smddp.py"] = "WHOSE = 'FakeAws'"
    request = smddp_request(aws, "smddp-theirs", files)
    described = run(aws, request)
    lines = log_of(aws, request["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Completed", lines
    assert sum("theirs FakeAws" in line for line in lines) == SIZE
    assert sum("backends False" in line for line in lines) == SIZE


@pytest.mark.long(10)
def test_without_autoload_the_explicit_import_registers_the_backend(aws):
    request = smddp_request(
        aws,
        "smddp-explicit",
        {"train.py": (CLIENTS / "source" / SUMS).read_text()},
        hyperparameters={"way": json.dumps("torch_smddp")},
        Environment={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    ranks = model_of(aws, run(aws, request, timeout_s=150))
    check_sums([json.loads(ranks[f"rank-{rank}.json"]) for rank in range(SIZE)])


@pytest.fixture(scope="module")
def plain_service(tmp_path_factory):
    """A service whose hosts are plain processes."""
    home = tmp_path_factory.mktemp("smddp-plain") / "home"
    service = start_service(home, SETTINGS, CLARY_ISOLATION="processes")
    yield service
    service.clary("down", check=False)
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.long
def test_hosts_of_plain_processes_form_one_group(plain_service):
    aws = Clients(plain_service)
    request = smddp_request(aws, "smddp-plain", {"train.py": (CLIENTS / "source" / SUMS).read_text()})
    ranks = model_of(aws, run(aws, request, timeout_s=150))
    check_sums([json.loads(ranks[f"rank-{rank}.json"]) for rank in range(SIZE)])
    assert "not isolated" in plain_service.clary("describe", request["TrainingJobName"]).stdout


@pytest.mark.needs("toolkit")
@pytest.mark.long
def test_the_toolkit_of_aws_runs_its_ranks_through_smddprun_on_both_hosts(aws):
    if os.geteuid() != 0:
        pytest.skip("needs root: the toolkit starts sshd")
    request = smddp_request(aws, "smddp-toolkit", {"train.py": (CLIENTS / "source" / SUMS).read_text()})
    request["AlgorithmSpecification"]["TrainingImage"] = "team/toolkit:1"
    request["HyperParameters"]["sagemaker_instance_type"] = json.dumps("ml.p4d.24xlarge")
    request["Environment"] = {
        "CLARY_LAUNCHER": "toolkit",
        "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
    }
    described = run(aws, request, timeout_s=200)  # the toolkit sleeps for half a minute before it ends
    lines = log_of(aws, request["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Completed", lines
    assert any(" smddprun " in line and "-m mpi4py train.py" in line for line in lines), lines
    for complaint in ("smddp is not installed", "smdistributed.dataparallel not found"):
        assert not any(complaint in line for line in lines), lines
    ranks = model_of(aws, described)  # one rank per host, because the toolkit counts GPUs
    check_sums([json.loads(ranks[f"rank-{rank}.json"]) for rank in range(2)], size=2)
