"""Arguments of sbatch for orders."""

import pytest

from clary.base.errors import EngineError
from clary.control.engines.cluster.scheduler import AllocationOrder, HostWish
from clary.control.engines.slurm.kinds import kinds_of
from clary.control.engines.slurm.node_rows import read_nodes
from clary.control.engines.slurm.submission import submission_of

NODES = read_nodes(
    "\n".join(
        [
            "g1|idle|8|8000|gpu:2|a10,ib|train*|2-00:00:00|none",
            "g1|idle|8|8000|gpu:2|a10,ib|spot|infinite|none",
            "g2|idle|8|8000|gpu:2|a10,ib|train*|2-00:00:00|none",
            "c1|idle|4|4000|(null)|(null)|train*|2-00:00:00|none",
        ]
    )
)
ALWAYS = ["--no-requeue", "--no-kill", "--exclusive", "--mem=0", "--ntasks-per-node=1", "--export=ALL", "--chdir=/"]


def order_of(*hosts, job_name="demo", limit_s=600, is_spot=False):
    wishes = tuple(
        HostWish(index=index, kind=kind, num_cpus=3, memory_bytes=None, num_gpus=gpus)
        for index, (kind, gpus) in enumerate(hosts)
    )
    return AllocationOrder(
        tag="pool_0123456789ab", job_name=job_name, hosts=wishes, limit_s=limit_s, grace_s=29.5, is_spot=is_spot
    )


def submit(order, tables=None, wanted=None):
    tables = tables or {}
    kinds = kinds_of(NODES, tables)
    return submission_of(order, wanted or order.hosts, mark="0f3a99c2", kinds=kinds, nodes=NODES, tables=tables)


def kind_names(tables=None):
    return {kind.shown.num_gpus: kind.name for kind in kinds_of(NODES, tables or {})}


def components_of(submission):
    found = [[]]
    for argument in submission.arguments:
        if argument == ":":
            found.append([])
        else:
            found[-1].append(argument)
    return found


def test_hosts_of_one_kind_are_one_component():
    kind = kind_names()[2]
    submission = submit(order_of((kind, 2), (kind, 2)))
    (arguments,) = components_of(submission)
    assert submission.components == ((0, 1),)
    assert arguments[0] == "--parsable"
    assert set(ALWAYS) <= set(arguments)
    assert {
        "--job-name=demo",
        "--comment=clary:0f3a99c2:pool_0123456789ab:0-1:30",
        "--nodes=2",
        "--time=12",  # 600 s, the grace, and the minute by which Slurm may signal early
        "--signal=TERM@30",
        "--partition=train",
        "--mincpus=8",
        "--constraint=a10&ib",
        "--gres=gpu:2",
    } <= set(arguments)


def test_different_kinds_are_components_with_their_own_comments():
    kinds = kind_names()
    submission = submit(order_of((kinds[0], 0), (kinds[2], 2), (kinds[0], 0)))
    small, large = components_of(submission)
    assert submission.components == ((0, 2), (1,))
    assert "--comment=clary:0f3a99c2:pool_0123456789ab:0,2:30" in small
    assert "--comment=clary:0f3a99c2:pool_0123456789ab:1:30" in large
    assert not any(argument.startswith("--gres") for argument in small)
    assert "--gres=gpu:2" in large


def test_hosts_without_gpus_request_none():
    (arguments,) = components_of(submit(order_of((kind_names()[2], 0))))
    assert not any(argument.startswith("--gres") for argument in arguments)


def test_settings_become_options_and_spot_has_its_own_partition():
    tables = {"*": {"account": "lab", "qos": "high", "reservation": "r1", "spot_partition": "spot"}}
    kind = kind_names(tables)[2]
    (arguments,) = components_of(submit(order_of((kind, 2)), tables))
    assert {"--account=lab", "--qos=high", "--reservation=r1", "--partition=train"} <= set(arguments)
    (arguments,) = components_of(submit(order_of((kind, 2), is_spot=True), tables))
    assert "--partition=spot" in arguments
    assert "--partition=train" not in arguments


def test_hosts_without_a_kind_are_left_to_slurm():
    tables = {"*": {"partition": "train", "constraint": "a10"}}
    (arguments,) = components_of(submit(order_of(("", 1)), tables))
    assert {"--mincpus=3", "--gres=gpu:1", "--partition=train", "--constraint=a10"} <= set(arguments)


@pytest.mark.parametrize("job_name", ["--wrap=id", "a b", "", "x" * 200, "a\nb", "-n5"])
def test_names_with_special_characters_are_replaced_by_the_tag(job_name):
    (arguments,) = components_of(submit(order_of(("", 0), job_name=job_name)))
    assert "--job-name=pool_0123456789ab" in arguments


def test_a_partition_with_a_shorter_time_limit_is_reported():
    submission = submit(order_of(("", 0), limit_s=3 * 86400))
    assert "--time=2880" in submission.arguments
    assert submission.remark == "partition train allows 2880 of the 4322 minutes that the job may need"
    submission = submit(order_of(("", 0), limit_s=3 * 86400), {"*": {"partition": "train,spot"}})
    assert "--time=4322" in submission.arguments
    assert submission.remark == ""


def test_a_missing_kind_is_named():
    with pytest.raises(EngineError, match=r"algo-1 was to have a node of kind old-1cpu.*there are train-4cpu-"):
        submit(order_of(("old-1cpu", 0)))
