import platform
import subprocess
import sys

import pytest

from clary.base.errors import EngineError
from clary.control.engines import interpreters
from clary.control.engines.interpreters import InterpreterProbe

OWN = {"python": platform.python_version()}


def write_interpreter(path, package_folder):
    """Write a `python` that sees an additional folder of packages, as an environment does."""
    environment = path.with_name("environment-of-" + path.name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{package_folder}" exec "{environment}/bin/python" "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_module_is_found_without_being_imported(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "torch.py").write_text("raise SystemExit('imported')")
    metadata = packages / "torch-9.8.7.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7\n")
    python = write_interpreter(tmp_path / "python", packages)
    assert InterpreterProbe().modules(python) == {"torch": "9.8.7", **OWN}


def test_module_without_metadata_has_no_version(tmp_path):
    (tmp_path / "xgboost.py").write_text("")
    assert InterpreterProbe().modules(write_interpreter(tmp_path / "python", tmp_path)) == {"xgboost": "", **OWN}


def test_the_result_is_cached_until_a_package_is_installed(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    python = write_interpreter(tmp_path / "python", packages)
    probe = InterpreterProbe()
    first = probe.modules(python)
    assert first == OWN
    assert probe.modules(python) is first
    (packages / "torch.py").write_text("")
    assert probe.modules(python) == {"torch": "", **OWN}


@pytest.mark.parametrize("content", ["#!/bin/sh\necho no python\n", "#!/bin/sh\nexit 3\n"])
def test_program_that_is_no_python_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "python"
    path.write_text(content)
    path.chmod(0o755)
    with pytest.raises(EngineError, match=str(path)):
        InterpreterProbe().modules(str(path))


def test_missing_interpreter_is_an_error_that_names_it(tmp_path):
    with pytest.raises(EngineError, match="missing"):
        InterpreterProbe().modules(str(tmp_path / "missing"))


def test_candidates_begin_with_the_interpreter_that_runs_clary():
    assert InterpreterProbe().candidates()[0] == sys.executable
    assert InterpreterProbe({"PATH": "/nowhere"}).candidates() == (sys.executable,)


@pytest.mark.parametrize(
    ("spec", "command", "cpu"),
    [
        (object(), "-m pip install torch", "--index-url https://download.pytorch.org/whl/cpu"),
        (None, f"-m uv pip install --python {sys.executable} torch", "--torch-backend cpu"),
    ],
)
def test_pip_and_uv_commands_select_the_build_without_cuda(monkeypatch, spec, command, cpu):
    monkeypatch.setattr(interpreters.importlib.util, "find_spec", lambda name: spec)
    probe = InterpreterProbe()
    assert probe.install_command("torch") == f"{sys.executable} {command}"
    assert probe.cpu_build_option() == cpu
