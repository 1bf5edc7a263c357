"""Publication of checkpoints at the paths that users read: the store copies content of sets to plain paths.

Only the host with the lowest number does this, for the sets of all hosts, so that no two hosts write one key. A plain
path that the newest set of this host references is never overwritten. Sets that other hosts commit after this host has
last read their sets are copied when the prefix is next used.

These copies are for users and other tools; a restore reads sets. A failed copy is reported and delays no other work.
"""

from __future__ import annotations

from collections.abc import Callable

from clary.agent.checkpoints.history import Writer
from clary.agent.checkpoints.places import Prefix, TakenNames, set_problem
from clary.agent.checkpoints.uploading import listed
from clary.base.errors import ContractError, ObjectStoreError
from clary.contract.checkpoint_sets import (
    OWN_FOLDER,
    CheckpointFile,
    CheckpointSet,
    read_manifest,
    read_manifest_key,
)
from clary.contract.object_store import ObjectStore

MAX_MANIFEST_BYTES = 256 << 20
_SHOWN_CHARACTERS = 100
_MAX_FAILURES = 3  # retryable failures in one pass, after which the store counts as unreachable
_TRIES_UNTIL_NOTE = 3  # failed tries per file before a note
_MAX_NOTES = 20  # limit of notes on files that cannot be copied


class Publisher:
    """Keeps plain paths up to date; used by the thread that writes sets.

    Args:
        names: plain paths that have an object; shared with the writer of sets.
        note: called once for each file, or kind of file, that cannot be copied.
    """

    def __init__(
        self, prefix: Prefix, store: ObjectStore, *, writer: Writer, names: TakenNames, note: Callable[[str], None]
    ) -> None:
        self._prefix = prefix
        self._store = store
        self._writer = writer
        self._names = names
        self._note = note
        self._copied: dict[str, tuple[str, str]] = {}  # path -> SHA-256 and ETag of the copied object
        self._done: set[tuple[str, str]] = set()  # path and SHA-256 of files that need no further try
        self._sets: dict[str, CheckpointSet | None] = {}  # host -> its newest set
        self._numbers: dict[str, int] = {}
        self._has_hidden = False  # whether paths that cannot be copied were noted
        self._clashes: set[tuple[str, str]] = set()  # pairs of hosts whose clash was reported
        self._num_failed: dict[str, int] = {}  # path, or host whose sets cannot be listed -> number of failed tries
        self._failures_told: set[str] = set()

    def publish(
        self,
        own: CheckpointSet | None,
        *,
        is_behind: bool = True,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Copy files to their plain paths, which users read, unless they are there already.

        Args:
            own: newest set of this host.
            is_behind: whether `own` may have new files; other hosts' sets are always read.
            is_given_up: once it returns True, no further copy is tried, and failures are not reported.
        Returns: whether no file needs another try.
        """
        if not self._writer.is_first or not (is_behind or self._writer.others):
            return True
        num_failures = 0

        def failed(name: str, error: ObjectStoreError) -> None:
            nonlocal num_failures
            num_failures += error.retryable
            self._num_failed[name] = self._num_failed.get(name, 0) + 1
            if not is_given_up() and (not error.retryable or self._num_failed[name] >= _TRIES_UNTIL_NOTE):
                self._note_failure(name, error)

        shown: dict[str, tuple[str, CheckpointFile]] = {}
        for file in own.files if own is not None else ():
            shown[file.path] = (self._writer.host, file)
        for host in self._writer.others:
            try:
                other = self._newest_of(host)
            except ObjectStoreError as error:
                failed(host, error)
                other = self._sets.get(host)
            for file in other.files if other is not None else ():
                first, standing = shown.setdefault(file.path, (host, file))
                if first != host and standing.sha256 != file.sha256:
                    self._note_clash(first, host, file.path)
        behind = [file for _, file in shown.values() if file.key != file.path]
        # Files with failed tries come last, so that they do not delay other files.
        for file in sorted(behind, key=lambda file: self._num_failed.get(file.path, 0)):
            if is_given_up() or num_failures >= _MAX_FAILURES:
                return False
            if (file.path, file.sha256) in self._done:
                continue
            try:
                self._copy(file)
            except ObjectStoreError as error:
                failed(file.path, error)
                if not error.retryable and not is_given_up():
                    self._done.add((file.path, file.sha256))
            else:
                self._num_failed.pop(file.path, None)
        return num_failures == 0

    def may_name_plain(self, file: CheckpointFile) -> bool:
        """Whether the object at a file's plain path is still the copy that was made here."""
        sha256, etag = self._copied.get(file.path, ("", ""))
        if sha256 != file.sha256:
            return False
        found = listed(self._store, self._prefix.bucket, self._prefix.key(file.path))
        return found is not None and (found.size_bytes, found.etag) == (file.size_bytes, etag)

    def _copy(self, file: CheckpointFile) -> None:
        if self._names.collides(file.path) or not self._prefix.can_hold(file.path):
            self._done.add((file.path, file.sha256))
            self._note_hidden(file.path)
            return
        bucket, source_key, key = self._prefix.bucket, self._prefix.key(file.key), self._prefix.key(file.path)
        source = self._store.head(bucket, source_key)
        if source is None or source.size_bytes != file.size_bytes:
            return  # the other host has written a newer set meanwhile
        target = self._store.head(bucket, key)
        if target is None or (target.size_bytes, target.etag) != (source.size_bytes, source.etag):
            self._copied.pop(file.path, None)
            self._names.add(file.path)
            try:
                self._store.copy(bucket, source_key, key)
            except ObjectStoreError:
                if self._store.head(bucket, source_key) is None:
                    return  # the other host has written a newer set meanwhile
                raise
            target = listed(self._store, bucket, key)
        else:
            self._names.add(file.path)
        self._done = {done for done in self._done if done[0] != file.path} | {(file.path, file.sha256)}
        if target is not None and (target.size_bytes, target.etag) == (source.size_bytes, source.etag):
            self._copied[file.path] = (file.sha256, target.etag)

    def _note_failure(self, name: str, error: ObjectStoreError) -> None:
        """Report once that a file cannot be copied or a host's sets cannot be listed."""
        if name in self._failures_told or len(self._failures_told) >= _MAX_NOTES:
            return
        self._failures_told.add(name)
        more = "; no more such failures are reported" if len(self._failures_told) == _MAX_NOTES else ""
        self._note(
            f"checkpoints: {name[:_SHOWN_CHARACTERS]!a} is not up to date where people look, below "
            f"{self._prefix.uri}; sets are not touched by this: {error.message}{more}"
        )

    def _note_hidden(self, path: str) -> None:
        """Report the reason why a file cannot be copied to its plain path, once for all files."""
        if not self._has_hidden:
            self._has_hidden = True
            self._note(
                f"checkpoints: {path[:_SHOWN_CHARACTERS]!a}, and maybe others, is kept in the set alone: its name is "
                f"no key below {self._prefix.uri}, or a file stands there where it needs a folder"
            )

    def _note_clash(self, first: str, other: str, path: str) -> None:
        """Report that two hosts write one path with different content; once for each pair of hosts."""
        if (first, other) not in self._clashes:
            self._clashes.add((first, other))
            self._note(
                f"checkpoints: {first} and {other} both write {path!a}, with different content: below "
                f"{self._prefix.uri} stands that of {first}; a restore gives each host its own"
            )

    def _newest_of(self, host: str) -> CheckpointSet | None:
        """Return another host's newest set, or None if it is missing or untrusted. Raises: ObjectStoreError."""
        prefix = self._prefix.key(f"{OWN_FOLDER}/{host}/set-")
        found = [
            (place[1], info.key)
            for info in self._store.list_objects(self._prefix.bucket, prefix)
            if (place := read_manifest_key(info.key[len(self._prefix.base) :])) is not None
        ]
        number, key = max(found, default=(0, ""))
        if number and self._numbers.get(host) != number:
            data = self._store.get_bytes(self._prefix.bucket, key, max_bytes=MAX_MANIFEST_BYTES)
            try:
                read = read_manifest(data)
            except ContractError:
                read = None  # a restore reports the fault
            if read is not None and set_problem(read, host=host, number=number) is not None:
                read = None
            self._sets[host], self._numbers[host] = read, number
        return self._sets.get(host)
