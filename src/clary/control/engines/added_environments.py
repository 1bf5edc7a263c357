"""Python environments that `clary environments add` has made, each in a folder below the state folder.

Where: `interpreters` offers them to `images`; `clary environments` makes, lists and removes them.

    environments/<name>/            the environment
    environments/<name>/clary.json  its requirements; written last: a folder without it is incomplete, and is made again
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clary.base.errors import EngineError, Fault
from clary.base.limited_runs import RunTooLong, run_limited
from clary.control.engines.companions import Companion, companions_of, left_out
from clary.control.engines.image_tags import RULES, Rule, Wanted, rule_for, wanted_by

FOLDER = "environments"
MAKE_TIMEOUT_S = 1800.0  # torch with CUDA is gigabytes in size
IMPORT_TIMEOUT_S = 120.0  # of one companion; some import torch, which takes 14 s from a slow disk
_MARKER = "clary.json"
_CONSTRAINTS = "constraints.txt"  # while an environment is made
_DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}  # modules whose distribution has another name
_NUMPY = {"mxnet": "numpy<1.24"}  # the last release of MXNet, 1.9.1, uses names that numpy 1.24 removed
# Advice after a failed installation of a torch build from another index.
_OTHER_INDEX = "This build of torch comes from PyTorch's own index: --torch-backend index takes the package index's."
# Names of frameworks that are accepted before a version, in addition to the repositories of AWS's images.
_SHORT_NAMES = {
    "pytorch": Rule("", "torch"),
    "torch": Rule("", "torch"),
    "huggingface-pytorch": Rule("", "torch", "transformers"),
    "tensorflow": Rule("", "tensorflow"),
    "huggingface-tensorflow": Rule("", "tensorflow", "transformers"),
    "mxnet": Rule("", "mxnet"),
    "autogluon": Rule("", "autogluon"),
    "xgboost": Rule("", "xgboost"),
    "sklearn": Rule("", "sklearn"),
    "scikit-learn": Rule("", "sklearn"),
}


@dataclass(frozen=True, kw_only=True)
class AddedEnvironment:
    """A complete environment."""

    name: str
    python: str  # path of the interpreter
    requirements: tuple[str, ...]
    folder: Path


def added_environments(home: Path) -> tuple[AddedEnvironment, ...]:
    """Return the complete environments below a state folder, sorted by name."""
    found = []
    for marker in sorted((home / FOLDER).glob(f"*/{_MARKER}")):
        try:
            requirements = tuple(json.loads(marker.read_text())["requirements"])
        except (OSError, ValueError, LookupError, TypeError):
            continue  # the next `add` of this name makes it again
        folder = marker.parent
        python = str(folder / "bin" / "python")
        found.append(AddedEnvironment(name=folder.name, python=python, requirements=requirements, folder=folder))
    return tuple(found)


def parse_wish(text: str) -> tuple[str, Wanted]:
    """Parse `pytorch:2.8-py312` or the name of an AWS image; return the environment's name and wanted packages.

    Raises: EngineError naming the accepted forms.
    """
    image = text.partition("@")[0].rpartition("/")[2]
    repository, _, tag = image.partition(":")
    rule = _SHORT_NAMES.get(repository) or rule_for(repository)
    if rule is None or not rule.module:
        known = ", ".join(sorted({*_SHORT_NAMES, *(one.pattern for one in RULES if "*" not in one.pattern)}))
        raise EngineError(
            f"no framework is known by the name {repository!r}; write FRAMEWORK:VERSION-pyVERSION, such "
            f"as pytorch:2.8-py312, or the name of an AWS image. Known names: {known}",
            fault=Fault.USER,
        )
    name = "-".join(part for part in (repository, tag) if part)
    if not _NAME.fullmatch(name):
        raise EngineError(
            f"{text!r} cannot become the name of a folder: use at most 100 letters, digits and . _ -", fault=Fault.USER
        )
    return name, wanted_by(rule, tag)


def requirements_of(wanted: Wanted) -> tuple[str, ...]:
    """Return pip's requirements: `torch==2.8.*`, further modules, and numpy, which frameworks load."""
    return (
        _requirement(wanted.module, wanted.version),
        *([_requirement(wanted.extra, wanted.extra_version)] if wanted.extra else []),
        _NUMPY.get(wanted.module, "numpy"),
    )


def add_environment(
    home: Path,
    name: str,
    wanted: Wanted,
    *,
    uv: str,
    variables: Mapping[str, str],
    further: Sequence[str] = (),
    torch_backend: str = "",
    say: Callable[[str], None],
) -> AddedEnvironment:
    """Make an environment with uv; keep an existing environment with this name and these requirements.

    A new one also gets the image's companions (`companions_of`) that the package index has and that can be imported.
    `say` names all others.

    Args:
        home: the state folder.
        name: environment's name from `parse_wish`.
        wanted: versions of packages; without a version of Python, uv chooses the interpreter.
        uv: path of the program.
        variables: environment of uv.
        further: requirements in addition to those of `wanted`.
        torch_backend: value of uv's --torch-backend; empty takes the package index's build.
        say: called with each step, in words.
    Raises: EngineError with the end of uv's output; an incomplete environment is never used.
    """
    requirements = (*requirements_of(wanted), *further)
    parent = home / FOLDER
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / name
    with _alone(parent, name) as lock:
        work = _Work(variables=variables, say=say, lock=lock)
        standing = {one.name: one for one in added_environments(home)}.get(name)
        if standing is not None and standing.requirements == requirements:
            say(f"{folder} stands already")
            if not has_pip(folder):
                _add_pip(folder, uv, work)
            return standing
        (folder / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        make = [uv, "venv", "--no-project", "--no-config"]
        python = _python_of_pyenv(wanted.python, variables) or wanted.python
        work.run([*make, *(["--python", python] if python else []), str(folder)], hint=_no_python(wanted))
        backend = ["--torch-backend", torch_backend] if torch_backend else []
        try:
            command = [*_install(uv, folder), *backend, *requirements]
            work.run(command, hint=_OTHER_INDEX if torch_backend else "")
            if not has_pip(folder):
                _add_pip(folder, uv, work)
            install = [*_install(uv, folder), *backend]
            _add_companions(folder, install, wanted, requirements, uv=uv, work=work)
            # Neither uv nor compilers flush what they write: after a power cut the mark could stand alone.
            work.run(["sync", "-f", str(folder)])
            _write_marker(folder, requirements)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return AddedEnvironment(name=name, python=str(folder / "bin/python"), requirements=requirements, folder=folder)


def has_pip(folder: Path) -> bool:
    """Whether an environment has pip, as AWS's images do: drivers of the SDKs install a job's requirements by it."""
    return any(folder.glob("lib/python*/site-packages/pip/__main__.py"))


def remove_environment(home: Path, name: str) -> None:
    """Remove an environment that was added, or the rest of one whose making or removal was interrupted.

    Raises: EngineError if no environment has that name, or another command is changing it.
    """
    folder = home / FOLDER / name
    if not _NAME.fullmatch(name) or not folder.is_dir():
        names = ", ".join(one.name for one in added_environments(home)) or "none"
        raise EngineError(f"there is no added environment {name!r}; there are: {names}", fault=Fault.USER)
    with _alone(home / FOLDER, name):
        (folder / _MARKER).unlink(missing_ok=True)  # first: an incomplete folder is not an environment
        shutil.rmtree(folder)
        (home / FOLDER / f".{name}.lock").unlink(missing_ok=True)


def _install(uv: str, folder: Path) -> list[str]:
    """Return uv's command that installs into an environment, to be continued by requirements.

    uv reads the owner's uv.toml, as in installations of jobs; it runs in `/`, where no project lies. Programs of jobs
    cannot write bytecode into the environment: without it each would compile all its imports.
    """
    return [uv, "pip", "install", *_into(folder), "--compile-bytecode"]


def _add_pip(folder: Path, uv: str, work: _Work) -> None:
    """Put pip into an environment: the index's, else the one that Python brings; without both, say so."""
    try:
        work.run([*_install(uv, folder), "pip"])
        return
    except EngineError as error:
        work.say(f"the package index gives no pip: {_last_line(error)}")
    try:
        work.run([str(folder / "bin" / "python"), "-I", "-m", "ensurepip", "--default-pip"])
    except EngineError as error:
        work.say(
            f"{folder.name} has no pip, because Python brings none either: {_last_line(error)}. Jobs of SDK v3's "
            "ModelTrainer and @remote(dependencies=...) fail in it; run this again once an index has pip"
        )


def _add_companions(
    folder: Path,
    install: Sequence[str],
    wanted: Wanted,
    requirements: Sequence[str],
    *,
    uv: str,
    work: _Work,
) -> None:
    """Install the image's companions and keep the versions that were asked for; say which are missing.

    They are resolved together with the requirements, whose versions are kept. Packages that both need may change: the
    newest fsspec, which torch brings, fits no datasets that works with the hub of older transformers.

    Args:
        folder: of the environment.
        install: command to be continued by requirements.
        wanted: the image's packages.
        requirements: those that are installed already.
        uv: path of the program.
        work: runs uv.
    Raises: EngineError if uv cannot list what is installed, or cannot remove a companion.
    """
    before = work.run([uv, "pip", "freeze", *_into(folder)]).splitlines()
    asked = {_named(one) for one in requirements}
    companions = [one for one in companions_of(wanted) if _named(one.name) not in asked]
    constraints = folder / _CONSTRAINTS
    lines = [*(line for line in before if _named(line) in asked), *(one.requirement for one in companions)]
    constraints.write_text("".join(f"{line}\n" for line in lines))
    together = [*install, "--constraint", str(constraints), *requirements]
    kept, why = companions, ""
    missing: list[str] = []
    try:
        work.run([*together, *(one.requirement for one in companions)])
    except EngineError:  # at least one is not there: which one?
        kept = []
        for companion in companions:
            try:
                work.run([*together, *(one.requirement for one in (*kept, companion))])
                kept.append(companion)
            except EngineError as error:
                missing.append(companion.requirement)
                why = _last_line(error)
    constraints.unlink()
    standing = {_named(line) for line in before}
    brought = [one for one in companions_of(wanted) if one in kept or _named(one.name) in standing]
    _check_imports(folder, brought, standing, uv=uv, work=work)
    if missing:
        work.say(
            f"the package index has no {' and no '.join(missing)} for this environment, which the image has: {why}"
        )
    if others := [name for name in left_out(wanted) if not _has_distribution(folder, name)]:
        work.say(f"not included, although the image has them: {', '.join(others)}; --with {others[0]} adds one")


def _check_imports(
    folder: Path,
    companions: Sequence[Companion],
    standing: Collection[str],
    *,
    uv: str,
    work: _Work,
) -> None:
    """Remove companions that fail to import: a framework that imports an installed one would fail with it.

    Args:
        folder: of the environment.
        companions: those that are installed.
        standing: distributions that stay, because the framework or the owner brought them.
        uv: path of the program.
        work: runs the programs.
    Raises: EngineError if uv cannot remove a companion.
    """
    for one in companions:
        command = [str(folder / "bin" / "python"), "-I", "-c", f"import {one.module}"]
        try:
            work.run(command, limit_s=IMPORT_TIMEOUT_S)
        except EngineError as error:
            if _named(one.name) in standing:
                work.say(f"{one.name} fails to import in this environment: {_last_line(error)}")
                continue
            work.run([uv, "pip", "uninstall", *_into(folder), one.name])
            work.say(f"{one.name} was removed, because its import in this environment fails: {_last_line(error)}")


def _into(folder: Path) -> list[str]:
    return ["--python", str(folder / "bin" / "python")]


def _named(requirement: str) -> str:
    """Return the normal form of the name with which a requirement begins; an empty string for a path."""
    found = _DISTRIBUTION.match(requirement)
    return re.sub(r"[-_.]+", "-", found.group()).lower() if found else ""


def _has_distribution(folder: Path, name: str) -> bool:
    return any(folder.glob(f"lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info"))


def _last_line(error: EngineError) -> str:
    return error.message.strip().splitlines()[-1].strip().rstrip(".")


def _python_of_pyenv(version: str, variables: Mapping[str, str]) -> str:
    """Return pyenv's newest interpreter of a version such as 3.12, or an empty string.

    uv finds only the interpreters that pyenv has put on PATH, and tries to download others.
    """
    root = Path(variables.get("PYENV_ROOT") or Path(variables.get("HOME") or "/nowhere") / ".pyenv")
    found = [path for path in (root / "versions").glob(f"{version}.*/bin/python") if version]
    numbered = {tuple(map(int, parts)): path for path in found if (parts := _digits(path.parts[-3]))}
    return str(numbered[max(numbered)]) if numbered else ""


def _digits(version: str) -> list[str]:
    """Return the numbers of a version such as 3.12.1; an empty list if it is not a release, as 3.13.0rc1 or pypy's."""
    parts = version.split(".")
    return parts if all(part.isdecimal() for part in parts) else []


def _no_python(wanted: Wanted) -> str:
    if not wanted.python:
        return ""
    return f"Put Python {wanted.python} on PATH or into pyenv, or let uv download it, and run this again."


def _requirement(module: str, version: str) -> str:
    distribution = _DISTRIBUTIONS.get(module, module)
    if not version:
        return distribution
    return f"{distribution}=={version}" + ("" if version.count(".") > 1 else ".*")


def _write_marker(folder: Path, requirements: Sequence[str]) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        temporary = folder / f"{_MARKER}.new"
        with temporary.open("w") as file:
            file.write(json.dumps({"requirements": list(requirements)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder / _MARKER)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _alone(parent: Path, name: str) -> Iterator[int]:
    """Hold the lock of an environment; yield its descriptor. Raises: EngineError if another command holds it."""
    path = parent / f".{name}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_held = True
        else:
            is_held = os.fstat(lock.fileno()).st_nlink == 0  # removed with its environment since it was opened
        if is_held:
            raise EngineError(
                f"another `clary environments` command is changing {name}, or what a killed one has started still "
                "runs; wait until it has finished"
            )
        yield lock.fileno()


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Runs the programs that make an environment. They hold its lock: a program outlives a command that is killed.

    Attributes:
        variables: environment of the programs.
        say: called with each step, in words.
        lock: descriptor of the environment's lock.
    """

    variables: Mapping[str, str]
    say: Callable[[str], None]
    lock: int

    def run(self, command: Sequence[str], *, hint: str = "", limit_s: float = MAKE_TIMEOUT_S) -> str:
        """Run a command; return its output.

        Args:
            command: program and arguments.
            hint: added to the error.
            limit_s: seconds after which the command is ended.
        Raises: EngineError with the end of its errors.
        """
        self.say(" ".join(command))
        try:
            done = run_limited(command, limit_s=limit_s, variables=self.variables, folder="/", kept=(self.lock,))
        except RunTooLong as error:
            raise EngineError(f"{command[0]} did not end within {limit_s:g} s", retryable=True) from error
        except OSError as error:
            raise EngineError(f"{command[0]} cannot be run: {error.strerror}") from error
        if done.code != 0:
            words = done.errors.strip()[-1500:]
            told = f"{' '.join(command[:3])} ended with exit code {done.code}:\n{words}"
            raise EngineError(f"{told}\n{hint}" if hint else told, fault=Fault.USER)
        return done.output
