"""Environments that match an image, made by the real uv from small packages of these tests."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from clary.base.errors import EngineError
from clary.control.engines import added_environments as environments
from clary.control.engines.added_environments import (
    add_environment,
    added_environments,
    has_pip,
    parse_wish,
    remove_environment,
    requirements_of,
)
from clary.control.engines.images import resolve
from clary.control.engines.interpreters import InterpreterProbe
from clary.control.settings import Settings

UV = str(Path(sys.executable).with_name("uv"))
HERE = f"py{sys.version_info[0]}{sys.version_info[1]}"


def write_wheel(folder, name, version, *, module=None, requires=None, code=""):
    base = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(module or f"{name}.py", code)
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        wheel.writestr(f"{base}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(
            f"{base}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{base}/RECORD", "")


@pytest.fixture
def add(tmp_path):
    """Return a function that adds an environment with packages from a folder: torch, transformers, numpy and pip."""
    for name, version in (("torch", "2.8.1"), ("transformers", "4.49.0"), ("numpy", "2.0.0")):
        write_wheel(tmp_path, name, version)
    write_wheel(tmp_path, "pip", "99.1", module="pip/__main__.py")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    (tmp_path / "index").mkdir()
    index = (tmp_path / "index").as_uri()  # an empty index: no package comes from elsewhere
    variables = {**kept, "UV_DEFAULT_INDEX": index, "UV_FIND_LINKS": str(tmp_path), "UV_OFFLINE": "1"}

    def run(text, pyenv=tmp_path / "no-pyenv", config=tmp_path / "no-config", **options):
        name, wanted = parse_wish(text)
        said = []
        of_uv = {**variables, "PYENV_ROOT": str(pyenv), "XDG_CONFIG_HOME": str(config)}
        add_environment(tmp_path / "home", name, wanted, uv=UV, variables=of_uv, say=said.append, **options)
        return said

    return run


@pytest.mark.parametrize(
    ("text", "name", "requirements"),
    [
        ("pytorch:2.8-py312", "pytorch-2.8-py312", ("torch==2.8.*", "numpy")),
        ("pytorch", "pytorch", ("torch", "numpy")),
        ("mxnet:1.9-py311", "mxnet-1.9-py311", ("mxnet==1.9.*", "numpy<1.24")),
        ("sklearn:1.5", "sklearn-1.5", ("scikit-learn==1.5.*", "numpy")),
        (
            "763104351884.dkr.ecr.us-west-2.amazonaws.com/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311",
            "huggingface-pytorch-training-2.5.1-transformers4.49.0-gpu-py311",
            ("torch==2.5.1", "transformers==4.49.0", "numpy"),
        ),
    ],
)
def test_a_specification_names_an_environment_and_its_packages(text, name, requirements):
    named, wanted = parse_wish(text)
    assert (named, requirements_of(wanted)) == (name, requirements)


@pytest.mark.parametrize("text", ["", "nonsense:1", "sagemaker-base-python:1", "pytorch:../x", "pytorch:" + "1" * 200])
def test_an_invalid_specification_is_refused(text):
    with pytest.raises(EngineError):
        parse_wish(text)


def test_an_added_environment_stands_for_images_of_its_versions(add, tmp_path):
    home = tmp_path / "home"
    add(f"huggingface-pytorch:2.8-transformers4.49-{HERE}")
    (made,) = added_environments(home)
    environment, notes = resolve(
        f"huggingface-pytorch-training:2.8.1-transformers4.49.0-gpu-{HERE}-cu128",
        Settings(),
        InterpreterProbe(home=home),
    )
    assert (environment.name, environment.python, notes) == (made.name, made.python, ())
    assert add(f"huggingface-pytorch:2.8-transformers4.49-{HERE}") == [f"{made.folder} stands already"]
    remove_environment(home, made.name)
    assert added_environments(home) == ()
    with pytest.raises(EngineError, match="there are: none"):
        remove_environment(home, made.name)


def test_an_added_environment_has_pip_as_images_have(add, tmp_path):
    add(f"pytorch:2.8-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    assert has_pip(made.folder)
    assert made.requirements == ("torch==2.8.*", "numpy")
    # an environment of an older release, without pip
    shutil.rmtree(next(made.folder.glob("lib/python*/site-packages/pip")))
    shutil.rmtree(next(made.folder.glob("lib/python*/site-packages/pip-99.1.dist-info")))
    inode = made.folder.stat().st_ino
    assert add(f"pytorch:2.8-{HERE}")[0] == f"{made.folder} stands already"
    assert has_pip(made.folder)
    assert made.folder.stat().st_ino == inode


def test_an_added_environment_has_the_companions_that_the_index_has_and_names_the_others(add, tmp_path):
    for name in ("boto3", "datasets", "evaluate", "accelerate"):
        write_wheel(tmp_path, name, "3.0")
    write_wheel(tmp_path, "torch", "2.9.1")
    said = add(f"huggingface-pytorch:2.8-transformers4.49-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    found = {path.name.partition("-")[0] for path in made.folder.rglob("site-packages/*.dist-info")}
    assert {"boto3", "datasets", "evaluate", "accelerate", "torch"} <= found
    assert made.requirements == ("torch==2.8.*", "transformers==4.49.*", "numpy")
    assert said[-3].startswith("the package index has no scikit-learn for this environment, which the image has: ")
    assert said[-2] == (
        "not included, although the image has them: torchvision, torchaudio, pandas; --with torchvision adds one"
    )
    assert sorted(path.name for path in made.folder.iterdir() if path.suffix in (".txt", ".json")) == ["clary.json"]


def test_a_companion_that_would_change_the_framework_is_left_out(add, tmp_path):
    write_wheel(tmp_path, "numpy", "1.0.0")
    write_wheel(tmp_path, "boto3", "1.0", requires="numpy<2")
    said = add(f"pytorch:2.8-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    assert list(made.folder.rglob("numpy-2.0.0.dist-info"))
    assert not list(made.folder.rglob("boto3*"))
    assert any(line.startswith("the package index has no boto3 for this environment") for line in said)


def installed(folder):
    return {path.name.removesuffix(".dist-info") for path in folder.rglob("site-packages/*.dist-info")}


def test_a_companion_decides_the_version_of_what_the_framework_needs_of_any_version(add, tmp_path):
    write_wheel(tmp_path, "torch", "2.8.1", requires="fsspec")
    for version in ("1.0", "2.0"):
        write_wheel(tmp_path, "fsspec", version)
    write_wheel(tmp_path, "datasets", "2.14.4", requires="fsspec")
    write_wheel(tmp_path, "datasets", "3.1", requires="fsspec<2")
    add(f"huggingface-pytorch:2.8-transformers4.49-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    assert {"torch-2.8.1", "fsspec-1.0", "datasets-3.1"} <= installed(made.folder)


def test_a_companion_that_only_old_broken_releases_of_another_would_satisfy_is_left_out(add, tmp_path):
    write_wheel(tmp_path, "datasets", "2.14.4")
    write_wheel(tmp_path, "evaluate", "1.0", requires="datasets")
    write_wheel(tmp_path, "boto3", "1.0")
    said = add(f"huggingface-pytorch:2.8-transformers4.49-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    found = installed(made.folder)
    assert "boto3-1.0" in found
    assert not {"datasets-2.14.4", "evaluate-1.0"} & found
    assert any("no datasets>=3 and no evaluate and " in line for line in said)


def test_a_companion_that_fails_to_import_is_removed_and_named(add, tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "IMPORT_TIMEOUT_S", 3.0)
    broken = "raise AttributeError(\"module 'pyarrow' has no attribute 'PyExtensionType'\")"
    write_wheel(tmp_path, "datasets", "3.0", code=broken)
    write_wheel(tmp_path, "evaluate", "1.0", requires="datasets", code="import datasets")
    write_wheel(tmp_path, "accelerate", "1.0", code="import time; time.sleep(60)")
    write_wheel(tmp_path, "scikit_learn", "1.0", module="sklearn.py")
    write_wheel(tmp_path, "boto3", "1.0")
    said = add(f"huggingface-pytorch:2.8-transformers4.49-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    assert installed(made.folder) >= {"boto3-1.0", "scikit_learn-1.0", "torch-2.8.1", "transformers-4.49.0"}
    assert not {"datasets-3.0", "evaluate-1.0", "accelerate-1.0"} & installed(made.folder)
    words = [line for line in said if " was removed, because " in line]
    assert [line.partition(" ")[0] for line in words] == ["datasets", "evaluate", "accelerate"]
    assert "AttributeError: module 'pyarrow' has no attribute 'PyExtensionType'" in words[0]
    assert "did not end within 3 s" in words[2]


def test_what_the_framework_or_the_owner_brought_stays_although_it_fails_to_import(add, tmp_path):
    write_wheel(tmp_path, "datasets", "2.14.4", code="raise ImportError('broken')")
    write_wheel(tmp_path, "torch", "2.8.1", requires="boto3")
    write_wheel(tmp_path, "boto3", "1.0", code="raise ImportError('broken')")
    said = add(f"huggingface-pytorch:2.8-transformers4.49-{HERE}", further=["datasets==2.14.4"])
    (made,) = added_environments(tmp_path / "home")
    assert {"datasets-2.14.4", "boto3-1.0"} <= installed(made.folder)
    assert not any(" was removed" in line for line in said)
    for name in ("datasets", "boto3"):
        assert f"{name} fails to import in this environment: ImportError: broken" in said


def test_what_was_asked_for_is_not_named_as_missing(add, tmp_path):
    write_wheel(tmp_path, "torchvision", "0.23")
    said = add(f"pytorch:2.8-{HERE}", further=["torchvision"])
    assert said[-2].startswith("not included, although the image has them: torchaudio, pandas, scikit-learn;")


def test_pip_comes_from_python_if_the_index_has_none_and_its_absence_is_told(add, tmp_path):
    (tmp_path / "pip-99.1-py3-none-any.whl").unlink()
    said = add(f"pytorch:2.8-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    assert "the package index gives no pip: " in "\n".join(said)
    ran = subprocess.run([made.folder / "bin" / "pip", "--version"], capture_output=True, text=True, check=True)
    assert str(made.folder) in ran.stdout
    shutil.rmtree(next(made.folder.glob("lib/python*/site-packages/pip")))
    (made.folder / "bin" / "python").unlink()  # then no Python brings one either
    (made.folder / "bin" / "python").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (made.folder / "bin" / "python").chmod(0o755)
    said = add(f"pytorch:2.8-{HERE}")
    assert said[-1].startswith(f"{made.name} has no pip, because Python brings none either: broken. Jobs of SDK v3's")


def test_modules_are_compiled_at_installation(add, tmp_path):
    add(f"pytorch:2.8-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    compiled = sorted(path.name.partition(".")[0] for path in made.folder.rglob("site-packages/__pycache__/*.pyc"))
    assert [name for name in compiled if not name.startswith("_")] == ["numpy", "torch"]


def test_packages_come_from_the_indexes_of_uvs_configuration_too(add, tmp_path):
    more, config = tmp_path / "more", tmp_path / "config"
    for folder in (more, config / "uv"):
        folder.mkdir(parents=True)
    write_wheel(more, "torch", "2.9.1")
    (config / "uv/uv.toml").write_text(f'[[index]]\nurl = "{more.as_uri()}"\nformat = "flat"\n')
    add(f"pytorch:2.9-{HERE}", config=config)
    (made,) = added_environments(tmp_path / "home")
    assert list(made.folder.rglob("torch-2.9.1.dist-info"))


def test_a_failed_installation_leaves_no_environment(add, tmp_path):
    with pytest.raises(EngineError, match=r"torch==2\.7"):
        add("pytorch:2.7")
    assert added_environments(tmp_path / "home") == ()
    assert not list((tmp_path / "home" / "environments").glob("pytorch*"))


def test_of_interpreters_that_only_pyenv_has_the_newest_release_is_used(add, tmp_path):
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version in (f"{minor}.2", f"{minor}.10", f"{minor}.11rc1", "2.7.18"):
        folder = tmp_path / "pyenv" / "versions" / version / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
    said = add(f"pytorch:2.8-{HERE}", pyenv=tmp_path / "pyenv")
    assert f" --python {tmp_path}/pyenv/versions/{minor}.10/bin/python " in said[0]
    (made,) = added_environments(tmp_path / "home")
    assert Path(made.python).exists()


def test_a_failed_installation_names_the_remedy(add):
    with pytest.raises(EngineError) as error:
        add("pytorch:2.8-py35")
    assert error.value.message.endswith(
        "Put Python 3.5 on PATH or into pyenv, or let uv download it, and run this again."
    )
    with pytest.raises(EngineError) as error:
        add("pytorch:2.7", torch_backend="cpu")
    assert error.value.message.endswith("--torch-backend index takes the package index's.")
    with pytest.raises(EngineError) as error:
        add("sklearn:1.5")
    assert "torch-backend" not in error.value.message


def test_an_incomplete_environment_is_ignored_and_replaced(add, tmp_path):
    add("pytorch:2.8")
    (made,) = added_environments(tmp_path / "home")
    (made.folder / "clary.json").unlink()
    (made.folder / "bin" / "python").unlink()
    assert added_environments(tmp_path / "home") == ()
    add("pytorch:2.8", further=["transformers"])
    (again,) = added_environments(tmp_path / "home")
    assert again.requirements == ("torch==2.8.*", "numpy", "transformers")
    assert Path(again.python).exists()


def is_running(pid) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def wait_until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_killed_command_left_at_work_is_waited_for(add, tmp_path):
    """The program of a command that was killed goes on, and would write into the folder of the next one."""
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\n[ "$1" = pip ] && touch {tmp_path}/works && exec sleep 60\nexec {UV} "$@"\n')
    uv.chmod(0o755)
    name, _ = parse_wish("pytorch:2.8")
    adding = (
        "import pathlib, sys\n"
        "from clary.control.engines.added_environments import add_environment, parse_wish\n"
        f"add_environment(pathlib.Path({str(tmp_path / 'home')!r}), *parse_wish('pytorch:2.8'), uv={str(uv)!r},\n"
        "    variables={'PATH': '/usr/bin:/bin'}, say=print)\n"
    )
    with subprocess.Popen([sys.executable, "-c", adding], stdout=subprocess.DEVNULL) as killed:
        wait_until(lambda: (tmp_path / "works").exists())
        (left,) = (int(pid) for pid in Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split())
        killed.kill()
    try:
        with pytest.raises(EngineError, match=r"is changing pytorch-2\.8, or what a killed one has started still runs"):
            add("pytorch:2.8")
        with pytest.raises(EngineError, match=r"is changing pytorch-2\.8, or what a killed one has started still runs"):
            remove_environment(tmp_path / "home", name)
    finally:
        os.kill(left, signal.SIGKILL)
    wait_until(lambda: not is_running(left))
    add("pytorch:2.8")
    assert [one.name for one in added_environments(tmp_path / "home")] == [name]


def test_what_an_interrupted_command_left_can_be_removed(add, tmp_path):
    home = tmp_path / "home"
    add(f"pytorch:2.8-{HERE}")
    (made,) = added_environments(home)
    (made.folder / "clary.json").unlink()  # removed first by `remove`, written last by `add`
    remove_environment(home, made.name)
    assert list((home / "environments").iterdir()) == []
    for name in ("..", "../environments", "", made.name):
        with pytest.raises(EngineError, match="there are: none"):
            remove_environment(home, name)


def test_an_environment_stands_only_when_its_files_are_on_the_disk(add, tmp_path, monkeypatch):
    """After a power cut the mark must not be there without the packages."""
    ran = []
    real = environments.run_limited

    def noted(command, **options):
        ran.append((list(command), added_environments(tmp_path / "home")))
        return real(command, **options)

    monkeypatch.setattr(environments, "run_limited", noted)
    add(f"pytorch:2.8-{HERE}")
    (made,) = added_environments(tmp_path / "home")
    assert ran[-1] == (["sync", "-f", str(made.folder)], ())


def test_an_environment_whose_files_cannot_be_forced_to_the_disk_is_removed(add, tmp_path, monkeypatch):
    real = environments.run_limited

    def broken(command, **options):
        return real(["false"] if command[0] == "sync" else command, **options)

    monkeypatch.setattr(environments, "run_limited", broken)
    with pytest.raises(EngineError, match="ended with exit code 1"):
        add(f"pytorch:2.8-{HERE}")
    assert not (tmp_path / "home/environments" / f"pytorch-2.8-{HERE}").exists()
