"""The user's code: its transfer from `sagemaker_submit_directory` to `/opt/ml/code`, and its entry point.

Where: the supervisor calls `prepare_code` while channels are fetched, but after the channel returned by `code_channel`,
if any. Code in a channel of its own (SDK v3, ContainerEntrypoint) needs no such preparation.
Source: sagemaker-training 5.1.4, `entry_point.install`, `files.download_and_extract`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from clary.agent.archives import ArchiveLimits, extract_tar
from clary.base.beneath import Folder
from clary.base.beneath_trees import copy_file, copy_tree
from clary.base.disk_space import disk_errors_named
from clary.base.errors import AgentError, Fault
from clary.contract.launch_plan import LaunchPlan
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.object_store import parse_s3_uri
from clary.contract.settings import hyperparameters as hps
from clary.contract.settings.entry_points import EntryKind, EntryPoint, entry_kind, name_problem
from clary.contract.settings.named_places import FILE_SCHEME, code_source_problem

_GIB = 1 << 30
# Source folders hold code and perhaps small data; SageMaker sets no limit except the disk.
CODE_LIMITS = ArchiveLimits(max_members=200_000, max_bytes=16 * _GIB)
REQUIREMENTS = "requirements.txt"
_LISTED_NAMES = 12  # limit of file names listed in an error
_COMMAND_MODE = 0o755
_SCRIPT_SUFFIXES = (".py", ".sh")


class ObjectSource(Protocol):
    """Source of a code archive: the object store, or this machine's cache of it."""

    def open_reader(self, bucket: str, key: str) -> BinaryIO:
        """Open an object as a stream. Raises: ObjectStoreError."""


@dataclass(frozen=True, kw_only=True)
class CodeFacts:
    """Result of `prepare_code`."""

    entry_point: EntryPoint | None  # None: the job names no program whose code it gives
    folder: Path  # folder of the code, as the agent sees it
    requirements_file: Path | None = None  # requirements file, if entry points of this kind install it
    package_folder: Path | None = None  # folder with a setup.py to install
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


def code_channel(plan: LaunchPlan) -> str | None:
    """Return the channel to fetch before the code can be unpacked, or None without such a channel."""
    source = (_source(plan) or "").removeprefix(FILE_SCHEME)
    data = PurePosixPath(MlTree(OPT_ML).data)
    if not PurePosixPath(source).is_relative_to(data):
        return None
    parts = PurePosixPath(source).relative_to(data).parts
    return parts[0] if parts else None


def prepare_code(plan: LaunchPlan, store: ObjectSource, tree: MlTree) -> CodeFacts:
    """Put the user's code into `tree.code` and find the entry point in it.

    Args:
        plan: names the code and the entry point; without a source the folder stays unchanged.
        store: read if the code lies in S3.
        tree: of the host, as the agent sees it.
    State after failure: unpacked files stay in the folder; a repeated call overwrites them.
    Raises: AgentError with fault USER for a name that cannot be an entry point, for a name that is not in the code (the
        message lists the names in it), and for a source that is missing or hostile; ObjectStoreError from S3.
    """
    started_s = time.monotonic()
    program = plan.program
    source = _source(plan)
    tree.code.mkdir(parents=True, exist_ok=True)
    if source is not None:
        _fetch(source, store, plan=plan, tree=tree)
    if program is not None and source is None and program.named_by != hps.PROGRAM:
        program = None  # the image's own `train` reads the variable, and may bring the program
    if program is None:
        return CodeFacts(entry_point=None, folder=tree.code, seconds=time.monotonic() - started_s)
    entry_point = _find_entry_point(program, source, tree.code)
    requirements = tree.code / REQUIREMENTS
    is_command = entry_point.kind is EntryKind.COMMAND
    has_requirements = os.path.lexists(requirements)
    if has_requirements:
        _require_inside(requirements, tree.code, what="the source folder's")
    notes: tuple[str, ...] = ()
    if is_command and has_requirements:
        notes = (f"{REQUIREMENTS} is not installed because {entry_point.name} is a command, as on SageMaker",)
    return CodeFacts(
        entry_point=entry_point,
        folder=tree.code,
        requirements_file=requirements if has_requirements and not is_command else None,
        package_folder=tree.code if entry_point.kind is EntryKind.PACKAGE else None,
        seconds=time.monotonic() - started_s,
        notes=notes,
    )


def _source(plan: LaunchPlan) -> str | None:
    if plan.command is not None:
        return None
    return hps.platform_text(plan.hyperparameters, hps.SUBMIT_DIRECTORY)


def _fetch(source: str, store: ObjectSource, *, plan: LaunchPlan, tree: MlTree) -> None:
    if source.startswith("s3://"):
        uri = parse_s3_uri(source)
        with store.open_reader(uri.bucket, uri.key) as stream:
            extract_tar(stream, tree.code, limits=CODE_LIMITS, label=source)
        return
    home, below = _place_of(source, plan, tree)
    try:
        with Folder.at(home) as top, disk_errors_named(tree.code, needed_bytes=None):
            if stat.S_ISDIR(top.status(below).st_mode):
                with top.folder(below) as folder:
                    _copy_folder(folder, tree.code)
            elif PurePosixPath(below).suffix in _SCRIPT_SUFFIXES:
                with Folder.at(tree.code) as target:
                    copy_file(top, below, target, PurePosixPath(below).name)
            else:
                with open(top.open_file(below), "rb") as file:
                    extract_tar(file, tree.code, limits=CODE_LIMITS, label=source)
    except OSError as error:
        raise AgentError(
            f"{hps.SUBMIT_DIRECTORY} is {source!r}: expected an s3:// archive, or an archive or folder below /opt/ml, "
            f"and it cannot be read: {error.strerror}. Check that the channel that holds it is part of "
            "InputDataConfig; symbolic links are not followed.",
            fault=Fault.USER,
        ) from error


def _place_of(source: str, plan: LaunchPlan, tree: MlTree) -> tuple[str, str]:
    """Return, for a path of the program's view, a folder that no program can replace and the path below it.

    Raises: AgentError (fault USER) for a path that is not below `/opt/ml`: the agent would read it with rights that the
        job does not have.
    """
    problem = code_source_problem(source)
    if problem is not None:
        raise AgentError(problem, fault=Fault.USER)
    path = source.removeprefix(FILE_SCHEME)
    below = PurePosixPath(path).relative_to(OPT_ML)
    for channel in plan.channels:
        place = MlTree(OPT_ML).channel(channel.name).relative_to(OPT_ML)
        if channel.file_system_path is not None and below.is_relative_to(place):
            return channel.file_system_path, os.path.join(channel.file_system_folder, str(below.relative_to(place)))
    return str(tree.root), str(below)


def _copy_folder(source: Folder, target: Path) -> None:
    """Copy a folder of code; links are copied as links, not followed. Raises: OSError."""
    with Folder.at(target) as folder:
        if os.path.samestat(os.fstat(source.fileno()), os.fstat(folder.fileno())):
            return
        if folder.lies_in(source.path):
            raise OSError(errno.EINVAL, "it contains the folder that the code is copied into")
        copy_tree(source, folder)


def _find_entry_point(program: hps.NamedProgram, source: str | None, folder: Path) -> EntryPoint:
    problem = name_problem(program.name)
    if problem is not None:
        raise AgentError(f"{program.named_by}: {problem}.", fault=Fault.USER)
    kind = entry_kind(program.name, has_setup=(folder / "setup.py").is_file())
    entry_point = EntryPoint(name=program.name, kind=kind)
    path = folder / program.name
    if kind is EntryKind.PACKAGE and not path.exists():
        return entry_point  # a module that the package installs
    if not path.exists():
        raise AgentError(_missing(program, source, folder), fault=Fault.USER)
    _require_inside(path, folder, what=f"{program.named_by}:")
    if path.is_dir():
        words = f"{program.named_by}: {program.name!r} is a folder; name the file that starts it."
        raise AgentError(words, fault=Fault.USER)
    if kind is EntryKind.COMMAND:
        path.chmod(_COMMAND_MODE)
    return entry_point


def _require_inside(path: Path, folder: Path, *, what: str) -> None:
    """Refuse a link that leaves the code: the agent would read files that the job must not see.

    Call it only before a program runs.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise AgentError(
            f"{what} {path.name!r} is a link that leads out of the source folder; put the file itself into it.",
            fault=Fault.USER,
        )


def _missing(program: hps.NamedProgram, source: str | None, folder: Path) -> str:
    if source is None:
        return (
            f"{program.named_by} names {program.name!r}, but {hps.SUBMIT_DIRECTORY} is not set, so there is no code. "
            "Set source_dir or entry_point of the estimator."
        )
    names: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders.sort()
        names += sorted(str(Path(parent, name).relative_to(folder)) for name in files)
        if len(names) > _LISTED_NAMES:
            break
    listed = ", ".join(name.encode("utf-8", "backslashreplace").decode() for name in names[:_LISTED_NAMES])
    more = " and more" if len(names) > _LISTED_NAMES else ""
    content = f"it holds {listed}{more}" if names else "it is empty"
    return (
        f"{program.named_by} names {program.name!r}, which is not in {source}: {content}. "
        "Give entry_point relative to source_dir."
    )
