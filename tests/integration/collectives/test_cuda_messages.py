"""Messages of CUDA tensors: only the two ranks of a message take part in it."""

from pathlib import Path

import pytest
from torch_ranks import assert_passed, names

PROGRAM = Path(__file__).with_name("cuda_messages_program.py")

pytestmark = pytest.mark.xdist_group("cuda-messages")  # a program runs once per worker


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", names(PROGRAM))
def test_messages_of_cuda_tensors(name: str) -> None:
    assert_passed(PROGRAM, name, 3)
