"""`sagemaker_training` and `sagemaker_containers`: imports of scripts, installed packages, reasons of refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from needs import python_of

ROOT = Path(__file__).resolve().parents[3]
COMPAT = ROOT / "src/clary/compat"
# As the scripts of scikit-learn in AWS's documentation begin.
OF_SCIKIT_LEARN = (
    "from sagemaker_containers.beta.framework import content_types, encoders, env, modules, transformer, worker\n"
)


def run(code: str, *, path: tuple[Path, ...] = (COMPAT,), python: str = sys.executable, **variables: str) -> str:
    """Run code with these folders on PYTHONPATH; return its output."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(map(str, path)), **variables}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def failure(code: str) -> str:
    """Run code that fails; return the last line of its trace."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(COMPAT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_one_module_is_imported_under_every_form():
    code = (
        "import sagemaker_training.environment\n"
        "from sagemaker_training import environment\n"
        "from sagemaker_training.environment import Environment\n"
        "from sagemaker_containers.beta.framework import env\n"
        "import sagemaker_containers.beta.framework as framework\n"
        "print(sagemaker_training.environment is environment is env is framework.env)\n"
        "print(environment.Environment is Environment)"
    )
    assert run(code) == "True\nTrue"


def test_scripts_of_scikit_learn_import_the_parts_of_endpoints_and_may_not_use_them():
    assert run(OF_SCIKIT_LEARN + "print(content_types.CSV, hasattr(worker, 'Response'))") == "text/csv False"
    assert failure(OF_SCIKIT_LEARN + "worker.Response('x', mimetype='text/csv')") == (
        "AttributeError: sagemaker_containers.beta.framework.worker.Response belongs to endpoints, and Clary only "
        "trains: use it in functions that an endpoint calls (input_fn, output_fn and the like), not in the training"
    )
    assert "ServingEnv belongs to endpoints" in failure(OF_SCIKIT_LEARN + "env.ServingEnv()")


@pytest.mark.parametrize(
    "code",
    [
        "from sagemaker_training import entry_point; entry_point.run",
        "import sagemaker_training.entry_point",
        "from sagemaker_training.entry_point import run",
        "from sagemaker_training import record_pb2",
        "from sagemaker_training import encoders; encoders.array_to_recordio_protobuf([1])",
        "from sagemaker_training import files; files.s3_download('s3://b/k', 'file')",
    ],
)
def test_what_is_not_offered_says_so_and_what_to_do(code):
    line = failure(code)
    assert "sagemaker_training." in line
    assert "is a part of AWS's containers that Clary does not have: write sagemaker-training into" in line


@pytest.mark.parametrize(
    "code",
    [
        "from sagemaker_containers import entry_point; entry_point.run",
        "from sagemaker_containers import _env",
        "import sagemaker_containers.beta.other",
        "from sagemaker_containers.beta.framework import modules; modules.import_module('s3://b/k')",
    ],
)
def test_parts_of_the_older_containers_say_which_pythons_have_them(code):
    assert "write sagemaker-containers (for Python 3.9 and older) into the job's requirements.txt" in failure(code)


def test_stand_ins_can_be_copied_and_shown():
    code = f"{OF_SCIKIT_LEARN}import copy, pickle; print(copy.copy(worker), len(pickle.dumps(modules)) > 0)"
    assert "worker belongs to endpoints" in run(code)


def test_a_script_for_several_hosts_may_wait_until_their_names_are_known():
    code = "from sagemaker_containers import entry_point; print(entry_point._wait_hostname_resolution())"
    assert run(code) == "None"


def test_the_size_of_smddps_buckets_can_be_set_without_effect():
    code = "import sys; sys.stderr = sys.stdout; import smddpcommon as hm; hm.setBucketSize(25 * 1024 * 1024)"
    assert run(code).startswith("clary: smddpcommon.setBucketSize(26214400) has no effect")


@pytest.mark.parametrize(
    "package", ["sagemaker_training", "sagemaker_containers", "sagemaker_xgboost_container", "smddpcommon"]
)
def test_an_installed_package_takes_the_place_of_ours(package, tmp_path):
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text("origin = 'theirs'\n")
    (folder / "entry_point.py").write_text("origin = 'theirs too'\n")
    code = (
        f"import {package}; from {package} import entry_point as e; print({package}.origin, e.origin)\n"
        f"try:\n    import {package}.nothing\nexcept ModuleNotFoundError as error: print(error)"
    )
    expected = f"theirs theirs too\nNo module named '{package}.nothing'"
    assert run(code, path=(COMPAT, tmp_path)) == expected


@pytest.mark.needs("toolkit")
def test_the_toolkit_itself_works_where_it_is_installed():
    code = (
        "import sagemaker_training, sagemaker_pytorch_container.training\n"
        "from sagemaker_training import entry_point, trainer; print(sagemaker_training.__file__)"
    )
    found = run(code, python=str(python_of("toolkit")), SAGEMAKER_BASE_DIR="/nonexistent-but-told", HOME="/tmp")
    assert "site-packages" in found


def test_dictionaries_become_arguments_and_variables():
    code = (
        "import json; from sagemaker_training import mapping as m\n"
        "values = {'b': {'y': 1, 'x': None}, 'name': [1, 'a'], 'none': None, 'raw': b'x'}\n"
        "print(json.dumps([m.to_cmd_args(values), m.to_env_vars(values)]))\n"
        "print(m.split_by_criteria({'a': 1, 'sm_b': 2, 'c': 3}, keys=['a'], prefix='sm_').included)"
    )
    first, second = run(code).splitlines()
    arguments = ["-b", "x=None,y=1", "--name", "[1, 'a']", "--none", "", "--raw", "x"]
    variables = {"SM_B": '{"x":null,"y":1}', "SM_NAME": '[1,"a"]', "SM_NONE": "", "SM_RAW": "x"}
    assert json.loads(first) == [arguments, variables]
    assert second == "{'a': 1, 'sm_b': 2}"


def test_files_of_the_output_folder_are_written_once(tmp_path):
    (tmp_path / "output").mkdir()
    code = (
        "import os; from sagemaker_training import files as f\n"
        "f.write_failure_file('first'); f.write_failure_file('second'); f.write_success_file()\n"
        "with f.tmpdir() as folder: f.write_file(folder + '/a', '[1]'); print(f.read_json(folder + '/a'))\n"
        "print(os.path.exists(folder), f.read_file(os.environ['SAGEMAKER_BASE_DIR'] + '/output/failure'))"
    )
    assert run(code, SAGEMAKER_BASE_DIR=str(tmp_path)) == "[1]\nFalse first"
    assert (tmp_path / "output" / "success").read_text() == ""


ENCODERS = """
import json, sys
from sagemaker_training import encoders, errors
import numpy as np
said = []
def note(function, *arguments, **named):
    try:
        value = function(*arguments, **named)
    except errors.ClientError as error:
        value = "ClientError"
    except errors.UnsupportedFormatError as error:
        value = "UnsupportedFormatError"
    if isinstance(value, np.ndarray):
        value = [str(value.dtype), value.tolist()]
    said.append(value.hex() if isinstance(value, bytes) else value)
for kind in ("application/json", "text/csv", "application/x-npy", "text/plain"):
    note(encoders.encode, [[1.5, 2], [3, 4]], kind)
    note(encoders.encode, [1, 2], kind)
    note(encoders.encode, np.float32([1, 2]), kind)
for text in ("1,2\\n3,4\\n", "5", "a,b\\n", "1,2.5\\n"):
    note(encoders.decode, text, "text/csv")
    note(encoders.csv_to_numpy, text, dtype="int64")
note(encoders.decode, "[1, 2.5]", "application/json")
note(encoders.json_to_numpy, "[1, 2]", dtype="float32")
note(encoders.decode, encoders.array_to_npy([7]), "application/x-npy")
note(encoders.decode, "x", "text/plain")
print(json.dumps(said))
"""


@pytest.mark.needs("toolkit")
def test_encoders_give_what_those_of_the_toolkit_give(tmp_path):
    python = str(python_of("toolkit"))
    theirs = run(ENCODERS, path=(), python=python, SAGEMAKER_BASE_DIR=str(tmp_path))
    # NumPy alone: an environment with the toolkit has it take the place of ours.
    site = Path(run("import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])", path=(), python=python))
    numpy = tmp_path / "numpy only"
    numpy.mkdir()
    for folder in site.glob("numpy*"):
        (numpy / folder.name).symlink_to(folder)
    assert run(ENCODERS, path=(COMPAT, numpy)) == theirs
    for text in ("1,2\n3\n", '1,"2'):  # the toolkit fails with an UnboundLocalError for the first
        code = (
            "from sagemaker_training import encoders, errors\n"
            f"try: encoders.csv_to_numpy({text!r})\nexcept errors.ClientError as error: print(error)"
        )
        assert run(code, path=(COMPAT, numpy)).startswith("Error while decoding csv: ")
