"""Cache of compiled code on this machine, shared between jobs with compiler_config.

    <cache>/compiled/<name>/    files that torch's compiler names after their content
    <cache>/compiled/.lock      held shared while files are copied from the cache, exclusively while files are added
    <cache>/compiled/.adding/   files on their way into the cache, while the lock is held exclusively

Where: `wiring` creates one `CompiledCode` per host. The program works on a copy in its own tree and sees no shared
file. After the program has ended with 0, the agent copies new files to the cache, through a folder's descriptor and
without following links; cached files are never replaced. A file gets its name in the cache only after its content is on
the disk: a power cut would otherwise leave an empty library there, on which every later job would fail. An error
becomes a line in the log and does not fail the job.

[Note: who runs whose code] A job runs the code that an earlier job with the same cache name has compiled, so a
malicious program could leave any code in the cache. The cache name (`compilation.compiled_name`) covers every possible
source of code. So both jobs are the same program on the same data, and the first job cannot leave code that the second
would not run anyway. The cache lies in the service's home, which has one owner and is hidden from programs. A cache
that another user may write to is not used.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clary.agent.environments.compilation import compiled_folder, compiled_name, wants_compiler
from clary.agent.environments.requirement_files import source_digest
from clary.agent.host import kernel
from clary.base.beneath import Folder
from clary.base.beneath_trees import Entry, copy_file, copy_tree, empty, entries, remove_tree
from clary.base.errors import AgentError
from clary.contract.launch_plan import LaunchPlan
from clary.contract.ml_tree import MlTree

CACHE_FOLDER = "compiled"
MAX_FILES = 20_000  # per name
MAX_BYTES = 1 << 30  # per name: precompiled headers have 150 MB, a large model some 50
MAX_NAMES = 16  # the least recently used names are evicted first
_ADDING = ".adding"
_MAX_DEPTH = 8  # nested folders; torch has three
_WAIT_S = 20.0  # longest wait for another agent's lock
_POLL_S = 0.05
_MIB = 1 << 20


class CompiledCode:
    """The compiled code of one host's program; no method raises OSError or AgentError.

    Args:
        plan: of the attempt.
        tree: the host's `/opt/ml` on this machine.
    """

    def __init__(self, plan: LaunchPlan, tree: MlTree) -> None:
        self._plan = plan
        self._tree = tree
        self._place: Path | None = None  # folder of this job's code in the cache
        self.summaries: tuple[str, ...] = ()  # lines for the log

    def bring(self, environment: Path, *, timeout_s: float = _WAIT_S) -> None:
        """Copy cached code with this job's cache name into the tree; no effect on jobs without a compiler.

        Args:
            environment: root of the program's Python environment; environment and code must be ready.
            timeout_s: longest wait for the lock of agents that write.
        """
        if not wants_compiler(self._plan) or not self._plan.cache_folder:
            return
        deadline_s = time.monotonic() + timeout_s
        try:
            code = self._tree.code
            digest = source_digest(code, check=lambda: None) if code.is_dir() else ""
            name = compiled_name(self._plan, code_digest=digest, environment=environment)
            root = Path(self._plan.cache_folder) / CACHE_FOLDER
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_closed(root)
            place = root / name
            target_path = compiled_folder(self._tree).relative_to(self._tree.root)
            with (
                Folder.at(self._tree.root) as tree,
                tree.folder(str(target_path), create=True) as target,
                _locked(root, fcntl.LOCK_SH, deadline_s),
            ):
                empty(target)
                if place.is_dir():
                    os.utime(place)
                    with Folder.at(place) as source:
                        copy_tree(source, target)
                    files = _whole_files(target)
                    size_bytes = sum(entry.status.st_size for entry in files)
                    self.summaries = (
                        f"compiled code: {len(files)} files, {size_bytes / _MIB:.1f} MiB from an earlier job that was "
                        "the same program",
                    )
                else:
                    self.summaries = ("compiled code: none is kept of an earlier job that was the same program",)
            self._place = place
        except (OSError, AgentError) as error:
            self.summaries = (f"compiled code of earlier jobs is not used: {error}",)

    def keep(self, *, timeout_s: float = _WAIT_S) -> tuple[str, ...]:
        """Copy the program's compiled code to the cache, once the program has ended with 0; return lines for the log.

        Args:
            timeout_s: longest wait for the lock of other agents.
        """
        place = self._place
        if place is None:
            return ()
        try:
            path = compiled_folder(self._tree).relative_to(self._tree.root)
            with (
                Folder.at(self._tree.root) as tree,
                tree.folder(str(path)) as source,
                _locked(place.parent, fcntl.LOCK_EX, time.monotonic() + timeout_s),
            ):
                return self._taken_over(source, place)
        except (OSError, AgentError) as error:
            return (f"compiled code is not kept for later jobs: {error}",)

    def _taken_over(self, source: Folder, place: Path) -> tuple[str, ...]:
        found = [entry for entry in entries(source, max_entries=MAX_FILES + 1, max_depth=_MAX_DEPTH) if entry.is_file]
        found = [entry for entry in found if entry.status.st_size and not entry.path.endswith(".lock")]
        if not found:
            return ()
        with Folder.at(place, create=True) as target:
            # An empty file was cached by an earlier version before a power cut.
            old = [entry for entry in entries(target) if entry.is_file and entry.status.st_size]
            names = {entry.path for entry in old}
            new = [entry for entry in found if entry.path not in names]
            num_files, size_bytes = len(old) + len(new), sum(entry.status.st_size for entry in (*old, *new))
            if num_files > MAX_FILES or size_bytes > MAX_BYTES:
                return (
                    f"compiled code is not kept for later jobs: {num_files} files of {size_bytes // _MIB} MiB are "
                    f"more than {MAX_FILES} or {MAX_BYTES // _MIB} MiB",
                )
            with Folder.at(place.parent) as root:
                _add(source, new, root, place.name)
        _drop_oldest(place.parent)
        return ()


def _whole_files(target: Folder) -> list[Entry]:
    """Return the files of a copy of cached code; files that a power cut has emptied are removed from the copy."""
    files = [entry for entry in entries(target) if entry.is_file]
    for entry in files:
        if not entry.status.st_size:
            target.remove(entry.path)
    return [entry for entry in files if entry.status.st_size]


def _add(source: Folder, files: Sequence[Entry], root: Folder, name: str) -> None:
    """Copy files into the cache under a name; the caller holds the lock. Raises: OSError.

    All are flushed by one call, which for 212 files of 160 MiB takes a fifth of the time of fsync for each.
    """
    if not files:
        return
    remove_tree(root, _ADDING)  # of an agent that was killed meanwhile
    try:
        with root.folder(_ADDING, create=True, mode=0o700) as adding:
            for number, entry in enumerate(files):
                copy_file(source, entry.path, adding, str(number))
            kernel.flush_file_system(adding.path)
        for number, entry in enumerate(files):
            root.folder(f"{name}/{entry.path}".rpartition("/")[0], create=True).close()
            root.rename(f"{_ADDING}/{number}", f"{name}/{entry.path}")
    finally:
        remove_tree(root, _ADDING)


def _check_closed(root: Path) -> None:
    """Refuse a cache that another user may write to, since its files are executed. Raises: AgentError, OSError."""
    status = os.lstat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise AgentError(f"{root} is a link; expected a folder of this service: remove it")
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AgentError(
            f"{root} belongs to user {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):04o}; "
            f"expected owner {os.geteuid()} and no write access for other users, because its files are "
            "executed. Remove it; a new folder is then created"
        )


def _drop_oldest(root: Path) -> None:
    """Evict the least recently used names beyond `MAX_NAMES`; the caller holds the lock."""
    names = sorted((path for path in root.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    with Folder.at(root) as folder:
        for path in names[: max(0, len(names) - MAX_NAMES)]:
            remove_tree(folder, path.name)


@contextmanager
def _locked(root: Path, kind: int, deadline_s: float) -> Iterator[None]:
    """Hold the cache's lock. Raises: AgentError when another agent holds it for too long."""
    descriptor = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline_s:
                raise AgentError(f"another agent has held {root}/.lock for too long")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
