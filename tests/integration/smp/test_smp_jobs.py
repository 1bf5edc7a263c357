"""SMP end to end: unmodified SDKs submit scripts as AWS's examples have them; two hosts with two ranks each.

SMP v1 is submitted by SDK v2 with mpi; SMP v2 by SDK v2 with torch_distributed, and by SDK v3 with Torchrun.
"""

import json
import math

import pytest
from boto3_clients import Clients, log_of
from running_service import SDK2_PYTHON, SDK3_PYTHON

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("smp-jobs")]

FORM = ("v2_smddp.py", "modelparallel", "smp_digits.py", "epochs=3")
SHARDED_FORMS = {
    "sdk v2": (SDK2_PYTHON, "v2_smddp.py", "modelparallel_v2", "tsm_digits.py", "epochs=3"),
    "sdk v3": (SDK3_PYTHON, "v3_smp.py", "tsm_digits.py"),
}
GIVEN = {  # the parameters that each SDK passes to SMP v2
    "sdk v2": {"hybrid_shard_degree": 2, "activation_loading_horizon": 3},
    "sdk v3": {"hybrid_shard_degree": 2, "sm_activation_offloading": True, "random_seed": 5},
}


@pytest.fixture(scope="module", autouse=True)
def _all_started(client_runs):
    for python, *form in [(SDK2_PYTHON, *FORM), *SHARDED_FORMS.values()]:
        client_runs.start(python, *form)


def ranks_of(client_runs, form):
    """Return the facts that the four ranks of a job left in its model, and the job's name."""
    output, facts = client_runs.result(*form)
    assert sorted(facts["ranks"]) == [f"rank-{rank}.json" for rank in range(4)], output[-3000:]
    return [json.loads(facts["ranks"][f"rank-{rank}.json"]) for rank in range(4)], facts["name"]


@pytest.fixture(scope="module")
def trained(client_runs, service):
    ranks, name = ranks_of(client_runs, FORM)
    return ranks, log_of(Clients(service), name)


def test_pipelines_lie_inside_hosts_and_replicas_between_them(trained):
    ranks, _ = trained
    for rank, facts in enumerate(ranks):
        assert (facts["rank"], facts["size"], facts["partitions"]) == (rank, 4, 2)
        assert (facts["mp_rank"], facts["dp_rank"]) == (rank % 2, rank // 2)
        assert (facts["pp_size"], facts["dp_size"], facts["local_rank"]) == (2, 2, rank % 2)
        assert "partitions" in facts["mp_parameters"]


def test_the_model_learns_and_every_rank_reports_it(trained):
    ranks, _ = trained
    for facts in ranks:
        assert facts["accuracy"] > 0.9
        assert facts["last"] < facts["first"] / 3
        assert facts["accuracy"] == ranks[0]["accuracy"]


@pytest.mark.long(90)
def test_each_parameter_lies_on_one_rank_of_each_replica_with_the_same_values(trained):
    ranks, _ = trained
    assert ranks[0]["local"] == ranks[2]["local"]
    assert ranks[1]["local"] == ranks[3]["local"]
    assert ranks[0]["local"]
    assert ranks[1]["local"]
    together = {**ranks[0]["local"], **ranks[1]["local"]}
    assert set(together) <= set(ranks[0]["whole"])
    assert len(together) == len(ranks[0]["local"]) + len(ranks[1]["local"])


@pytest.mark.long
def test_the_log_names_the_partition_of_the_model(trained):
    _, lines = trained
    assert sum("Partition assignments:" in line for line in lines) == 1, lines


@pytest.mark.long(115)
@pytest.mark.parametrize("sdk", SHARDED_FORMS)
def test_smp_v2_shards_inside_hosts_and_replicates_between_them(client_runs, sdk):
    ranks, _ = ranks_of(client_runs, SHARDED_FORMS[sdk][1:])
    for rank, facts in enumerate(ranks):
        assert (facts["rank"], facts["size"], facts["local_rank"], facts["degree"]) == (rank, 4, rank % 2, 2)
        assert facts["shards"] == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert facts["replicas"] == [rank % 2, rank % 2 + 2]
        assert json.loads(facts["mp_parameters"]) == GIVEN[sdk]


@pytest.mark.long(80)
@pytest.mark.parametrize("sdk", SHARDED_FORMS)
def test_smp_v2_learns_with_one_model_on_all_ranks(client_runs, sdk):
    ranks, _ = ranks_of(client_runs, SHARDED_FORMS[sdk][1:])
    whole = sum(math.prod(shape) for shape in ranks[0]["whole"].values())
    for rank, facts in enumerate(ranks):
        assert facts["accuracy"] > 0.9
        assert facts["last"] < facts["first"] / 3
        assert facts["scores"] == ranks[0]["scores"], "ranks gather other weights"
        # `whole` is filled on one rank of each shard group: FSDP counts ranks within the group
        assert bool(facts["whole"]) == (rank % 2 == 0)
        assert facts["local_numel"] < whole * 0.75, "a rank holds more than its shards"
    assert sum(facts["local_numel"] for facts in ranks[:2]) == whole
