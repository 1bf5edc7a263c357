"""Bounded reading of requirement files, and classification of their lines by their dependencies.

Where: `requirements` reads them before the installation. The files are untrusted: the agent reads only regular files
below the source folder, and gives the installer the content that it has read.

A line is one of these:
    plain     a package by name and version, from this machine's indexes
    include   another requirement or constraint file of the source folder
    remote    an option, or a package by its URL
    local     a path, or any other line: it may depend on any file in the source folder
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clary.agent.environments.interpreter import InterpreterFacts
from clary.base.beneath import Folder
from clary.base.beneath_trees import Entry, entries
from clary.base.errors import AgentError, Fault
from clary.contract.ml_tree import OPT_ML, MlTree

MAX_FILE_BYTES = 1024 * 1024
MAX_FILES = 64
MAX_DEPTH = 16  # nested includes
_NESTED = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_PLACES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")
_SWITCHES = (
    "--pre",
    "--prefer-binary",
    "--no-binary",
    "--only-binary",
    "--no-index",
    "--trusted-host",
    "--require-hashes",
    "--use-feature",
)
_REMOTE = re.compile(r"(git\+)?(https?|ssh)://")
_ARCHIVE = re.compile(r"\.(whl|zip|tgz|tar(\.\w+)?)$", re.IGNORECASE)
_COMMENT = re.compile(r"(^|\s)#.*$")
_HASH = re.compile(r"\s--hash[=\s]\w+:[0-9a-fA-F]+")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
# Applied to lines with single blanks only: with runs of blanks `\s*` could backtrack for long (docs/adr/0049).
_VERSION = r"(?:===|[<>=!~]=|[<>]) ?[A-Za-z0-9.*+!_-]+"
_PLAIN = re.compile(
    rf"({_NAME}) ?(?:\[ ?(?:{_NAME}(?: ?, ?{_NAME})*)? ?\])?"
    rf" ?\(? ?(?:{_VERSION}(?: ?, ?{_VERSION})*)? ?,? ?\)? ?(?:;[\w\s.'\"<>=!~()+*-]*)?",
    re.ASCII,
)
_ADDRESS = re.compile(rf"{_NAME} ?(?:\[[^\]]*\])? ?@ ?", re.ASCII)
_BLANKS = re.compile(r"\s+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REASON_CHARACTERS = 1000  # length limit of a reason, which contains untrusted names
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RequirementFiles:
    """A requirement file with all files that it includes."""

    name: str  # path of the requested file, below the source folder
    files: Mapping[str, bytes]  # path below the source folder -> content
    plain: tuple[str, ...]  # requirements by name and version
    has_options: bool  # whether options set other package sources than this machine's indexes, or other rules
    needs_source: bool  # whether the installation may depend on other files of the source folder


def read_requirements(source: Path, name: str) -> RequirementFiles:
    """Read a requirement file of the folder `source` with all files that it includes.

    Missing files are ignored here; the installer reports them.
    Raises: AgentError with fault USER for a file that is not a regular file below `source`, is too large or includes
        itself, for an included path outside `source`, and for too many or too deeply nested files.
    """
    with Folder.at(source) as folder:
        reader = _Reader(folder, os.path.realpath(source))
        reader.read(name, ())
    return RequirementFiles(
        name=name,
        files=dict(reader.files),
        plain=tuple(reader.plain),
        has_options=reader.has_options,
        needs_source=reader.needs_source,
    )


class _Reader:
    def __init__(self, folder: Folder, real_folder: str) -> None:
        self._folder = folder
        self._real_folder = real_folder
        self.files: dict[str, bytes] = {}
        self.plain: list[str] = []
        self.has_options = self.needs_source = False

    def read(self, name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise _refused(f"{name} includes itself, by way of {' and '.join(above[above.index(name) :])}")
        if name in self.files:
            return
        if len(self.files) >= MAX_FILES or len(above) >= MAX_DEPTH:
            raise _refused(
                f"more than {MAX_FILES} files are included, or includes are nested more than {MAX_DEPTH} deep"
            )
        try:
            content = self._content(name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _refused(f"{name} cannot be read as a file of the source folder: {error.strerror}") from error
        if len(content) > MAX_FILE_BYTES:
            raise _refused(f"{name} is longer than {MAX_FILE_BYTES} bytes")
        self.files[name] = content
        text = content.decode("utf-8-sig", "replace").replace("\\\r\n", " ").replace("\\\n", " ")
        for line in re.split(r"\r\n|\r|\n", text):
            self._take(_COMMENT.sub("", line).strip(), name, above)

    def _content(self, name: str) -> bytes:
        try:
            return self._folder.read(name, max_bytes=MAX_FILE_BYTES + 1)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        # A link to another file of the folder counts as that file; no process changes the folder at this time.
        place = os.path.relpath(os.path.realpath(posixpath.join(self._real_folder, name)), self._real_folder)
        if place.startswith(".."):
            raise _refused(f"{name} is a link that leads out of the source folder; put the file itself into it")
        return self._folder.read(place, max_bytes=MAX_FILE_BYTES + 1)

    def _take(self, line: str, name: str, above: tuple[str, ...]) -> None:
        if not line:
            return
        if line.startswith("-"):
            self._take_option(line, name, above)
            return
        short = _BLANKS.sub(" ", line)
        plain, address = _HASH.sub("", short), _ADDRESS.match(short)
        if _PLAIN.fullmatch(plain) and not _ARCHIVE.search(plain.split(";")[0]):
            self.plain.append(line)
        elif not _REMOTE.match(short[address.end() :] if address else short):
            self.needs_source = True

    def _take_option(self, line: str, name: str, above: tuple[str, ...]) -> None:
        option, value = _option(line)
        if option in _NESTED and not _REMOTE.match(value):
            self.read(_inside(value, name), (*above, name))
            return
        self.has_options = self.has_options or option not in _EDITABLE
        is_known = option in (*_NESTED, *_SWITCHES) or (option in (*_PLACES, *_EDITABLE) and bool(_REMOTE.match(value)))
        self.needs_source = self.needs_source or not is_known


def _inside(value: str, name: str) -> str:
    """Return the path of an included file, below the source folder."""
    place = value.removeprefix("file://").removeprefix("file:")
    code = str(MlTree(OPT_ML).code)
    if place.startswith(f"{code}/"):
        place = posixpath.relpath(place, code)
    elif not place.startswith("/"):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(name), place))
    if not value or "\0" in place or place.startswith(("/", "..")):
        raise _refused(f"{name} includes {value!r}: included files must lie in the source folder")
    return place


def _option(line: str) -> tuple[str, str]:
    """Parse a line's option and value, in the forms `-r x`, `-rx`, `--requirement x` and `--requirement=x`."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    name, has_value, value = words[0].partition("=")
    if not name.startswith("--") and len(words[0]) > len("-r"):
        return words[0][:2], words[0][2:].removeprefix("=")
    return name, value if has_value else " ".join(words[1:2])


def _refused(reason: str) -> AgentError:
    text = _CONTROL.sub("?", reason)[:_REASON_CHARACTERS]
    return AgentError(f"The requirements cannot be installed: {text}.", fault=Fault.USER)


def source_digest(source: Path, *, check: Callable[[], None]) -> str:
    """Return a hash of the whole content of the folder `source`; no link is followed.

    Args:
        check: called for each entry; raises if the time limit has passed.
    Raises: OSError.
    """
    digest = hashlib.sha256()
    with Folder.at(source) as folder:
        for entry in sorted(entries(folder), key=lambda entry: entry.path):
            check()
            _add_entry(digest, folder, entry)
    return digest.hexdigest()


def _add_entry(digest: hashlib._Hash, folder: Folder, entry: Entry) -> None:
    mode = entry.status.st_mode
    _add(digest, entry.path, f"{mode & 0o170111:o}", folder.read_link(entry.path) if entry.is_link else "")
    if entry.is_file:
        content = hashlib.sha256()
        with open(folder.open_file(entry.path), "rb", buffering=0) as file:
            while data := file.read(_COPY_BYTES):
                content.update(data)
        digest.update(content.digest())


def installation_key(facts: InterpreterFacts, asked: RequirementFiles | None, *what: str) -> str:
    """Return the name of the cached environment with these requirements: 32 hexadecimal digits.

    Args:
        facts: of the copied environment.
        asked: the requested requirement files.
        what: further values that distinguish environments.
    """
    digest = hashlib.sha256()
    _add(digest, facts.python, facts.version, facts.prefix, *facts.distributions)
    for name, content in sorted(asked.files.items()) if asked is not None else ():
        _add(digest, name, hashlib.sha256(content).hexdigest())
    _add(digest, "", *what)
    return digest.hexdigest()[:32]


def _add(digest: hashlib._Hash, *texts: str) -> None:
    for text in texts:
        data = text.encode("utf-8", "surrogateescape")
        digest.update(b"%d:" % len(data))
        digest.update(data)
