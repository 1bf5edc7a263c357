"""The Python environment of a job: the image's own, or a copy of it with the user's requirements installed.

Where: the supervisor calls `prepare_environment` after the code is there and before the program starts. Copies are
kept in `<cache>/environments/<hash>` for later jobs with the same requirements.

[Note: copies are built in place]
Programs of an environment name their interpreter by path, so a copy is built where it stays and becomes valid by a
marker file written last. A lock keeps builders apart; uv inherits the lock, so that it stays locked while an uv runs on
whose agent was killed. What stands there without the marker is the rest of a failure and is deleted.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clary.agent.environments.clone import clone_environment
from clary.agent.environments.interpreter import InterpreterFacts, inspect_interpreter, require_interpreter
from clary.agent.environments.package_index import is_without_index, uv_index_variables
from clary.agent.environments.requirement_files import installation_key
from clary.contract.errors import AgentError, Fault
from clary.contract.launch_plan import Environment

INSTALL_TIMEOUT_S = 1800.0  # requirements that compile for half an hour belong into an environment of their own
_POLL_S = 0.05
_KILL_WAIT_S = 10.0
_LAST_LINES = 15  # of uv's output that an error shows
_MARKER = ".clary-complete"
_INSTALLED = re.compile(r"^ \+ (\S+)", re.MULTILINE)
# Of the machine's environment, what an installation may see: build scripts of packages run in it.
_PASSED = ("PATH", "HOME", "TMPDIR", "LANG", "TZ", "NETRC", "LD_LIBRARY_PATH", "CC", "CXX", "CFLAGS")
_PASSED_PREFIXES = ("LC_", "XDG_", "SSL_", "PIP_", "UV_", "CARGO_", "CUDA_")
_PASSED_SUFFIXES = ("_proxy", "_PROXY", "_CA_BUNDLE")


@dataclass(frozen=True, kw_only=True)
class PreparedEnvironment:
    """The environment that the program runs in."""

    python: str
    folder: Path  # root of the environment
    seconds: float
    was_cached: bool  # nothing had to be installed
    notes: tuple[str, ...] = ()


def prepare_environment(
    environment: Environment,
    requirements_file: Path | None,
    cache_folder: Path,
    *,
    package_folder: Path | None = None,
    machine: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    timeout_s: float = INSTALL_TIMEOUT_S,
) -> PreparedEnvironment:
    """Return an environment that holds the image's packages and what `requirements_file` asks for.

    The image's environment is never changed. What it already holds counts as installed and is not fetched.

    Args:
        package_folder: folder with setup.py that is installed as well.
        machine: environment of the agent, for PATH, HOME and where packages come from; None takes the process's.
        stop: breaks an installation off when set.
        timeout_s: for waiting on another builder and for the installation, together.
    State after failure: nothing is kept; the next call starts afresh.
    Raises: AgentError: fault USER if requirements cannot be installed, with uv's last lines; INFRASTRUCTURE if the
        interpreter or uv is missing.
    """
    started_s = time.monotonic()
    require_interpreter(environment.python)
    if requirements_file is None and package_folder is None:
        return PreparedEnvironment(
            python=environment.python, folder=Path(environment.python).parent.parent, seconds=0.0, was_cached=True
        )
    task = _Installation(
        facts=inspect_interpreter(environment.python),
        requirements_file=requirements_file,
        package_folder=package_folder,
        machine=os.environ if machine is None else machine,
        stop=stop or threading.Event(),
        deadline_s=started_s + timeout_s,
    )
    folder = cache_folder / "environments" / installation_key(task.facts, requirements_file, package_folder)
    was_cached = (folder / _MARKER).exists()
    notes: tuple[str, ...] = ()
    if not was_cached:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock"), task) as lock:
            was_cached = (folder / _MARKER).exists()  # another builder may have come first
            if not was_cached:
                notes = _build(task, folder, uv_cache=cache_folder / "uv", lock=lock)
    if was_cached:
        notes = (f"{Path(task.label).name} was installed for an earlier job: its environment comes cached",)
    return PreparedEnvironment(
        python=str(folder / "bin" / "python"),
        folder=folder,
        seconds=time.monotonic() - started_s,
        was_cached=was_cached,
        notes=notes,
    )


@dataclass(frozen=True, kw_only=True)
class _Installation:
    facts: InterpreterFacts
    requirements_file: Path | None
    package_folder: Path | None
    machine: Mapping[str, str]
    stop: threading.Event
    deadline_s: float  # on the monotonic clock

    @property
    def label(self) -> str:
        """How messages call what is installed."""
        return str(self.requirements_file or self.package_folder)

    def check(self) -> None:
        """Raise if the installation is to be given up."""
        if self.stop.is_set():
            raise AgentError(f"Installing {self.label} was given up because the host stops.")
        if time.monotonic() > self.deadline_s:
            raise AgentError(
                f"{self.label} could not be installed in time. Put packages that take long into an environment of "
                "its own and name it in settings.toml.",
                fault=Fault.USER,
            )


def _build(task: _Installation, folder: Path, *, uv_cache: Path, lock: int) -> tuple[str, ...]:
    if folder.exists():
        shutil.rmtree(folder)
    try:
        python = clone_environment(task.facts, folder)
        output = _install(task, python, uv_cache=uv_cache, lock=lock)
        (folder / _MARKER).touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    installed = _INSTALLED.findall(output)
    return (f"installed {', '.join(installed)}",) if installed else ()


def _install(task: _Installation, python: Path, *, uv_cache: Path, lock: int) -> str:
    command = [_find_uv(task.machine), "pip", "install", "--python", str(python), "--color", "never", "--no-progress"]
    if is_without_index(task.machine, task.facts.prefix):
        command.append("--no-index")
    if task.requirements_file is not None:
        command += ["-r", str(task.requirements_file)]
    if task.package_folder is not None:
        command.append(str(task.package_folder))
    environment = {
        **{name: value for name, value in task.machine.items() if _is_passed(name)},
        **uv_index_variables(task.machine, task.facts.prefix),
        "UV_CACHE_DIR": str(uv_cache),
        # Links replace what is in their way, so files shared with the original are never written into.
        "UV_LINK_MODE": "hardlink",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",  # as pip: this machine's certificates, with those of its company
    }
    working_folder = (task.requirements_file or python).parent if task.package_folder is None else task.package_folder
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=working_folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),  # see [Note: copies are built in place]
        )
        code = _wait(process, task.check)
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if code != 0:
        last_lines = "\n".join(text.strip().splitlines()[-_LAST_LINES:])
        raise AgentError(
            f"{task.label} cannot be installed: uv ended with {code}.\n{last_lines}",
            fault=Fault.USER,
            details={"exit_code": code},
        )
    return text


def _wait(process: subprocess.Popen[bytes], check: Callable[[], None]) -> int:
    """Wait for a process; kill its whole group when `check` raises."""
    try:
        while True:
            try:
                return process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                check()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=_KILL_WAIT_S)
        raise


def _find_uv(machine: Mapping[str, str]) -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv", path=machine.get("PATH"))
    if found is None:
        raise AgentError(
            "Requirements are installed with uv, which is neither beside the agent's interpreter nor in PATH. "
            "Install it: pip install uv"
        )
    return found


@contextmanager
def _locked(path: Path, task: _Installation) -> Iterator[int]:
    """Hold an exclusive lock on `path`; gives its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                task.check()
                time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_passed(name: str) -> bool:
    return name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.endswith(_PASSED_SUFFIXES)
