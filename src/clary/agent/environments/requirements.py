"""The Python environment of a job: the image's own, or a copy of it with the user's requirements installed.

Where: the supervisor calls `prepare_environment` once the user's code is in place, before the program starts. Copies
are kept in `<cache>/environments/<hash>` for later jobs whose installation has the same inputs.

    <hash>/            the copy
    <hash>.complete    marks the copy as complete; written last, out of reach of build scripts
    <hash>.building/   temporary files of the installation
    <hash>.lock        locked by the one builder that may write the copy

[Note: copies are built in place] Programs of an environment name their interpreter by path, so a copy is built at its
final path and becomes valid once its marker exists. If hosts have overlays, only the agent writes into the copy. So if
an agent is killed, its host, which may still be ending, cannot disturb the next builder. A copy without the marker was
left by a failure and is deleted.

[Note: what the agent does with a finished copy]
An untrusted build may have written any file of the copy. So outside of hosts, the agent starts no program, follows no
link and reads no file of the copy; it knows the copy's base interpreter from the image's environment.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clary.agent.environments.clone import clone_environment
from clary.agent.environments.installation import Installation, InstallationWorld
from clary.agent.environments.interpreter import InterpreterFacts, inspect_interpreter, require_interpreter
from clary.agent.environments.layer_merge import merge_layer
from clary.agent.environments.requirement_files import (
    RequirementFiles,
    installation_key,
    read_requirements,
    source_digest,
)
from clary.agent.host import kernel
from clary.agent.host.host_command import CommandResult
from clary.agent.host.overlay_support import why_no_overlay
from clary.base.beneath import Folder
from clary.base.beneath_trees import remove_tree
from clary.base.errors import AgentError, Fault
from clary.base.hookless_python import PATH_FILE_ENDING
from clary.contract.launch_plan import Environment

INSTALL_TIMEOUT_S = 1800.0  # requirements that compile for longer need an environment of their own
REMOVAL_TIMEOUT_S = 10.0  # for the removal of an installation's files; a killed host ends within 1 s
_SCHEME = "2"  # increased when the way of building environments changes
_POLL_S = 0.05
_LAST_LINES = 15  # limit of uv's output in an error
_LAST_CHARACTERS = 4000
_NOTE_CHARACTERS = 1000
_INSTALLED = re.compile(r"^ \+ (\S{1,200})", re.MULTILINE)
_NOT_PRINTED = re.compile(r"[^\x20-\x7e\n\t\u00a0-\uffff]")
_BIN = "bin"
_SETTINGS = "pyvenv.cfg"
_MAX_SETTINGS_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class PreparedEnvironment:
    """The environment that the program runs in."""

    python: str
    folder: Path  # root of the environment
    seconds: float
    was_cached: bool  # whether no installation was needed
    base_prefix: str = ""  # root of a copy's base interpreter; empty for the image's own environment
    notes: tuple[str, ...] = ()


def prepare_environment(
    environment: Environment,
    requirements_file: Path | None,
    cache_folder: Path,
    *,
    make_world: Callable[[], InstallationWorld],
    package_folder: Path | None = None,
    machine: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    timeout_s: float = INSTALL_TIMEOUT_S,
) -> PreparedEnvironment:
    """Return an environment with the packages of the image and of `requirements_file`.

    The image's environment is never changed. Packages that it already has count as installed and are not fetched.

    Args:
        requirements_file: a file in the job's source folder.
        make_world: returns the host in which uv and its builds run; called only if there is something to install.
        package_folder: the source folder, if it has a setup.py that must be installed too.
        machine: environment variables of the agent, for PATH, HOME and package sources; None: those of this process.
        stop: aborts an installation when set.
        timeout_s: for the wait for another builder and the installation together.
    State after failure: the copy is deleted, and the next call builds it anew; `<hash>.lock` and fetched packages stay.
    Raises: AgentError: fault USER if requirements cannot be installed, with uv's last lines; INFRASTRUCTURE if the
        interpreter or uv is missing, or no host could be made.
    """
    started_s = time.monotonic()
    require_interpreter(environment.python)
    source = package_folder or (requirements_file and requirements_file.parent)
    if source is None:
        return PreparedEnvironment(
            python=environment.python, folder=Path(environment.python).parent.parent, seconds=0.0, was_cached=True
        )
    task = _Task(
        label=str(requirements_file or package_folder),
        facts=inspect_interpreter(environment.python),
        source=source,
        asked=None if requirements_file is None else read_requirements(source, requirements_file.name),
        is_package=package_folder is not None,
        world=make_world(),
        cache_folder=cache_folder,
        machine=os.environ if machine is None else machine,
        stop=stop or threading.Event(),
        deadline_s=started_s + timeout_s,
    )
    copies = cache_folder / "environments"
    copies.mkdir(parents=True, exist_ok=True)
    folder = copies / task.key(is_offline=False)
    notes: tuple[str, ...] = ()
    was_cached = _is_whole(folder)
    if not was_cached and task.world.is_offline:
        folder = copies / task.key(is_offline=True)
        was_cached = _is_whole(folder)
    if not was_cached:
        with _locked(folder.with_suffix(".lock"), task):
            was_cached = _is_whole(folder)  # another builder may have finished it meanwhile
            if not was_cached:
                notes = _build(task, folder)
    if was_cached:
        notes = (f"{Path(task.label).name} was installed for an earlier job: its environment is reused",)
    return PreparedEnvironment(
        python=str(folder / _BIN / "python"),
        folder=folder,
        seconds=time.monotonic() - started_s,
        was_cached=was_cached,
        base_prefix=str(Path(task.facts.base_python).parent.resolve().parent),
        notes=notes,
    )


@dataclass(frozen=True, kw_only=True)
class _Task:
    label: str  # path for messages: of the requirements file, else of the package's folder
    facts: InterpreterFacts
    source: Path
    asked: RequirementFiles | None
    is_package: bool
    world: InstallationWorld
    cache_folder: Path
    machine: Mapping[str, str]
    stop: threading.Event
    deadline_s: float  # on the monotonic clock

    def key(self, *, is_offline: bool) -> str:
        """Return the name of the copy: a hash of all inputs of the installation.

        An installation without the internet can use only cached versions, so its copy has a key of its own. A job with
        the internet never uses such a copy. A job without the internet uses it only if there is no copy that was
        installed with the internet.
        """
        what = [_SCHEME, str(self.world.sandbox.isolation), str(self.is_package)]
        if is_offline:
            what.append("offline")
        if self.is_package or self.asked is None or self.asked.needs_source:
            what.append(source_digest(self.source, check=self.check))
            if not self.world.is_isolated:
                what.append(str(self.source))  # the target of an editable installation
        return installation_key(self.facts, self.asked, *what)

    def check(self) -> None:
        """Raise if the installation must be aborted."""
        if self.stop.is_set():
            raise AgentError(f"Installing {self.label} was given up because the host stops.")
        if time.monotonic() > self.deadline_s:
            raise AgentError(
                f"{self.label} could not be installed in time. Put packages that take long to install into an "
                "environment of their own, and name that environment in settings.toml.",
                fault=Fault.USER,
            )


def _is_whole(folder: Path) -> bool:
    return folder.with_suffix(".complete").exists() and folder.is_dir()


def _build(task: _Task, folder: Path) -> tuple[str, ...]:
    place = folder.with_suffix(".building")
    _remove(folder.with_suffix(".complete"), place, folder)
    try:
        place.mkdir()
        place.chmod(0o755)  # hosts' users need to traverse it
        refusal = why_no_overlay(place) if task.world.is_isolated else None
        # Without overlays a program may write into the copy, so the copy shares no file with the image.
        clone_environment(task.facts, folder, shares_files=refusal is None)
        installation = Installation(
            world=task.world,
            environment_folder=folder,
            place=place,
            cache_folder=task.cache_folder,
            source=task.source,
            asked=task.asked,
            is_package=task.is_package,
            prefix=task.facts.prefix,
            machine=task.machine,
            has_layers=task.world.is_isolated and refusal is None,
            check=task.check,
        )
        result = installation.run()
        if result.exit_code != 0:
            raise _failure(task, result)
        notes = _taken_over(task, installation) if task.world.is_isolated else []
        if refusal is not None:
            notes.append(f"the environment is a full copy, because an overlay cannot protect shared files: {refusal}")
        # The unmount of a host's overlay does not sync its files (`machine_view`), so without this call the marker
        # could survive a crash of the machine without the content. For 3,000 files fsync takes 5 s, this call 0.2 s.
        kernel.flush_file_system(str(folder))
        folder.with_suffix(".complete").touch()
    except BaseException:
        _remove(folder)
        raise
    finally:
        _remove(place)
    installed = ", ".join(_INSTALLED.findall(result.output))[:_NOTE_CHARACTERS]
    return (*([f"installed {installed}"] if installed else []), *notes)


def _taken_over(task: _Task, installation: Installation) -> list[str]:
    """Merge the installed packages into the copy; return lines for the log."""
    folder = installation.environment_folder
    if not installation.kept.is_dir():
        raise AgentError(f"{task.label}: the host has ended, and the installed files are lost", retryable=True)
    own = _OwnFiles.of(folder)
    left_out = merge_layer(installation.kept, folder, is_whole=not installation.has_layers, check=task.check)
    own.restore(folder)
    if not left_out:
        return []
    names = ", ".join(map(ascii, left_out))[:_NOTE_CHARACTERS]
    return [f"left out of the environment, as neither file, folder nor link: {names}"]


@dataclass(frozen=True)
class _OwnFiles:
    """Interpreter links and settings of a copy, on which the agent relies; restored after an installation.

    Files that would replace an interpreter's standard library are removed.
    """

    settings: bytes
    links: dict[str, str] = field(default_factory=dict)  # `bin/NAME` -> target

    @classmethod
    def of(cls, folder: Path) -> _OwnFiles:
        with Folder.at(folder) as root:
            names = [name for name in root.names(_BIN) if name.startswith("python")]
            paths = [path for path in (f"{_BIN}/{name}" for name in names) if _is_link(root, path)]
            return cls(
                root.read(_SETTINGS, max_bytes=_MAX_SETTINGS_BYTES), {path: root.read_link(path) for path in paths}
            )

    def restore(self, folder: Path) -> None:
        with Folder.at(folder) as root:
            if not root.exists(_BIN) or not stat.S_ISDIR(root.status(_BIN).st_mode):
                remove_tree(root, _BIN)
            else:
                for name in root.names(_BIN):
                    if name.endswith(PATH_FILE_ENDING):
                        remove_tree(root, f"{_BIN}/{name}")
            for path, text in self.links.items():
                remove_tree(root, path)
                root.folder(_BIN, create=True).close()
                root.make_link(path, text)
            remove_tree(root, _SETTINGS)
            root.write(_SETTINGS, self.settings)


def _is_link(root: Folder, path: str) -> bool:
    return stat.S_ISLNK(root.status(path).st_mode)


def _failure(task: _Task, result: CommandResult) -> AgentError:
    text = _NOT_PRINTED.sub("?", result.output)[-_LAST_CHARACTERS:]
    last_lines = "\n".join(text.strip().splitlines()[-_LAST_LINES:])
    cause = f"{result.starved}. " if result.starved else ""
    network = ""
    if task.world.is_offline:
        network = (
            "\nThe job's host cannot reach the internet, so it can install only packages that lie in folders of this "
            "machine or that earlier jobs have fetched."
        )
    return AgentError(
        f"{task.label} cannot be installed: {cause}uv ended with {result.exit_code}.\n{last_lines}{network}",
        fault=Fault.USER,
        details={"exit_code": result.exit_code},
    )


def _remove(*places: Path) -> None:
    """Remove files and folders of an installation, into which ending processes of its host may still write."""
    deadline_s = time.monotonic() + REMOVAL_TIMEOUT_S
    for place in places:
        with Folder.at(place.parent) as folder:
            while not remove_tree(folder, place.name):
                if time.monotonic() > deadline_s:
                    words = f"could not be removed within {REMOVAL_TIMEOUT_S:.0f} s"
                    raise AgentError(f"{place} {words}; it is in the way of an installation")
                time.sleep(0.05)


@contextmanager
def _locked(path: Path, task: _Task) -> Iterator[None]:
    """Hold an exclusive lock on `path`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            task.check()
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
