"""Two hosts with four ranks each: hosts exchange only gradients if pipelines and tensor groups lie inside a host."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import TRAIN_PYTHON

from clary.testing.lab_network import LabLink, LabNetwork

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces of two hosts: needs root"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("smp-eight-hosts"),
]

PROGRAM = Path(__file__).with_name("smp_eight_hosts_program.py")
RANKS_A_HOST, LIMIT_S = 4, 150.0


def run(placement: str, folder: Path) -> list[dict]:
    """Train on two hosts; return the report of each rank."""
    with LabNetwork(2, LabLink()) as network:
        ranks = []
        size = len(network.hosts) * RANKS_A_HOST
        for rank in range(size):
            host, local_rank = network.hosts[rank // RANKS_A_HOST], rank % RANKS_A_HOST
            environment = {
                **os.environ,
                **VARIABLES,
                "CLARY_PARALLEL_TIMEOUT_S": "60",
                "CLARY_COLLECTIVE_HOST": host,
                "GLOO_SOCKET_IFNAME": "eth0",
                "MASTER_ADDR": network.address(network.hosts[0]),
                "MASTER_PORT": "29511",
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(RANKS_A_HOST),
            }
            with (folder / f"log-{rank}").open("wb") as log:
                command = [*network.entry(host), str(TRAIN_PYTHON), str(PROGRAM), placement, str(folder / str(rank))]
                ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait(LIMIT_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    logs = "\n".join((folder / f"log-{rank}").read_text(errors="replace")[-2000:] for rank in range(size))
    assert codes == [0] * size, f"{codes}\n{logs}"
    return [json.loads((folder / str(rank)).read_text(encoding="utf-8")) for rank in range(size)]


@pytest.mark.long
def test_hosts_exchange_only_gradients_if_pipelines_and_tensor_groups_lie_inside(tmp_path):
    told = run("cluster", tmp_path)
    hosts = [set(range(RANKS_A_HOST)), set(range(RANKS_A_HOST, 2 * RANKS_A_HOST))]
    for rank, facts in enumerate(told):
        own = hosts[rank // RANKS_A_HOST]
        assert set(facts["pp"]) <= own
        assert set(facts["tp"]) <= own
        assert set(facts["rdp"]) == {rank, (rank + RANKS_A_HOST) % (2 * RANKS_A_HOST)}
        assert facts["owners"] == [0, 1]
    # Two ranks average gradients: each sends as many bytes as its gradients have, and headers and control messages.
    of_a_host = sum(facts["gradient_bytes"] for facts in told[:RANKS_A_HOST])
    for facts in told:
        assert facts["short"] >= of_a_host, facts
        assert facts["long"] - facts["short"] < facts["more_bytes"] / 10, facts


@pytest.mark.long
def test_hosts_also_exchange_activations_where_pipelines_cross_hosts(tmp_path):
    told = run("PTD", tmp_path)
    for facts in told:
        assert len({rank // RANKS_A_HOST for rank in facts["pp"]}) == 2
        assert facts["long"] - facts["short"] > facts["more_bytes"], facts
