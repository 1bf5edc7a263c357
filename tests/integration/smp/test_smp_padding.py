"""Models of transformers over two tensor ranks of which only one has padded rows: this case once hung."""

from pathlib import Path

import pytest
from smp_variables import VARIABLES
from torch_ranks import assert_passed, names

from needs import python_of

PROGRAM = Path(__file__).with_name("smp_padding_program.py")
PYTHON = python_of("hf")

pytestmark = pytest.mark.needs("hf")


@pytest.mark.timeout(200)
@pytest.mark.xdist_group("smp-padding")
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_padded_rows_on_one_of_two_tensor_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_ranks.TRAIN_PYTHON", PYTHON)
    assert_passed(PROGRAM, name, 2, **VARIABLES)
