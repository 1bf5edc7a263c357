"""Lines of sinfo and scontrol 22.05, recorded from a real cluster."""

import pytest

from clary.control.engines.slurm.node_rows import Gres, num_gpus, read_graces, read_gres, read_nodes

# sinfo --Node --noheader --all --format=NODE_FORMAT
RECORDED = """\
node-1|allocated|8|8000|gpu:2|a10,ib|train*|2-00:00:00|none
node-1|allocated|8|8000|gpu:2|a10,ib|prod|infinite|none
node-2|draining|8|8000|gpu:2|a10,ib|train*|2-00:00:00|disk | broken
node-2|draining|8|8000|gpu:2|a10,ib|prod|infinite|disk | broken
node-3|down*|8|8000|(null)|plain|train*|2-00:00:00|Not responding
"""
# scontrol --oneliner --all show partition, shortened
RECORDED_PARTITIONS = """\
PartitionName=train AllowGroups=ALL GraceTime=0 Hidden=NO PreemptMode=OFF State=UP
PartitionName=spot AllowGroups=ALL GraceTime=10 Hidden=NO PreemptMode=CANCEL State=UP
PartitionName=safe AllowGroups=ALL GraceTime=10 Hidden=NO PreemptMode=OFF State=UP
"""


def state_of(text):
    nodes = read_nodes(f"n1|{text}|8|8000|(null)|(null)|train|infinite|none")
    return nodes.by_name["n1"]


def test_recorded_lines_are_read_as_nodes_and_partitions():
    nodes = read_nodes(RECORDED)
    one = nodes.by_name["node-1"]
    assert (one.num_cpus, one.memory_mib, one.gres, one.features) == (
        8,
        8000,
        (Gres(name="gpu", kind="", count=2),),
        ("a10", "ib"),
    )
    assert one.partitions == ("train", "prod")
    assert nodes.limits_s == {"train": 172800.0, "prod": None}
    assert nodes.default_partition == "train"
    two, three = nodes.by_name["node-2"], nodes.by_name["node-3"]
    assert (two.is_leaving, two.is_down, two.words) == (True, False, "draining: disk | broken")
    assert (three.is_down, three.is_silent, three.words) == (True, True, "down*: Not responding")
    assert (three.gres, three.features) == ((), ("plain",))


@pytest.mark.parametrize(
    ("state", "is_free", "is_leaving", "is_down", "is_silent"),
    [
        ("idle", True, False, False, False),
        ("idle~", True, False, False, False),
        ("idle*", False, False, False, True),
        ("idle-", False, False, False, False),
        ("mixed", False, False, False, False),
        ("allocated*", False, False, False, True),
        ("allocated@", False, True, False, False),
        ("drained", False, True, False, False),
        ("drained*", False, True, False, True),
        ("down", False, False, True, True),
        ("planned", False, False, False, False),
    ],
)
def test_states_of_nodes(state, is_free, is_leaving, is_down, is_silent):
    node = state_of(state)
    assert (node.is_free, node.is_leaving, node.is_down, node.is_silent) == (is_free, is_leaving, is_down, is_silent)


@pytest.mark.parametrize("text", ["", "sinfo: error", "n1|idle|8+|8000|(null)|(null)|train|infinite|none", "|||||||||"])
def test_lines_of_other_forms_are_skipped(text):
    assert read_nodes(text).by_name == {}


@pytest.mark.parametrize(
    ("text", "gres", "gpus"),
    [
        ("gpu:2", [("gpu", "", 2)], 2),
        ("gpu:a100:8(S:0-1)", [("gpu", "a100", 8)], 8),
        ("gpu:a100:4(S:0,1),gpu:h100:4,nic:1K", [("gpu", "a100", 4), ("gpu", "h100", 4), ("nic", "", 1024)], 8),
        ("gpu", [("gpu", "", 1)], 1),
        ("gpu:a100", [("gpu", "a100", 1)], 1),
        ("(null)", [], 0),
    ],
)
def test_resources(text, gres, gpus):
    found = read_gres(text)
    assert [(one.name, one.kind, one.count) for one in found] == gres
    assert num_gpus(found) == gpus


def test_only_partitions_that_others_may_preempt_have_a_grace():
    assert read_graces(RECORDED_PARTITIONS) == {"spot": 10.0}
