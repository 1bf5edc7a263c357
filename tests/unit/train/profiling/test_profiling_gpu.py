"""Windows of torch.profiler beside a GPU, as far as a torch without one shows it."""

from pathlib import Path

import pytest
from torch_programs import assert_passed, names

PROGRAM = Path(__file__).with_name("profiling_gpu_program.py")


@pytest.mark.timeout(220)  # a program on a busy machine; its first test waits for all of it
@pytest.mark.parametrize("name", names(PROGRAM))
@pytest.mark.long
def test_profiling_on_gpus(name):
    assert_passed(PROGRAM, name)
