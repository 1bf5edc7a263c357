"""Extraction of a tar archive into a folder, never outside it.

Where: user code (`sourcedir.tar.gz`) and the results that `clary cp -x` copies are unpacked through this. Every name is
opened part by part from the folder's own descriptor without following links. Symbolic links are created last, after the
target of each has been resolved, so no member can be written through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clary.agent.archives.members import (
    ArchiveLimits,
    Member,
    MemberKind,
    Readable,
    checked_path,
    read_members,
    refused,
)
from clary.base.beneath import Folder
from clary.base.disk_space import disk_errors_named
from clary.base.errors import AgentError

if TYPE_CHECKING:
    from typing_extensions import Self

_COPY_BYTES = 1 << 20
_MAX_LINKS_FOLLOWED = 40  # Linux's own limit on a chain of links
_IMPLIED_FOLDER_MODE = 0o755
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class ArchiveFacts:
    """Number and size of the files in an archive."""

    num_files: int  # regular files and hard links
    size_bytes: int  # of the files' content
    links_left_out: tuple[str, ...] = ()  # "NAME -> TARGET" of links that lead out of the folder, sorted


def extract_tar(
    stream: Readable,
    folder: Path,
    *,
    limits: ArchiveLimits | None = None,
    label: str = "of user code",
    is_for_person: bool = False,
) -> ArchiveFacts:
    """Unpack a tar archive, plain or gzip, into `folder`, which is made if it is missing.

    If several files or links have one path, the last of them wins, as with tar; a folder and another member at one path
    are refused. Owners and setuid bits are ignored; the owner of an unpacked file can always read and write it. Links
    may point to anything inside `folder`.

    Args:
        stream: the archive from its first byte.
        label: name of the archive in messages, for example its URI.
        is_for_person: whether a program's results become files of a person: permissions obey the umask, and links that
            lead out of the folder are left out, not refused.
    Raises: AgentError: fault USER for a hostile, damaged or oversized archive and for a full disk; the message names
        member and reason. Entries unpacked before the error stay in `folder`; no file is ever written outside.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _Unpacking(folder, label=label, is_for_person=is_for_person) as unpacking:
            for member in read_members(stream, limits=limits or ArchiveLimits(), label=label):
                unpacking.add(member)
            unpacking.make_links()
            return ArchiveFacts(
                num_files=unpacking.num_files,
                size_bytes=unpacking.size_bytes,
                links_left_out=tuple(sorted(unpacking.left_out)),
            )
    except OSError as error:
        raise AgentError(f"Archive {label} could not be unpacked into {folder}: {error}") from error


class _Unpacking:
    """One unpacking into one folder; a context manager, because it holds descriptors."""

    def __init__(self, folder: Path, *, label: str, is_for_person: bool) -> None:
        self._folder = folder
        self._label = label
        self._is_for_person = is_for_person
        self._denied_bits = _umask() if is_for_person else 0
        self._root = Folder.at(folder)
        self._parent: tuple[tuple[str, ...], int] | None = None  # the folder of the last member, kept open
        self._links: dict[tuple[str, ...], str] = {}  # symbolic links still to be made
        self.num_files = 0
        self.size_bytes = 0
        self.left_out: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget_parent()
        self._root.close()

    def add(self, member: Member) -> None:
        """Write one member; a symbolic link is only recorded for `make_links`."""
        for depth in range(1, len(member.path)):
            if member.path[:depth] in self._links:
                link = "/".join(member.path[:depth])
                raise self._refused(member, f"it goes through the symbolic link {link!a}")
        with disk_errors_named(self._folder / member.name, needed_bytes=member.size_bytes):
            if member.kind is MemberKind.FOLDER:
                self._add_folder(member)
                return
            parent = self._open_parent(member)
            self._clear(member, parent)
            if member.kind is MemberKind.FILE:
                self._add_file(member, parent)
            elif member.kind is MemberKind.SYMLINK:
                self._links[member.path] = member.target
            else:
                self._add_hard_link(member, parent)

    def make_links(self) -> None:
        """Make the symbolic links if each of them leads to a path inside the folder."""
        inside = {}
        for path, target in self._links.items():
            reason = self._why_outside(path, target)
            if reason is None:
                inside[path] = target
            elif self._is_for_person:
                self.left_out.append(f"{'/'.join(path)} -> {target}")
            else:
                raise refused(self._label, "/".join(path), f"it is a symbolic link to {target!a}, {reason}")
        for path, target in inside.items():
            link = Member(path=path, kind=MemberKind.SYMLINK, target=target)
            with disk_errors_named(self._folder / link.name, needed_bytes=len(target)):
                os.symlink(target, path[-1], dir_fd=self._open_parent(link))

    def _add_folder(self, member: Member) -> None:
        if member.path in self._links:
            raise self._refused(member, "it is a folder where a symbolic link stood before")
        descriptor = self._open_folders(member, member.path)
        try:
            os.fchmod(descriptor, (member.mode & ~self._denied_bits) | stat.S_IRWXU)
        finally:
            os.close(descriptor)

    def _add_file(self, member: Member, parent: int) -> None:
        assert member.content is not None
        descriptor = os.open(member.path[-1], _NEW_FILE_FLAGS, 0o600, dir_fd=parent)
        with open(descriptor, "wb", buffering=0) as file:
            while data := member.content.read(_COPY_BYTES):
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            os.fchmod(descriptor, (member.mode & ~self._denied_bits) | stat.S_IRUSR | stat.S_IWUSR)
            os.utime(descriptor, (member.mtime_s, member.mtime_s))
        self.num_files += 1
        self.size_bytes += member.size_bytes

    def _add_hard_link(self, member: Member, parent: int) -> None:
        source = checked_path(member.target, label=self._label)
        missing = self._refused(member, f"it repeats {member.target!a}, which no member before it holds")
        if not source:
            raise missing
        if source in self._links:  # a hard link to a symbolic link becomes a link with the same target
            self._links[member.path] = self._links[source]
            return
        try:
            source_parent = self._open_folders(member, source[:-1], create=False)
        except FileNotFoundError as error:
            raise missing from error
        try:
            facts = os.stat(source[-1], dir_fd=source_parent, follow_symlinks=False)
            if not stat.S_ISREG(facts.st_mode):
                raise missing
            os.link(source[-1], member.path[-1], src_dir_fd=source_parent, dst_dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError as error:
            raise missing from error
        finally:
            os.close(source_parent)
        self.num_files += 1

    def _clear(self, member: Member, parent: int) -> None:
        """Remove an earlier member at the same path. Raises: AgentError if that member is a folder."""
        self._links.pop(member.path, None)
        try:
            facts = os.stat(member.path[-1], dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(facts.st_mode):
            raise self._refused(member, f"it is a {member.kind} where a folder stands")
        os.unlink(member.path[-1], dir_fd=parent)

    def _open_parent(self, member: Member) -> int:
        """Return the descriptor of a member's folder; it stays open until a member lies elsewhere."""
        folders = member.path[:-1]
        if self._parent is None or self._parent[0] != folders:
            self._forget_parent()
            self._parent = (folders, self._open_folders(member, folders))
        return self._parent[1]

    def _open_folders(self, member: Member, folders: tuple[str, ...], *, create: bool = True) -> int:
        """Open a folder below the root; `create` makes missing folders on the way. The caller closes the descriptor."""
        try:
            with self._root.folder("/".join(folders), create=create, mode=_IMPLIED_FOLDER_MODE) as folder:
                return folder.detach()
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise self._refused(member, "a part of its path is a file or a link, not a folder") from error
            raise

    def _forget_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _why_outside(self, path: tuple[str, ...], target: str) -> str | None:
        """Return why a symbolic link leaves the folder; None if it stays inside.

        The path is resolved part by part on disk, as the kernel does, because its text misleads: `a/link/..` is the
        parent of the target of `link`.
        """
        place = list(path[:-1])
        ahead = list(reversed(target.split("/")))
        if target.startswith("/"):
            return "which is absolute"
        if not target or "\0" in target:
            return "which is not a path"
        num_followed = 0
        while ahead:
            part = ahead.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not place:
                    return "which leads out of the folder"
                place.pop()
                continue
            place.append(part)
            next_target = self._link_at(tuple(place))
            if next_target is None:
                continue
            num_followed += 1
            if num_followed > _MAX_LINKS_FOLLOWED:
                return f"which leads through more than {_MAX_LINKS_FOLLOWED} links"
            if next_target.startswith("/"):
                return "which leads to an absolute link"
            place.pop()
            ahead.extend(reversed(next_target.split("/")))
        return None

    def _link_at(self, path: tuple[str, ...]) -> str | None:
        if path in self._links:
            return self._links[path]
        try:
            return os.readlink(self._folder.joinpath(*path))
        except OSError:  # not a link, or no such entry
            return None

    def _refused(self, member: Member, reason: str) -> AgentError:
        return refused(self._label, member.name, reason)


def _umask() -> int:
    """Return the umask of this process, which must have no other thread."""
    bits = os.umask(0o077)
    os.umask(bits)
    return bits
