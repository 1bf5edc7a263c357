"""SMP v1 on 2 and 4 real ranks: tensor groups, shards, spread optimizer state, memory options, and combinations."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_axes_program.py")
NEED_FOUR = {
    "test_a_tensor_group_in_a_pipeline_trains_as_one_process_does",
    "test_a_transformer_of_tensor_groups_in_a_pipeline",
    "test_shards_of_tensor_groups_train_as_one_process_does",
}
CASES = [(name, size) for size in (2, 4) for name in names(PROGRAM) if size == 4 or name not in NEED_FOUR]


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-axes")
@pytest.mark.sweep("size")
@pytest.mark.parametrize(("name", "size"), CASES)
@pytest.mark.long
def test_axes_on_two_and_four_ranks(name: str, size: int) -> None:
    assert_passed(PROGRAM, name, size, **VARIABLES)
