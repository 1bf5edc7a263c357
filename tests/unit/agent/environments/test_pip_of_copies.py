"""pip in copies of an environment made by uv: it installs into the copy and cannot change the original."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clary.agent.environments.clone import clone_environment
from clary.agent.environments.interpreter import inspect_interpreter

UV = str(Path(sys.executable).with_name("uv"))


def write_wheel(folder: Path, name: str, version: str) -> None:
    base = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{base}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{base}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{base}/RECORD", f"{name}.py,,\n{base}/METADATA,,\n{base}/WHEEL,,\n{base}/RECORD,,\n")


def run(*words: object) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "PYTHON"))}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=kept, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of an environment, without compiled modules."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """Return an environment of uv with pip and version 1 of a package."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1", "2"):
        write_wheel(wheels, "shared", version)
    write_wheel(wheels, "further", "1")
    folder = tmp_path / "original"
    run(UV, "venv", "--no-project", "--no-config", "--offline", "--python", sys.executable, folder)
    run(folder / "bin" / "python", "-I", "-m", "ensurepip", "--default-pip")
    run(folder / "bin" / "pip", "install", "--no-index", "--find-links", wheels, "shared==1")
    return folder


@pytest.mark.parametrize("shares_files", [True, False])
def test_pip_of_a_copy_installs_into_the_copy_alone(tmp_path: Path, original: Path, shares_files: bool) -> None:
    before = content(original)
    facts = inspect_interpreter(str(original / "bin" / "python"))
    python = clone_environment(facts, tmp_path / "copy", shares_files=shares_files)
    options = ("install", "--no-index", "--find-links", tmp_path / "wheels")
    run(python, "-m", "pip", *options, "-U", "shared")
    run(python.with_name("pip3"), *options, "further")
    told = run(python, "-I", "-c", "import further, pip, shared; print(shared.VERSION, further.__file__, pip.__file__)")
    version, *files = told.split()
    assert version == "2"
    assert all(file.startswith(f"{tmp_path}/copy/") for file in files)
    run(python, "-m", "pip", "uninstall", "-y", "shared", "pip")
    assert content(original) == before
    assert run(original / "bin" / "python", "-c", "import shared; print(shared.VERSION)") == "1\n"
