"""SMP v1 called as public scripts call it, beyond its documentation, and mistakes that scripts make."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("smp_as_called_program.py")
MISTAKES = Path(__file__).with_name("smp_mistakes_program.py")
SILENT = Path(__file__).with_name("smp_silent_program.py")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-as-called")
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_undocumented_calls_on_two_ranks(name: str) -> None:
    assert_passed(PROGRAM, name, 2, **VARIABLES)


@pytest.mark.long(10)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-mistakes")
@pytest.mark.parametrize("name", names(MISTAKES))
def test_mistakes_on_two_ranks(name: str) -> None:
    assert_passed(MISTAKES, name, 2, **VARIABLES)


@pytest.mark.long(38)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-silent")
@pytest.mark.parametrize("name", names(SILENT))
def test_silent_mistakes_on_two_ranks(name: str) -> None:
    assert_passed(SILENT, name, 2, **VARIABLES)
