"""Paths and files of folders that a program owns: opened below a descriptor, requirement files, markers of checkpoints.

What must hold: no path, whatever links and pipes stand there, leads out of the folder, and nothing but OSError says no;
both ways to open agree; requirement files are read within their bounds, from that folder alone, and only the user is
blamed; a marker says nothing of files that it does not stand for. All of it at once.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clary.agent.checkpoints.evidence.markers import marked
from clary.agent.checkpoints.scanning import FileFacts
from clary.agent.environments.requirement_files import MAX_FILE_BYTES, MAX_FILES, read_requirements
from clary.base import beneath
from clary.base.beneath import Folder
from clary.base.beneath_trees import entries
from clary.base.errors import AgentError, Fault
from fuzz.byte_reader import ByteReader
from fuzz.findings import require
from fuzz.targets import Run

MAX_S = 2.0  # of the process's own time
SECRET = b"of the machine, and of no program"
_PATHS = (
    "a",
    "a/b",
    "a/b/c",
    ".",
    "",
    "..",
    "a/../..",
    "a/../../secret",
    "/etc/passwd",
    "//a",
    "a//b",
    "a/./b",
    "a/",
    "a\0b",
    "x" * 300,
    "a/" * 200 + "b",
    "/proc/self/root",
    "a\\b",
    "\udcff",
)
_TARGETS = ("a", "..", "../secret", "/", "/proc/self/fd/0", ".", "a/b", "../../../../../etc/passwd", "missing")
_LINES = (
    "numpy==1.0",
    "numpy [a,b] >=1 , <2 ; python_version > '3'",
    "-r a",
    "-r a/b",
    "-c ../secret",
    "--requirement=a",
    "-r file:///opt/ml/code/a",
    "-r /etc/passwd",
    "-e .",
    "--index-url https://x/simple",
    "a @ https://x/y.whl",
    "a @ file:///x",
    "git+https://x/y",
    "./a",
    "a --hash=sha256:00",
    "# c",
    "\\",
    '-r "a',
    "a" + " " * 2000 + "!",
    "a[" + " " * 2000,
    "-" * 3000,
    "a" * 3000 + "!",
)
_FILES = (
    "a/.metadata",
    "a/x",
    "latest",
    "latest_checkpointed_iteration.txt",
    "checkpoint.json",
    "part-00001.bin",
    "iter_0000007/x",
    "a/b/trainer_state.json",
    "x",
    "a/latest",
)
_POINTERS = ("a", "7", "..", "/", "", ".", "a/b", "\0", "9" * 250, " a ", "-7", "\u0667")


@contextmanager
def open_target() -> Iterator[Run]:
    """Make a folder with a secret beside it, and yield the function that takes an input."""
    with tempfile.TemporaryDirectory(prefix="clary-fuzz-") as name:
        place = Path(os.path.realpath(name))
        (place / "secret").write_bytes(SECRET)
        yield lambda data: _run(data, place)


def _run(data: bytes, place: Path) -> None:
    reader = ByteReader(data)
    kind = reader.below(3)
    began_s = time.process_time()
    if kind == 2:
        _run_markers(reader)
    else:
        folder = place / "folder"
        folder.mkdir()
        try:
            _fill(reader, folder)
            if kind == 0:
                _run_paths(reader, folder)
            else:
                _run_requirements(reader, folder)
        finally:
            shutil.rmtree(folder)
    took_s = time.process_time() - began_s
    require(took_s < MAX_S, "it takes long", seconds=took_s)
    require((place / "secret").read_bytes() == SECRET, "a file outside of the folder was changed")
    require(
        sorted(os.listdir(place)) == ["secret"], "something was made outside of the folder", names=os.listdir(place)
    )


def _fill(reader: ByteReader, folder: Path) -> None:
    """Make entries of a folder as a program could: files, folders, links, pipes."""
    for _ in range(reader.below(6)):
        path = folder / reader.choose(("a", "a/b", "a/b/c", "b", "a/c"))
        kind = reader.below(4)
        with suppress(OSError, ValueError):
            if os.path.lexists(path) or os.path.realpath(path.parent) != str(path.parent):
                continue  # a pipe that nobody reads, or behind a link: nothing is written there
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == 0:
                path.write_bytes(reader.chunk())
            elif kind == 1:
                path.symlink_to(reader.choose(_TARGETS))
            elif kind == 2:
                path.mkdir()
            else:
                os.mkfifo(path)


def _run_paths(reader: ByteReader, folder: Path) -> None:
    path, other = reader.word(_PATHS), reader.word(_PATHS)
    with Folder.at(folder) as opened:
        _check_ways(opened, path)
        with suppress(OSError):
            found = opened.read(path, max_bytes=100)
            require(found != SECRET[:100], "a file outside of the folder is read", path=path)
        acts: tuple[Callable[[], object], ...] = (
            lambda: opened.write(path, b"written"),
            lambda: opened.rename(path, other),
            lambda: opened.make_link(other, "../secret"),
            lambda: opened.set_mode(other, 0o600),
            lambda: opened.make_fifo(path, mode=0o600),
            lambda: opened.remove(path),
            lambda: opened.remove_folder(other),
            lambda: opened.folder(path, create=True).close(),
        )
        for act in acts:
            if reader.chance():
                with suppress(OSError):
                    act()
        for entry in entries(opened, max_entries=100, max_depth=20):
            require(
                not entry.path.startswith("/") and ".." not in entry.path.split("/"), "an entry leads out", at=entry
            )


def _check_ways(opened: Folder, path: str) -> None:
    """The kernel's own way to open and the walk say the same of a path."""
    results = []
    for way in (beneath.open_beneath, _open_by_walking):
        try:
            descriptor = way(opened.fileno(), path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            results.append(f"refused: {error.errno}")
        else:
            status = os.fstat(descriptor)
            require(not stat.S_ISLNK(status.st_mode), "a link is opened", path=path)
            results.append(f"{status.st_dev} {status.st_ino}")
            os.close(descriptor)
    require(results[0] == results[1], "two ways to open a path disagree", path=path, results=results)


def _open_by_walking(folder: int, path: str, flags: int) -> int:
    own = beneath._has_openat2
    beneath._has_openat2 = lambda: False  # type: ignore[assignment]
    try:
        return beneath.open_beneath(folder, path, flags)
    finally:
        beneath._has_openat2 = own


def _run_requirements(reader: ByteReader, folder: Path) -> None:
    lines = [reader.word(_LINES) for _ in range(reader.below(8))]
    text = "".join(line + reader.choose(("\n", "\r\n", "\r", "\\\n")) for line in lines)
    with suppress(OSError):
        (folder / "requirements.txt").write_bytes(text.encode("utf-8", "surrogateescape"))
    try:
        asked = read_requirements(folder, "requirements.txt")
    except AgentError as error:
        require(error.fault is Fault.USER, "a requirement file's fault is blamed on others", error=error.message)
        require(len(error.message) < 2000 and error.message.isprintable(), "a refusal is odd", error=error.message)
        return
    require(len(asked.files) <= MAX_FILES, "too many files are read", number=len(asked.files))
    for name, content in asked.files.items():
        require(len(content) <= MAX_FILE_BYTES, "a file is too long", name=name)
        require(SECRET not in content, "a file outside of the folder is read", name=name)
        place = Path(os.path.realpath(folder / name))
        require(place.is_relative_to(folder.resolve()), "a file outside of the folder is named", name=name)
    for line in asked.plain:
        require("/" not in line.split(";")[0] and "\n" not in line, "a plain requirement names a place", line=line)


def _run_markers(reader: ByteReader) -> None:
    files = {
        reader.choose(_FILES) if not reader.chance(6) else reader.text().strip("/") or "x": FileFacts(
            size_bytes=reader.byte(),
            modified_ns=reader.below(4),
            changed_ns=reader.below(4),
            inode=reader.byte(),
            mode=0o600,
        )
        for _ in range(reader.below(8))
    }
    pointer = reader.word(_POINTERS)
    whole = reader.chance()
    # What a watch has seen: the order in which some of the files were closed.
    seen = {path: reader.byte() for path in files if reader.chance()}

    def came_last(marker: str, path: str) -> bool | None:
        return seen[marker] > seen[path] if marker in seen and path in seen else None

    found = marked(files, is_whole=lambda path: whole, text_of=lambda path: pointer[:256], came_last=came_last)
    for path, mark in found.items():
        marker = mark.path
        require(whole, "a marker that is not whole says something", path=path, marker=marker)
        require(path in files and marker in files and path != marker, "a file stands for itself", path=path)
        require(mark.is_seen == (came_last(marker, path) is not None), "times decide against what was seen", path=path)
        if mark.is_seen:
            require(bool(came_last(marker, path)), "what was seen to come later is called whole", path=path)
        else:
            times = [(files[one].modified_ns, files[one].changed_ns) for one in (path, marker)]
            require(all(a <= b for a, b in zip(*times, strict=True)), "what came later is called whole", path=path)
        above = marker.rpartition("/")[0]
        require(
            path.startswith(f"{above}/" if above else ""), "a marker speaks of another folder", path=path, of=marker
        )
