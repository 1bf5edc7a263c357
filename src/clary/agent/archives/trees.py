"""Reader of this host's folders as members of an archive.

Where: results (`model/`, `output/data/`) leave a host through this; the program has ended by then.

Rules:
- Entries are sorted by name; a folder precedes its content.
- A regular file is opened once, and its size is fixed at that moment. A file that grows later is cut at that size with
  a note; a file that shrinks or cannot be read is an error: an incomplete result is worse than no result.
- A symbolic link that stays inside its source is kept; an absolute link becomes relative.
- A link that leads elsewhere in the job's own `/opt/ml` is replaced by its target: `model/best -> ../checkpoints/7`
  is a common way to choose a model, and the link alone would lose it.
- Any other link (outside, dangling, cyclic) is kept unchanged, with a note: a read through it would let a program
  take files of this machine that it cannot see itself. `follow_links`, for stores that have no links, reads through
  every link with a permitted target and skips the other links with a note.
- A folder that the program saw at a path of `mounts` is read instead of the entry that lies at that path.
- Sockets, named pipes and devices are skipped with a note. Hard links are written as separate files.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clary.agent.archives.gzip_writer import ByteSink, GzipWriter
from clary.agent.archives.links import NO_MOUNTS, Mounts, Parts, link_at, on_disk, resolve_link, status_of
from clary.agent.archives.members import Member, MemberKind
from clary.agent.archives.tar_writer import TarWriter
from clary.agent.notes import NoteBook
from clary.base.beneath import Folder, open_regular
from clary.base.errors import AgentError, Fault
from clary.contract.ml_tree import OPT_ML

_MAX_DEPTH = 200  # nested folders
_MAX_DETOURS = 4  # nested folders that were each reached by a link
_MODE_BITS = 0o777


@dataclass(frozen=True, kw_only=True)
class TreeSource:
    """A folder or file whose content goes into an archive; a missing source has no content."""

    root: Path  # a folder's content is archived; a file is archived under its own name
    arc_prefix: str = ""  # folders in the archive below which the source is put
    home: Path | None = None  # the job's /opt/ml, from which links may bring in files; None: `root` alone
    mounts: Mounts = field(default_factory=lambda: NO_MOUNTS)  # below home


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """Number and size of the files that went into an archive, with notes."""

    num_members: int  # files, folders and links
    num_files: int
    size_bytes: int  # of the files' content
    archive_bytes: int  # of the archive before compression
    notes: tuple[str, ...]


def write_tree(
    fileobj: ByteSink, sources: Sequence[TreeSource], *, compress: bool, follow_links: bool = False
) -> TreeFacts:
    """Write the content of `sources` to `fileobj` as one tar archive, gzip or plain; see the module's rules.

    Args:
        fileobj: receives the archive and stays open.
        sources: written in this order.
        compress: whether to compress with gzip.
        follow_links: whether links are read through, for stores that have no links.
    Raises: AgentError, naming the path, if an entry changed while it was archived or could not be read; errors of
    `fileobj` propagate.
    """
    notes = NoteBook()
    gzip_writer = GzipWriter(fileobj) if compress else None
    try:
        writer = TarWriter(gzip_writer or fileobj)
        for member in walk_tree(sources, notes=notes, follow_links=follow_links):
            writer.add(member)
        writer.close()
        if gzip_writer:
            gzip_writer.close()
    finally:
        if gzip_writer:
            gzip_writer.abort()
    return TreeFacts(
        num_members=writer.num_members,
        num_files=writer.num_files,
        size_bytes=writer.content_bytes,
        archive_bytes=writer.archive_bytes,
        notes=notes.lines(),
    )


def walk_tree(
    sources: Sequence[TreeSource], *, notes: NoteBook, follow_links: bool = False
) -> Generator[Member, None, None]:
    """Yield the members that `sources` give, by the module's rules; each file's content is open until the next one.

    Args:
        sources: taken in this order.
        notes: receives a note on each entry that is skipped, cut, or kept as a link without content.
        follow_links: whether links are read through, for stores that have no links.
    Raises: AgentError naming the path that could not be read.
    """
    for source in sources:
        yield from _Walk(source, notes, follow_links=follow_links).members()


def has_members(sources: Sequence[TreeSource]) -> bool:
    """Whether `sources` yield at least one member. Raises: as `walk_tree`."""
    members = walk_tree(sources, notes=NoteBook())
    try:
        return next(members, None) is not None
    finally:
        members.close()


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A folder, with its paths on disk and in the archive."""

    on_disk: Parts  # below home, no links
    in_archive: Parts
    top: Parts  # on disk; links to targets below it are kept
    top_in_archive: Parts
    above: tuple[Parts, ...]  # folders on disk from which links led here
    depth: int


class _Walk:
    """One pass over one source."""

    def __init__(self, source: TreeSource, notes: NoteBook, *, follow_links: bool) -> None:
        self._home = source.home or source.root
        self._root = source.root
        self._mounts = source.mounts
        self._prefix: Parts = tuple(part for part in source.arc_prefix.split("/") if part)
        self._notes = notes
        self._follow_links = follow_links

    def members(self) -> Iterator[Member]:
        """Yield the source's members."""
        found = self._root_on_disk()
        if found is None:
            return
        root, is_folder = found
        if is_folder:
            prefix = self._prefix
            top = _Place(on_disk=root, in_archive=prefix, top=root, top_in_archive=prefix, above=(), depth=0)
            yield from self._folder(top)
            return
        folder = self._open_folder(root[:-1])
        try:
            yield from self._file(folder, root[-1], (*self._prefix, self._root.name))
        finally:
            os.close(folder)

    def _root_on_disk(self) -> tuple[Parts, bool] | None:
        """Return the source's path below home and whether the source is a folder; None if it does not exist.

        Raises: AgentError if the path is a link of the program that leads outside or nowhere, or if one of its parents
            is a link.
        """
        below_home = self._root.relative_to(self._home).parts
        with _read_errors_named(below_home):
            status = status_of(self._home, below_home, self._mounts)
            if status is None:
                return None
            target = link_at(self._home, below_home, self._mounts) if stat.S_ISLNK(status.st_mode) else None
        if target is None:
            return below_home, stat.S_ISDIR(status.st_mode)
        resolved = self._resolve(below_home[:-1], target)
        if resolved is None:
            shown = ascii(OPT_ML.joinpath(*below_home).as_posix())
            raise AgentError(
                f"{shown} was replaced by a symbolic link to {target!a}, outside /opt/ml or missing: what lies "
                f"there cannot be uploaded. Write results to {shown} itself.",
                fault=Fault.USER,
            )
        with _read_errors_named(resolved):
            status = status_of(self._home, resolved, self._mounts)
        return None if status is None else (resolved, stat.S_ISDIR(status.st_mode))

    def _folder(self, place: _Place) -> Iterator[Member]:
        """Yield the members of a folder, without the folder itself."""
        if place.depth > _MAX_DEPTH:
            raise AgentError(
                f"{ascii('/'.join(place.in_archive))[:200]} lies more than {_MAX_DEPTH} folders deep: "
                "results of that depth cannot be archived.",
                fault=Fault.USER,
            )
        descriptor = self._open_folder(place.on_disk)
        try:
            with _read_errors_named(place.in_archive):
                names = sorted(os.listdir(descriptor), key=os.fsencode)
            for name in names:
                yield from self._entry(descriptor, name, place)
        finally:
            os.close(descriptor)

    def _entry(self, folder: int, name: str, place: _Place) -> Iterator[Member]:
        path = (*place.in_archive, name)
        try:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            self._notes.add("left out, vanished while results were written", "/".join(path))
            return
        if stat.S_ISREG(facts.st_mode):
            yield from self._file(folder, name, path)
        elif stat.S_ISDIR(facts.st_mode):
            yield _folder_member(path, facts)
            yield from self._folder(
                _Place(
                    on_disk=(*place.on_disk, name),
                    in_archive=path,
                    top=place.top,
                    top_in_archive=place.top_in_archive,
                    above=place.above,
                    depth=place.depth + 1,
                )
            )
        elif stat.S_ISLNK(facts.st_mode):
            yield from self._link(os.readlink(name, dir_fd=folder), path, place, facts=facts)
        else:
            self._notes.add("left out, no regular file (a socket, named pipe or device)", "/".join(path))

    def _file(self, folder: int, name: str, path: Parts) -> Iterator[Member]:
        shown = "/".join(path)
        with _read_errors_named(path):
            descriptor = open_regular(folder, name)
        with io.FileIO(descriptor, "r") as file:
            facts = os.fstat(descriptor)
            content = _FixedSize(file, facts.st_size, path)
            yield Member(
                path=path,
                kind=MemberKind.FILE,
                size_bytes=facts.st_size,
                mode=stat.S_IMODE(facts.st_mode) & _MODE_BITS,
                mtime_s=max(0, int(facts.st_mtime)),
                content=content,
            )
            if os.fstat(descriptor).st_size > facts.st_size:
                self._notes.add("cut at the size they had when results were written, still growing", shown)

    def _link(self, target: str, path: Parts, place: _Place, *, facts: os.stat_result) -> Iterator[Member]:
        shown = f"{'/'.join(path)} -> {target}"
        resolved = self._resolve(place.on_disk, target)
        if resolved is None:
            if self._follow_links:
                self._notes.add("left out, symbolic links to outside /opt/ml or to nothing", shown)
                return
            self._notes.add("kept without content, symbolic links to outside /opt/ml or to nothing", shown)
            yield _link_member(path, target, facts)
            return
        is_inside = resolved[: len(place.top)] == place.top
        if is_inside and not self._follow_links:
            yield _link_member(path, self._relative_target(target, resolved, path=path, place=place), facts)
            return
        yield from self._through(resolved, path, place, shown=shown)

    def _through(self, resolved: Parts, path: Parts, place: _Place, *, shown: str) -> Iterator[Member]:
        """Yield the target of a link, under the link's own name."""
        is_mount = resolved in self._mounts
        parent = self._open_folder(resolved if is_mount else resolved[:-1])
        try:
            name = resolved[-1] if resolved and not is_mount else "."
            facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                yield from self._file(parent, name, path)
                return
        finally:
            os.close(parent)
        if not stat.S_ISDIR(facts.st_mode):
            self._notes.add("left out, no regular file (a socket, named pipe or device)", shown)
            return
        way = (*place.above, place.on_disk)
        if len(way) > _MAX_DETOURS or any(folder[: len(resolved)] == resolved for folder in way):
            self._notes.add("left out, symbolic links that lead back into themselves", shown)
            return
        yield _folder_member(path, facts)
        yield from self._folder(
            _Place(
                on_disk=resolved,
                in_archive=path,
                top=resolved,
                top_in_archive=path,
                above=way,
                depth=place.depth + 1,
            )
        )

    def _relative_target(self, target: str, resolved: Parts, *, path: Parts, place: _Place) -> str:
        """Return a relative text for a link, valid wherever the archive is unpacked."""
        here = path[len(place.top_in_archive) : -1]
        lexical = posixpath.normpath(posixpath.join("/".join(here), target))
        if not target.startswith("/") and not lexical.startswith(".."):
            return target
        inside = "/".join(resolved[len(place.top) :]) or "."
        return posixpath.relpath(inside, "/".join(here) or ".")

    def _resolve(self, folder: Parts, target: str) -> Parts | None:
        return resolve_link(self._home, folder, target, mounts=self._mounts)

    def _open_folder(self, parts: Parts) -> int:
        """Open a folder below home part by part, without following any link, even a link created meanwhile."""
        start, below_start = on_disk(self._home, parts, self._mounts)
        with _read_errors_named(parts), Folder.at(start) as top, top.folder("/".join(below_start)) as folder:
            return folder.detach()


class _FixedSize:
    """The first `size_bytes` of an open file; fewer only if the file has shrunk."""

    def __init__(self, file: io.FileIO, size_bytes: int, path: Parts) -> None:
        self._file = file
        self._left_bytes = size_bytes
        self._path = path

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes."""
        with _read_errors_named(self._path):
            data = self._file.read(self._left_bytes if size < 0 else min(size, self._left_bytes))
        self._left_bytes -= len(data)
        return data


@contextmanager
def _read_errors_named(path: Parts) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        shown = ascii("/".join(path))
        raise AgentError(
            f"Result {shown} cannot be read: {error.strerror or error}.",
            details={"path": shown, "errno": error.errno},
        ) from error


def _folder_member(path: Parts, facts: os.stat_result) -> Member:
    return Member(
        path=path,
        kind=MemberKind.FOLDER,
        mode=stat.S_IMODE(facts.st_mode) & _MODE_BITS,
        mtime_s=max(0, int(facts.st_mtime)),
    )


def _link_member(path: Parts, target: str, facts: os.stat_result) -> Member:
    return Member(path=path, kind=MemberKind.SYMLINK, mode=0o777, mtime_s=max(0, int(facts.st_mtime)), target=target)
