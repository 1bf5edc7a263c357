"""An interpreter is asked about its packages, and runs nothing that lies in its folder of packages."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from clary.agent.environments import sdk_drivers
from clary.agent.environments.interpreter import inspect_interpreter
from clary.base.errors import ClaryError
from clary.base.hookless_python import hookless_command
from clary.control.engines.interpreters import InterpreterProbe

PLANT = "open({marker!r}, 'a').write(__name__)"


@pytest.fixture
def environment(tmp_path):
    """An environment into which a job has written hooks; `marker` exists if one of them has run."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (library,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    plant = PLANT.format(marker=str(tmp_path / "marker"))
    (library / "a.pth").write_text(f"import os; {plant}\n# {plant}\nimport\tos; {plant}\n{tmp_path}/more\nmissing\n")
    (library / "sitecustomize.py").write_text(plant)
    (library / "usercustomize.py").write_text(plant)
    (tmp_path / "more").mkdir()
    for folder, name in ((library, "torch"), (tmp_path / "more", "xgboost")):
        (folder / f"{name}.py").write_text(plant)
        (folder / f"{name}-1.2.dist-info").mkdir()
        (folder / f"{name}-1.2.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    return tmp_path / "env" / "bin" / "python"


@pytest.fixture
def marker(environment):
    marker = environment.parents[2] / "marker"
    yield marker
    assert not marker.exists(), "a hook has run"


def test_the_planted_hooks_run_in_an_ordinary_start(environment):
    subprocess.run([environment, "-I", "-c", ""], check=True)
    assert (environment.parents[2] / "marker").read_text().count("site") > 1


def test_the_service_asks_for_modules_without_running_hooks(environment, marker):
    found = InterpreterProbe().modules(str(environment))
    assert (found["torch"], found["xgboost"]) == ("1.2", "1.2")


def test_an_agent_asks_for_facts_without_running_hooks(environment, marker):
    facts = inspect_interpreter(str(environment))
    assert facts.distributions == ("torch==1.2", "xgboost==1.2")
    assert facts.prefix == str(environment.parents[1])
    assert facts.is_virtual
    assert facts.site_folders == (f"{facts.prefix}/{facts.library_folder}",)
    assert facts.scripts_folder == str(environment.parent)
    assert os.path.samefile(facts.base_python, Path(sys.base_prefix) / "bin" / f"python{facts.version[:4]}")


def test_an_agent_looks_for_modules_of_drivers_without_running_hooks(environment, marker):
    assert sdk_drivers._missing(str(environment), ["xgboost", "no_such_module"]) == ["no_such_module"]


@pytest.mark.parametrize("name", ["python", "python3"])
def test_an_interpreter_whose_standard_library_a_file_replaces_is_not_asked(environment, marker, name):
    fake = environment.parents[2] / "fake"
    fake.mkdir()
    (fake / "json.py").write_text(f"{PLANT.format(marker=str(marker))}; loads = dumps = None")
    planted = environment.parent / f"{name}._pth"
    planted.write_text(f"{fake}\n{Path(os.__file__).parent}\nimport site\n")
    for ask in (InterpreterProbe().modules, inspect_interpreter):
        with pytest.raises(ClaryError, match=f"{planted} can replace its standard library; remove this file"):
            ask(str(environment.parent / name))
    assert sdk_drivers._missing(str(environment.parent / name), ["no_such_module"]) == []


def test_paths_are_those_of_an_ordinary_start(tmp_path):
    """In an environment without hooks; of the running interpreter, whose own folders may have some."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    ask = (
        "import json, site, sys, sysconfig\n"
        "print(json.dumps([[path for path in sys.path if path], sys.prefix, site.PREFIXES, sysconfig.get_paths()]))"
    )
    for isolated in (True, False):
        plain = [python, *(["-I"] if isolated else []), "-c", ask]
        answers = [
            json.loads(subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout)
            for command in (plain, hookless_command(python, ask, isolated=isolated))
        ]
        assert answers[0] == answers[1]
    assert sysconfig.get_python_version() in answers[0][3]["purelib"]
