"""SMP v1 trains as one process does, with every combination of degrees on 2, 4 and 8 real ranks."""

from pathlib import Path

import pytest
from smp_eight_table import COMBINATIONS, combinations
from smp_variables import VARIABLES
from torch_ranks import names, outcomes

PROGRAM = Path(__file__).with_name("smp_eight_program.py")
AXES = {
    "test_pipelines": ("pp",),
    "test_tensor_groups": ("tp",),
    "test_replicas": ("rdp",),
    "test_shards": ("sdp",),
    "test_pipelines_of_tensor_groups": ("pp", "tp"),
    "test_replicated_pipelines": ("pp", "rdp"),
    "test_replicated_tensor_groups": ("tp", "rdp"),
    "test_sharded_tensor_groups": ("tp", "sdp"),
    "test_all_at_once": ("pp", "tp", "rdp"),
}
SIZES = (2, 4, 8)
GANG_LIMIT_S = 800.0  # for all rows of one number of ranks; the rows of 8 ranks take 4 minutes on two busy cores
POWERS = (1, 2, 4, 8)
HARD_MODELS = {"winding", "gpt", "lmhead", "gpt-2M"}
VALUES = {
    "spread": {True, False},
    "prescaled": {True, False},
    "pipeline": {"interleaved", "simple"},
    "optimize": {"memory", "speed"},
    "placement": {"cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"},
    "optimizer": {"sgd", "adamw"},
    "model": HARD_MODELS,
}


def counts(option: str, one) -> bool:
    """Whether an option makes a difference in a row."""
    return {
        "spread": one.rdp * one.tp > 1 and one.sdp == 1,
        "prescaled": one.tp > 1,
        "pipeline": one.pp > 1,
        "optimize": one.tp > 1 or one.pp > 1,
        "placement": len(one.axes) > 1,
    }.get(option, True)


def values_to_meet(option: str, axis: str) -> set:
    """Return the values of an option that SMP allows with an axis, such as only prescaled batches with sdp."""
    if axis != "sdp":
        return VALUES[option]
    fixed = {"spread": set(), "prescaled": {True}, "pipeline": set(), "placement": {"DPT", "PDT", "PTD", "TPD"}}
    return fixed.get(option, VALUES[option])


def test_the_table_has_every_combination_of_degrees():
    for size in SIZES:
        products = {(pp, tp, size // (pp * tp)) for pp in POWERS for tp in POWERS if pp * tp <= size}
        assert {one.degrees for one in COMBINATIONS if one.size == size} == products
        for pp, tp, rdp in products:
            rows = [one for one in COMBINATIONS if one.size == size and one.degrees == (pp, tp, rdp)]
            degrees = {one for one in POWERS if rdp % one == 0} if pp == 1 else {1}
            assert {one.sdp for one in rows} == degrees, (size, pp, tp, rdp)
            for degree in degrees:
                models = {one.model for one in rows if one.sdp == degree}
                assert models & HARD_MODELS, (size, pp, tp, rdp, degree)
            if rdp * tp > 1:
                assert {one.spread for one in rows} == {True, False}, (size, pp, tp, rdp)


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("axis", ["pp", "tp", "rdp", "sdp"])
def test_every_value_of_an_option_runs_with_every_axis_that_allows_it(option: str, axis: str):
    met = {getattr(one, option) for one in COMBINATIONS if axis in one.axes and counts(option, one)}
    assert not values_to_meet(option, axis) - met


def test_the_program_runs_every_row():
    assert set(names(PROGRAM)) == set(AXES)
    run = [one for size in SIZES for axes in AXES.values() for one in combinations(size, *axes)]
    assert len(run) == len(COMBINATIONS)
    assert set(run) == set(COMBINATIONS)


@pytest.mark.timeout(GANG_LIMIT_S + 50)
@pytest.mark.xdist_group("smp-eight")
@pytest.mark.sweep("size")
@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size in SIZES for name, axes in AXES.items() if combinations(size, *axes)]
)
@pytest.mark.long
def test_rows_train_as_one_process_does(size: int, name: str) -> None:
    told = outcomes(PROGRAM, size, GANG_LIMIT_S, **VARIABLES | {"CLARY_PARALLEL_TIMEOUT_S": "60"})[name]
    words = "\n".join(f"rank {rank}: {failure}" for rank, failure in enumerate(told) if failure is not None)
    assert not words, f"{name} on {size} ranks\n{words}"
