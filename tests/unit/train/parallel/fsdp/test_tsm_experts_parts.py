"""Parts of expert parallelism that need one process, and parts without torch."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

from clary.train.parallel.fsdp.experts.configuration import MoEConfig, read_moe_config

PROGRAM = Path(__file__).with_name("tsm_experts_parts_program.py")


@pytest.mark.parametrize("name", names(PROGRAM))
def test_experts_in_one_process(name: str) -> None:
    assert_passed(PROGRAM, name)


def test_defaults_are_those_of_the_documentation() -> None:
    config = read_moe_config(None)
    assert config == MoEConfig(
        smp_moe=True,
        random_seed=12345,
        moe_load_balancing="sinkhorn",
        global_token_shuffle=False,
        moe_all_to_all_dispatcher=True,
        moe_aux_loss_coeff=0.001,
        moe_z_loss_coeff=0.001,
    )
    assert read_moe_config(config) is config


def test_a_dict_is_read_field_by_field() -> None:
    assert read_moe_config({"moe_load_balancing": "none"}) == MoEConfig(moe_load_balancing="none")


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"moe_balance": "none"}, TypeError, "moe_balance is no field"),
        ({"moe_load_balancing": "even"}, ValueError, "'even'; expected one of sinkhorn"),
        ({"moe_z_loss_coeff": -1}, ValueError, "moe_z_loss_coeff is -1"),
        ("none", TypeError, "is a str"),
    ],
)
def test_an_invalid_configuration_is_refused(given: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        read_moe_config(given)
