"""Kinds of nodes, derived from a cluster and settings."""

from clary.control.engines.cluster.node_kinds import counts
from clary.control.engines.slurm.kinds import kinds_of, why_without_nodes
from clary.control.engines.slurm.node_rows import read_nodes

NODES = read_nodes(
    "\n".join(
        [
            "g1|idle|64|500000|gpu:a100:8(S:0-1)|a100,ib|gpu|infinite|none",
            "g2|allocated|64|500000|gpu:a100:8(S:0-1)|a100,ib|gpu|infinite|none",
            "g3|idle|32|250000|gpu:v100:4|v100|gpu|infinite|none",
            "c1|idle|16|64000|(null)|(null)|cpu*|1-00:00:00|none",
            "c2|down*|16|64000|(null)|(null)|cpu*|1-00:00:00|gone",
        ]
    )
)


def table(kinds):
    return [(kind.shown.num_cpus, kind.shown.num_gpus, kind.shown.num_nodes, kind.shown.num_free) for kind in kinds]


def test_without_settings_the_default_partition_serves():
    (kind,) = kinds_of(NODES, {})
    assert (kind.partition, kind.constraint, kind.gres_option) == ("cpu", "", "")
    assert table([kind]) == [(16, 0, 2, 1)]
    assert kind.shown.maps_to == "partition cpu, 16 CPUs, 62 GiB"


def test_types_without_their_own_table_use_the_table_for_all():
    tables = {
        "ml.p4d.24xlarge": {"partition": "gpu", "constraint": "a100", "gres": "gpu:a100:8"},
        "ml.p4de.24xlarge": {"partition": "gpu", "constraint": "a100", "gres": "gpu:a100:8"},
        "ml.p3.8xlarge": {"partition": "gpu", "gres": "gpu:v100:4"},
        "*": {"account": "lab"},
    }
    kinds = kinds_of(NODES, tables)
    assert table(kinds) == [(16, 0, 2, 1), (32, 4, 1, 1), (64, 8, 2, 1)]
    assert [kind.shown.instance_types for kind in kinds] == [
        (),
        ("ml.p3.8xlarge",),
        ("ml.p4d.24xlarge", "ml.p4de.24xlarge"),
    ]
    assert all(kind.options["account"] == "lab" for kind in kinds)
    assert kinds[2].shown.maps_to == "partition gpu, 64 CPUs, 488 GiB, account lab, constraint a100, gres gpu:a100:8"


def test_kinds_of_one_partition_differ_by_features_and_resources():
    kinds = kinds_of(NODES, {"*": {"partition": "gpu,cpu"}})
    assert [(kind.constraint, kind.gres_option) for kind in kinds] == [
        ("", ""),
        ("v100", "gpu:v100:4"),
        ("a100&ib", "gpu:a100:8"),
    ]
    assert len({kind.name for kind in kinds}) == 3


def test_a_node_that_two_tables_select_is_counted_once():
    kinds = [kind.shown for kind in kinds_of(NODES, {"ml.a": {"partition": "gpu"}, "*": {"partition": "gpu,cpu"}})]
    assert [kind.num_nodes for kind in kinds] == [2, 1, 1, 2, 2]
    assert sum(count for _, count in counts(kinds)) == 5


def test_names_are_stable_while_only_states_of_nodes_change():
    before = kinds_of(NODES, {"*": {"partition": "gpu"}})
    text = "g1|draining|64|500000|gpu:a100:8(S:0-1)|a100,ib|gpu|infinite|why\n"
    text += "g3|allocated|32|250000|gpu:v100:4|v100|gpu|infinite|none"
    after = kinds_of(read_nodes(text), {"*": {"partition": "gpu"}})
    assert [kind.name for kind in before] == [kind.name for kind in after]
    assert table(after) == [(32, 4, 1, 0), (64, 8, 1, 0)]


def test_a_host_may_get_a_part_of_the_gpus_of_a_node():
    (kind,) = kinds_of(NODES, {"*": {"partition": "gpu", "gres": "gpu:a100:2"}})
    assert (kind.shown.num_gpus, kind.gres_option) == (2, "gpu:a100:2")


def test_constraints_match_all_or_any_feature_and_other_forms_are_left_to_slurm():
    def names(constraint):
        return len(kinds_of(NODES, {"*": {"partition": "gpu", "constraint": constraint}}))

    assert [names(text) for text in ("a100&ib", "v100&ib", "v100|ib", "[a100|v100]", "a100*2&v100*1")] == [
        1,
        0,
        2,
        2,
        2,
    ]


def test_a_table_that_selects_no_node_is_named_with_what_is_wrong():
    tables = {
        "ml.a": {"partition": "gpuu"},
        "ml.b": {"constraint": "h100"},
        "ml.c": {"partition": "cpu", "spot_partition": "preempt"},
        "*": {"partition": "gpu"},
    }
    assert why_without_nodes(NODES, tables) == (
        '[slurm."ml.a"] selects no node: no partition gpuu has nodes; there are cpu, gpu',
        '[slurm."ml.b"] selects no node: none of partition gpu has its constraint h100',
        '[slurm."ml.c"]: no spot_partition preempt has nodes; there are cpu, gpu',
    )
    assert why_without_nodes(NODES, {}) == ()
    (alone,) = why_without_nodes(NODES, {"*": {"partition": "gpuu", "constraint": "h100"}})
    assert alone.startswith('[slurm."*"] selects no node: no partition gpuu')


def test_nodes_that_get_no_job_are_named_with_slurm_s_reason():
    (kind,) = kinds_of(NODES, {})
    assert kind.shown.out_of_use == "c2 is down*: gone"
    assert [kind.shown.out_of_use for kind in kinds_of(NODES, {"*": {"partition": "gpu"}})] == ["", ""]
