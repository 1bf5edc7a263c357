"""SMP v1 on TensorFlow 2, on real ranks: losses, partitions, checkpoints, refusals; Keras 3 and legacy Keras."""

from pathlib import Path

import pytest
from framework_jobs import digits_file
from tensorflow_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_tensorflow_program.py")
FOUR_PROGRAM = Path(__file__).with_name("smp_tensorflow_four_program.py")

pytestmark = [pytest.mark.needs("tensorflow", "sdk2"), pytest.mark.timeout(500)]


@pytest.mark.xdist_group("smp-tensorflow")
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long(200)
def test_functions_pass_on_two_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 2, CLARY_TEST_DIGITS=str(digits_file()))


@pytest.mark.long(95)
@pytest.mark.xdist_group("smp-tensorflow-legacy")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_functions_pass_on_two_ranks_with_legacy_keras(name: str) -> None:
    assert_passed(PROGRAM, name, 2, CLARY_TEST_DIGITS=str(digits_file()), TF_USE_LEGACY_KERAS="1")


@pytest.mark.long(300)
@pytest.mark.xdist_group("smp-tensorflow-four")
@pytest.mark.parametrize("name", names(FOUR_PROGRAM))
def test_functions_pass_on_four_ranks(name: str) -> None:
    assert_passed(FOUR_PROGRAM, name, 4, CLARY_TEST_DIGITS=str(digits_file()))
