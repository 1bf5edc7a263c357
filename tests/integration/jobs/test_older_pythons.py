"""Programs on Python 3.10: all parts of Clary in jobs work; on older versions messages name the missing features.

A real Python 3.10 imports every module, with fake frameworks in place of missing ones, and reduces with the compiled
core. Tests with torch run on two ranks in the environment of training programs, whose newer Python hides the features
that 3.10 lacks (`pretended_python_310`). CLARY_TEST_TRAIN_PYTHON names another interpreter with torch, for example a
real 3.10.
"""

import ast
import json
import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from collective_groups import RankProcesses
from older_pythons import python
from torch_ranks import ROOT, assert_passed, names

from clary.agent.environments.train_library import library_folder, write_train_library
from clary.agent.launchers.shim_files import RANK_SHIM, SHIMS_FOLDER
from clary.contract.ml_tree import MlTree
from clary.train._native import core

HERE = Path(__file__).parent
PROGRAM = HERE / "older_python_program.py"
LIMIT_S = 120
REFUSED = {  # modules whose import says what to use in their place
    f"smdebug.profiler.{name}" for name in ("algorithm_metrics_reader", "analysis", "system_metrics_reader")
}
SHIMS = [*Path(SHIMS_FOLDER).glob("*.py"), ROOT / "src/clary/agent/zygote/clary_zygote.py"]


@pytest.fixture
def library(tmp_path):
    """The folder on a job's PYTHONPATH."""
    tree = MlTree(tmp_path / "ml")
    write_train_library(tree)
    return library_folder(tree)


def run(interpreter, *arguments, **variables):
    return subprocess.run(
        [interpreter, *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.timeout(200)
def test_python_3_10_imports_every_module_that_programs_have(library):
    done = run(python("3.10"), HERE / "importing_program.py", library, PYTHONPATH=str(library))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told["failures"]) == REFUSED
    assert all("use clary profile-report" in failure for failure in told["failures"].values())
    assert len(told["imported"]) > 250
    assert {"clary.train.parallel.model", "smdebug.pytorch", "clary.contract.launch_plan"} <= set(told["imported"])


@pytest.mark.parametrize("chosen", ["native", "reference"])
def test_ranks_of_python_3_10_reduce(chosen):
    if chosen == "native" and not core.is_available():
        pytest.skip(str(core.unavailable_reason()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    variables = {"CLARY_COLLECTIVE_CORE": chosen, "CLARY_COLLECTIVE_CONNECT_TIMEOUT_S": "30"}
    with RankProcesses(
        "collective_programs.py", "reduce", 2, port=port, python=python("3.10"), environment=variables, hosts=("a", "b")
    ) as ranks:
        assert ranks.results() == [{"total": 3, "whole": True, "mates": 1}] * 2


@pytest.mark.skipif(core.door() is None, reason="_door was not built: Python's headers or a compiler are missing")
def test_the_compiled_core_loads_in_python_3_10(library):
    code = (
        "import array; from clary.train._native import core; from clary.train.collective.buffers import buffer_of\n"
        "numbers = array.array('f', [1, 2]); at = numbers.buffer_info()[0]\n"
        "print(core.door().address_of(numbers) == at, buffer_of(numbers, name='x').address == at)\n"
        "core.door = lambda: None\n"
        "print(buffer_of(numbers, name='x').address == at)"
    )
    done = run(python("3.10"), "-c", code, PYTHONPATH=str(library))
    assert (done.stdout, done.stderr) == ("True True\nTrue\n", "")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10"])
def test_the_shim_starts_ranks_of_older_pythons(version, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.argv[1:], __name__)\nraise SystemExit(int(sys.argv[1]))\n")
    done = run(python(version), RANK_SHIM, script, "3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "['3'] __main__\n", "")


@pytest.mark.parametrize("path", SHIMS, ids=lambda path: path.name)
def test_shims_that_start_programs_parse_as_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("module", ["smdebug.pytorch", "smdistributed.dataparallel", "clary.train.debugger.evaluation"])
def test_an_import_in_python_3_9_fails_with_the_required_version(module, library):
    done = run(python("3.9"), "-c", f"import {module}", PYTHONPATH=str(library))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "needs Python 3.10 or newer, this is 3.9" in last
    assert last.endswith("choose a newer interpreter for the job's environment in settings.toml.")


def test_a_program_on_python_3_9_prints_once_that_nothing_is_recorded(library, tmp_path):
    code = (
        "import subprocess, sys, clary_autoload\n"
        "clary_autoload.register(); clary_autoload.register()\n"
        "print('trains', flush=True)\n"
        "if len(sys.argv) == 1: subprocess.run([sys.executable, __file__, 'again'], check=True)\n"
    )
    script = tmp_path / "train.py"
    script.write_text(code)
    done = run(python("3.9"), script, PYTHONPATH=str(library), CLARY_STEPS_FOLDER=str(tmp_path))
    assert done.stdout == "trains\ntrains\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "clary: steps, profiles and tensors of this program are not recorded: that needs Python 3.10"
    )
    assert run(python("3.9"), script, PYTHONPATH=str(library)).stderr == "", "a program that nobody looks at"


@pytest.fixture(scope="module")
def job_variables():
    """Variables of two ranks of a job, with separate folders that exist as long as the ranks."""
    with tempfile.TemporaryDirectory(prefix="clary-older-python-") as name:
        folder = Path(name)
        write_train_library(MlTree(folder / "ml"))
        for rank in range(2):
            for kind in ("steps", "profiles"):
                (folder / f"{kind}-{rank}").mkdir()
        hook = {
            "LocalPath": str(folder / "tensors"),
            "HookParameters": {"save_interval": "2"},
            "CollectionConfigurations": [{"CollectionName": "gradients"}],
        }
        (folder / "hook.json").write_text(json.dumps(hook))
        library = library_folder(MlTree(folder / "ml"))
        yield {
            "PYTHONPATH": os.pathsep.join(map(str, (HERE / "pretended_python_310", library))),
            "CLARY_STEPS_FOLDER": str(folder / "steps-{rank}"),
            "CLARY_PROFILES_FOLDER": str(folder / "profiles-{rank}"),
            "SMDEBUG_CONFIG_FILE_PATH": str(folder / "hook.json"),
            "CLARY_COLLECTIVE_CORE": "native" if core.is_available() else "reference",
            "CLARY_PARALLEL_TIMEOUT_S": "30",
            "RANK": "{rank}",
        }


@pytest.mark.long(40)
@pytest.mark.timeout(200)
@pytest.mark.xdist_group("older-pythons")
@pytest.mark.parametrize("name", names(PROGRAM))
def test_functions_pass_with_torch_on_two_ranks(name, job_variables):
    assert_passed(PROGRAM, name, 2, **job_variables)
