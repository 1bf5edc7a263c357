"""Lines of squeue 22.05 on waiting jobs, recorded from a real cluster, and nodes that could serve them."""

import pytest

from clary.control.engines.slurm.node_rows import read_nodes
from clary.control.engines.slurm.others_rows import read_waiting, wanted_by

# squeue --noheader --all --states=PENDING --format=WAITING_FORMAT
RECORDED = """\
41|anna|train||N/A|Resources|(null)
42|anna|train,prod|node-2|gres:gpu:1|Priority|a10&ib
43|root|prod||N/A|Dependency|(null)
44|ben|train||N/A|Resources|plain|fast
45|ben|train||gres:gpu:2|Resources|[rack1|rack2]
broken
"""
NODES = read_nodes(
    """\
node-1|allocated|8|8000|gpu:2|a10,ib|train*|infinite|none
node-2|allocated|8|8000|gpu:2|a10,ib|prod|infinite|none
node-3|allocated|8|8000|(null)|plain|train*|infinite|none
"""
).by_name


def rows(*numbers):
    return [row for row in read_waiting(RECORDED) if row.job_id in numbers]


def test_waiting_jobs_that_free_nodes_could_serve_are_read():
    found = read_waiting(RECORDED)
    assert [row.job_id for row in found] == [41, 42, 44, 45]
    assert (found[1].partitions, found[1].named_nodes, found[1].wants_gpus) == (("train", "prod"), ("node-2",), True)
    assert [row.features for row in found] == ["", "a10&ib", "plain|fast", "[rack1|rack2]"]
    assert found[0].words == "Slurm job 41 of anna waits for nodes"


@pytest.mark.parametrize(
    ("job_id", "node", "serves"),
    [
        (41, "node-1", True),
        (41, "node-2", False),  # the node is in another partition
        (42, "node-1", False),  # the job names another node
        (42, "node-2", True),
        (44, "node-1", False),  # the node has neither feature
        (44, "node-3", True),
        (45, "node-1", True),  # a constraint that only Slurm can evaluate
        (45, "node-3", False),  # the node has no GPU
        (41, "node-9", False),  # the node is unknown
    ],
)
def test_a_node_is_wanted_by_jobs_that_it_could_serve(job_id, node, serves):
    assert (wanted_by(rows(job_id), [node], NODES) is not None) == serves


@pytest.mark.parametrize(
    ("resources", "wants_gpus"),
    [
        ("N/A", False),
        ("gpu:1", True),
        ("gres:gpu:a100:2", True),
        ("gres/nic:1,gres/gpu:2", True),
        ("gres:gpupool:1", False),
    ],
)
def test_gpus_are_found_among_other_resources(resources, wants_gpus):
    (row,) = read_waiting(f"41|anna|train||{resources}|Resources|(null)")
    assert row.wants_gpus == wants_gpus


def test_the_first_in_the_queue_is_named():
    assert wanted_by(read_waiting(RECORDED), ["node-3", "node-1"], NODES).job_id == 41
