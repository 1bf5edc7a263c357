"""Merge of several hosts' trees, member by member, as they stream by.

Rules: hosts are merged in the plan's order, and the first host with a path decides its content. A later host's entry at
the same path is dropped: silently if its content is equal (most hosts save the same model), else with a note that names
both hosts. A path below a file or link of an earlier host counts as different content, because an archive with both
could not be unpacked. Content is compared by SHA-256, computed while the first copy streams by; nothing is kept on
disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from clary.agent.archives import Member, MemberKind, Readable
from clary.agent.artifacts.sinks import Sink
from clary.agent.notes import NoteBook
from clary.base.errors import AgentError

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    """Entry at a path of the merged tree."""

    kind: MemberKind
    content: bytes  # a file's size and digest, or a link's text
    host: str


class Merge:
    """Merges trees into `sink`.

    Args:
        label: kind of the merged trees, for notes: `model` or `output`.
        compares: false if all members come from one folder of one host; their content need not be hashed.
    """

    def __init__(self, sink: Sink, *, notes: NoteBook, label: str, compares: bool) -> None:
        self._sink = sink
        self._notes = notes
        self._label = label
        self._compares = compares
        self._entries: dict[tuple[str, ...], _Entry] = {}

    def add_host(self, host: str, members: Iterable[Member]) -> None:
        """Merge the tree of one host; errors of the sink and of contents propagate."""
        for member in members:
            standing = self._standing(member)
            if standing is None:
                self._entries[member.path] = self._pass_on(member, host)
            elif not self._repeats(member, standing):
                self._notes.add(
                    f"{self._label}: hosts differ, the first one's version is kept",
                    f"{member.name} (of {standing.host}, not {host})",
                )

    def _standing(self, member: Member) -> _Entry | None:
        """Return the entry at a member's path, or the file or link above it that blocks the path, or None."""
        for depth in range(1, len(member.path)):
            above = self._entries.get(member.path[:depth])
            if above is not None and above.kind is not MemberKind.FOLDER:
                return above
        return self._entries.get(member.path)

    def _pass_on(self, member: Member, host: str) -> _Entry:
        if member.kind is MemberKind.HARDLINK:
            raise AgentError(f"{self._label} of {host}: {member.name!a} is a hard link, which no agent writes.")
        if member.kind is not MemberKind.FILE:
            self._sink.add(member)
            return _Entry(member.kind, member.target.encode("utf-8", "surrogateescape"), host)
        assert member.content is not None
        if not self._compares:
            self._sink.add(member)
            return _Entry(member.kind, b"", host)
        content = _Hashed(member.content)
        self._sink.add(replace(member, content=content))
        return _Entry(member.kind, content.fingerprint(member.size_bytes), host)

    def _repeats(self, member: Member, standing: _Entry) -> bool:
        if member.kind is not standing.kind:
            return False
        if member.kind is MemberKind.FOLDER:
            return True
        if member.kind is not MemberKind.FILE:
            return member.target.encode("utf-8", "surrogateescape") == standing.content
        assert member.content is not None
        content = _Hashed(member.content)
        while content.read(_READ_BYTES):
            pass
        return content.fingerprint(member.size_bytes) == standing.content


class _Hashed:
    """Content that is hashed as it is read."""

    def __init__(self, content: Readable) -> None:
        self._content = content
        self._digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes."""
        data = self._content.read(size)
        self._digest.update(data)
        return data

    def fingerprint(self, size_bytes: int) -> bytes:
        """Return the size and the SHA-256 digest of the content, which equal contents share."""
        return size_bytes.to_bytes(8, "big") + self._digest.digest()
