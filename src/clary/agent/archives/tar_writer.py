"""Writer of members to a stream, as a tar archive whose bytes depend on the members alone.

Where: `trees.write_tree` and the merge of results (`agent.artifacts`) write through this. The same members give the
same bytes: owners are 0, times are whole seconds.
"""

from __future__ import annotations

import tarfile

from clary.agent.archives.gzip_writer import ByteSink
from clary.agent.archives.members import BLOCK_BYTES, Member, MemberKind
from clary.base.errors import AgentError

_COPY_BYTES = 1 << 20
_RECORD_BYTES = 20 * BLOCK_BYTES  # tar pads an archive to whole records
_TYPES = {
    MemberKind.FILE: tarfile.REGTYPE,
    MemberKind.FOLDER: tarfile.DIRTYPE,
    MemberKind.SYMLINK: tarfile.SYMTYPE,
    MemberKind.HARDLINK: tarfile.LNKTYPE,
}


class TarWriter:
    """Writes one archive to `sink`; `close` ends the archive and leaves the sink open."""

    def __init__(self, sink: ByteSink) -> None:
        self._sink = sink
        self.num_members = 0
        self.num_files = 0
        self.content_bytes = 0  # of all files' content
        self.archive_bytes = 0

    def add(self, member: Member) -> None:
        """Write one member.

        Raises: AgentError if a file yields fewer or more bytes than its member's size; the archive is then unusable.
            Errors of the sink and of the content propagate.
        """
        info = tarfile.TarInfo(member.name)
        info.type = _TYPES[member.kind]
        info.mode = member.mode
        info.mtime = member.mtime_s
        info.linkname = member.target
        info.size = member.size_bytes
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self.num_members += 1
        if member.kind is MemberKind.FILE:
            self._copy(member)
            self.num_files += 1
            self.content_bytes += member.size_bytes

    def close(self) -> None:
        """Write the end mark."""
        self._write(bytes(2 * BLOCK_BYTES))
        self._write(bytes(-self.archive_bytes % _RECORD_BYTES))

    def _copy(self, member: Member) -> None:
        assert member.content is not None
        copied = 0
        while data := member.content.read(_COPY_BYTES):
            copied += len(data)
            if copied > member.size_bytes:
                break
            self._write(data)
        if copied != member.size_bytes:
            raise AgentError(
                f"{member.name!a} changed while it was archived: expected {member.size_bytes} bytes, "
                f"got {'more' if copied > member.size_bytes else copied}.",
                retryable=True,
                details={"path": ascii(member.name), "size_bytes": member.size_bytes},
            )
        self._write(bytes(-copied % BLOCK_BYTES))

    def _write(self, data: bytes) -> None:
        if data:
            self._sink.write(data)
            self.archive_bytes += len(data)
