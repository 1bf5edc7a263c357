"""The programs that a ready zygote can become."""

import pytest

from clary.agent.launchers import shim_files
from clary.agent.zygote.interpreter_start import RANK_SHIM, ZYGOTE, start_variables, why_not_fork

PYTHON = "/env/bin/python"
START = {"PYTHONPATH": "/opt/ml/code:/shims", "LANG": "C.UTF-8"}


def why_not(*argv, start=START, **variables):
    environment = {**START, "PATH": "/bin", "RANK": "1", "SM_HPS": "{}", **variables}
    argv = argv or (PYTHON, RANK_SHIM, "train.py")
    return why_not_fork(argv, environment, python=PYTHON, start=start)


def test_the_shim_is_the_one_that_launchers_start():
    assert RANK_SHIM == shim_files.RANK_SHIM


def test_the_zygotes_folder_holds_nothing_that_can_be_imported():
    with open(ZYGOTE, encoding="utf-8") as file:
        compile(file.read(), ZYGOTE, "exec")


@pytest.mark.parametrize("argv", [(), (PYTHON, RANK_SHIM, "-m", "package"), (PYTHON, RANK_SHIM, "train.py", "--x", "")])
def test_ranks_of_the_same_interpreter_can_be_forked(argv):
    assert why_not(*argv) == ""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("/bin/bash", "-c", "train"), "/bin/bash -c is no Python program that Clary starts"),
        ((PYTHON, "train.py"), "is no Python program that Clary starts"),
        ((PYTHON, RANK_SHIM), "is no Python program that Clary starts"),
        ((PYTHON, "-u", RANK_SHIM, "train.py"), "is no Python program that Clary starts"),
        (("/other/python", RANK_SHIM, "train.py"), f"its interpreter is /other/python, and {PYTHON} stands ready"),
        ((PYTHON, RANK_SHIM, "a\0b"), "an argument holds a zero byte"),
    ],
)
def test_other_command_lines_are_executed(argv, words):
    assert words in why_not(*argv)


@pytest.mark.parametrize(
    "name",
    [
        *("PYTHONPATH", "PYTHONHASHSEED", "LD_PRELOAD", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "MKL_THREADING_LAYER"),
        *("KMP_AFFINITY", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "TORCH_LOGS", "LC_ALL"),
        *("LANG", "PYTORCH_CUDA_ALLOC_CONF", "ATEN_CPU_CAPABILITY", "HOME", "TMPDIR"),
        *("CLARY_STEPS_FOLDER", "CLARY_STEPS", "CLARY_CALLS"),  # hooks are installed before the fork
    ],
)
def test_variables_read_at_interpreter_start_have_to_be_equal(name):
    usual = repr(START[name]) if name in START else "not set"
    start = {**START, name: "/other"}
    assert why_not(**{name: "/other"}) == f"{name} is '/other', and {usual} where {PYTHON} stands ready"
    assert why_not(start=start) == f"{name} is {usual}, and '/other' where {PYTHON} stands ready"
    assert why_not(start=start, **{name: "/other"}) == ""


@pytest.mark.parametrize(
    "name", ["RANK", "PATH", "TZ", "NCCL_DEBUG", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_RUN_ID"]
)
def test_variables_read_later_may_differ(name):
    assert why_not(**{name: "other"}) == ""


@pytest.mark.parametrize("path", ["code:/shims", "/code:", ":/code", "."])
def test_paths_that_depend_on_the_working_folder_are_not_guessed(path):
    start = {**START, "PYTHONPATH": path}
    assert why_not(start=start, PYTHONPATH=path) == f"PYTHONPATH={path} depends on the working folder"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SM_HPS": "x" * 131_072}, "the variable SM_HPS is too long for an environment"),
        ({"A=B": "x"}, "the variable 'A=B' cannot be carried"),
        ({"A": "x\0y"}, "the variable 'A' cannot be carried"),
        ({"": "x"}, "the variable '' cannot be carried"),
    ],
)
def test_invalid_programs_are_left_to_exec(variables, words):
    assert words in why_not(**variables)


def test_an_interpreter_gets_no_secrets_of_the_program_that_it_is_modelled_on():
    environment = {**START, "AWS_SECRET_ACCESS_KEY": "s", "CLARY_COLLECTIVE_SECRET": "s", "RANK": "0", "PATH": "/bin"}
    assert start_variables(environment) == START
