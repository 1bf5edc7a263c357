"""Windows of torch.profiler on a GPU, as far as a torch without a GPU can show it."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("profiling_gpu_program.py")


@pytest.mark.timeout(220)  # a busy machine needs this long for the program; the first test waits for all of it
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_profiling_on_gpus(name):
    assert_passed(PROGRAM, name)
