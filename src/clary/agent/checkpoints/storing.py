"""Writer of a host's checkpoint sets: stores the files that a look at the folder has chosen, and then a manifest.

Order of the steps: announce the new objects at plain paths; store the new files; scan the folder again; write the
manifest of the files that are unchanged in the folder; only then delete old content. So the newest set of a host stays
whole, at whichever step the host dies.

Files that were restored from another host's set belong to that host. They join a set of this host only after they
change here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from clary.agent.checkpoints.choosing import Choice
from clary.agent.checkpoints.evidence.observations import Decision
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.grouping import (
    NO_VERSION,
    NOTHING,
    GroupContent,
    GroupVersion,
    contents_of,
    group_of,
    versions_of,
    without_collisions,
)
from clary.agent.checkpoints.history import History, Writer
from clary.agent.checkpoints.places import Prefix, TakenNames
from clary.agent.checkpoints.scanning import FileFacts, Snapshot, scan
from clary.agent.checkpoints.step_counts import StepCountSource
from clary.agent.checkpoints.uploading import Upload, Uploader
from clary.base.clock import Clock
from clary.base.errors import AgentError, ObjectStoreError
from clary.contract.checkpoint_sets import (
    Announcement,
    CheckpointFile,
    CheckpointSet,
    announcement_key,
    content_key,
    manifest_key,
    write_announcement,
    write_manifest,
)
from clary.contract.object_store import ObjectStore

_NUM_MANIFESTS = 3  # newest manifests to keep in the store
_NUM_SETS = 2  # newest sets whose content is kept in the store
_CONTENT_NAME_BYTES = 16
_MAX_NAMED = 3


class SetWriter:
    """Writes the sets of one host; used by one thread, but other threads may read its properties.

    Args:
        may_name_plain: whether the object at a file's plain path is known to have the file's content.
        is_given_up: once it returns True, uploads fail with an AgentError.
        on_progress: called, from several threads, whenever the store has accepted data.
        step_counts: reads the steps that the debugger has counted; None: sets carry no step counts.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        prefix: Prefix,
        store: ObjectStore,
        *,
        writer: Writer,
        history: History,
        clock: Clock,
        may_name_plain: Callable[[CheckpointFile], bool] = lambda _: False,
        is_given_up: Callable[[], bool] = lambda: False,
        on_progress: Callable[[], None] = lambda: None,
        step_counts: StepCountSource | None = None,
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._store = store
        self._writer = writer
        self._clock = clock
        self._may_name_plain = may_name_plain
        self._step_counts = step_counts
        self._uploader = Uploader(folder, prefix, store, is_given_up=is_given_up, on_progress=on_progress)
        self.last = history.last
        self.taken: Mapping[str, GroupContent] = contents_of(history.baseline)
        self.names = TakenNames(history.standing)
        if history.last is not None:
            self._expect_at_plain_paths(history.last)
        self._recent = [history.last] if history.last is not None else []
        self._numbers = set(history.numbers)
        self._contents = set(history.contents)
        self.is_uncertain = False  # whether the store may hold a newer set than `last`
        self._unfinished = set(history.announced)  # objects at plain paths that are in no set
        self._inherited = history.inherited
        self._of_others = history.of_others
        self._decisions: Mapping[str, Decision] = {}  # evidence that files are whole, for the set in progress
        self._known = self._known_files(history)  # files whose current state is in the store
        self._doubts = _restored_doubts(history)

    def take(self, snapshot: Snapshot, choice: Choice, *, held: Mapping[str, int] | None = None) -> bool:
        """Store the chosen files of a snapshot, and write a set if it differs from the last set.

        Args:
            held: path -> open descriptor, for each chosen file that another file has replaced.
        Returns: whether a new set was written.
        Raises: ObjectStoreError, OSError; AgentError for unreadable files. Objects that were stored before the error
            are not stored again.
        """
        taken_at = self._clock.now()
        if self._step_counts is not None:
            # before the uploads: they take long, and rows of step counts are overwritten meanwhile
            self._step_counts.look()
        contents = contents_of(snapshot)
        self._decisions = choice.decisions
        for path in choice.decisions.keys() & self._known.keys():
            facts, file = self._known[path]
            if facts in (snapshot.files.get(path), choice.replaced.get(path)):
                self._known[path] = (facts, self._with_evidence(file))
        unread = self._store_new(self._own(_chosen_files(contents, choice)), held={})
        unread |= self._store_new(self._own(choice.replaced), held=held or {})
        versions, new_taken = self._new_versions(contents, choice)
        old = versions_of(self.last)
        merged, held_back = without_collisions(old, versions)
        now_taken = {**self.taken, **{name: new_taken[name] for name in versions if name not in held_back}}
        gone = self._gone(merged, now_taken)
        has_changed = any(_differs(merged.get(name, NO_VERSION), old.get(name, NO_VERSION)) for name in {*merged, *old})
        # Pieces of unfinished sets are announced already and need no new set.
        is_deleted = set(gone) - self._unfinished - set(self.last.gone if self.last is not None else ())
        is_new = has_changed or self.is_uncertain or bool(is_deleted)
        if is_new:
            self._commit(merged, gone=gone, taken_at=taken_at)
        self.taken = {name: content for name, content in now_taken.items() if content != NOTHING}
        if is_new:
            self._clean_up(snapshot)
        if unread:
            named = ", ".join(f"{path!a} ({why})" for path, why in list(unread.items())[:_MAX_NAMED])
            raise AgentError(f"{len(unread)} checkpoint files cannot be read: {named}")
        return is_new

    def _store_new(self, files: Mapping[str, FileFacts], *, held: Mapping[str, int]) -> dict[str, str]:
        """Store the files whose state is not in the store yet; return unreadable file -> reason."""
        new = {path: facts for path, facts in files.items() if self._stored(path, facts) is None}
        if not new:
            return {}
        uploads = [
            Upload(path=path, facts=facts, key=self._new_key(path), descriptor=held.get(path))
            for path, facts in sorted(new.items())
        ]
        plain = {upload.path for upload in uploads if upload.key == upload.path}
        if plain:
            self._unfinished |= plain
            self._announce()
            for path in plain:
                self.names.add(path)
        self._contents.update(upload.key for upload in uploads if upload.key != upload.path)

        def remember(upload: Upload, file: CheckpointFile) -> None:
            self._known[upload.path] = (upload.facts, self._with_evidence(file))

        return self._uploader.store_all(uploads, on_stored=remember)

    def _new_key(self, path: str) -> str:
        """Return the key for new content: on the first host its plain path, if free; else a new content key."""
        if self._writer.is_first and self.names.is_free(path) and self._prefix.can_hold(path):
            return path
        return content_key(self._writer.host, secrets.token_hex(_CONTENT_NAME_BYTES))

    def _announce(self) -> None:
        announcement = Announcement(number=self._next_number, paths=tuple(sorted(self._unfinished)))
        key = self._prefix.key(announcement_key(self._writer.host))
        self._store.put_bytes(self._prefix.bucket, key, write_announcement(announcement))

    def _new_versions(
        self, contents: Mapping[str, GroupContent], choice: Choice
    ) -> tuple[dict[str, GroupVersion], dict[str, GroupContent]]:
        """Scan again; return the new versions of unchanged groups, and for each group the content that was taken."""
        again = contents_of(scan(self._folder))
        old = versions_of(self.last)
        versions, taken = {}, {}
        for name in choice.whole:
            content, noise = contents.get(name, NOTHING), choice.noise.get(name, frozenset())
            new = self._whole(name, content.without(noise), noise, again.get(name, NOTHING), old)
            if new is not None:
                versions[name], taken[name] = self._with_doubts(name, *new, choice)
        for name, paths in choice.single.items():
            new = self._file_by_file(name, paths, again.get(name, NOTHING), old)
            versions[name], taken[name] = self._with_doubts(name, *new, choice)
        for path, facts in choice.replaced.items():
            name = group_of(path)
            file = self._stored(path, facts)
            if file is not None and path in again.get(name, NOTHING).files:
                version = versions.get(name, old.get(name, NO_VERSION))
                known = taken.get(name, self.taken.get(name, NOTHING))
                versions[name] = replace(
                    version, files={**version.files, path: file}, left_out=version.left_out - {path}
                )
                taken[name] = replace(known, files={**known.files, path: facts}, left_out=known.left_out - {path})
        return versions, taken

    def _with_doubts(
        self, name: str, version: GroupVersion, content: GroupContent, choice: Choice
    ) -> tuple[GroupVersion, GroupContent]:
        """Return a group's version and content, with the paths of the files that the group lacks filled in.

        It lacks the files left out now, and, while a restored file of the group is unchanged, the files that the
        restored set left out.
        """
        left_out = choice.left_out.get(name, frozenset())
        kept, files = self._doubts.get(name, NOTHING), content.files
        is_any_left = any(path in files and files[path].is_written_as(facts) for path, facts in kept.files.items())
        restored = kept.left_out - version.files.keys() if is_any_left else frozenset()
        return replace(version, left_out=left_out | restored), replace(content, left_out=left_out)

    def _whole(
        self,
        name: str,
        content: GroupContent,
        noise: frozenset[str],
        again: GroupContent,
        old: Mapping[str, GroupVersion],
    ) -> tuple[GroupVersion, GroupContent] | None:
        """Return a group with its whole content, and noise in its last taken state; None if the group has changed."""
        own = self._own(content.files)
        files = {path: file for path, facts in own.items() if (file := self._stored(path, facts)) is not None}
        if again.without(noise) != content or len(files) != len(own):
            return None
        kept = noise & again.files.keys()
        files |= {path: file for path, file in old.get(name, NO_VERSION).files.items() if path in kept}
        facts_of = {path: facts for path, facts in self.taken.get(name, NOTHING).files.items() if path in kept}
        return self._version(files, content), replace(content, files={**content.files, **facts_of})

    def _file_by_file(
        self, name: str, paths: frozenset[str], again: GroupContent, old: Mapping[str, GroupVersion]
    ) -> tuple[GroupVersion, GroupContent]:
        """Return a group with the current versions of `paths` and the last taken versions of its other files."""
        before, before_taken = old.get(name, NO_VERSION), self.taken.get(name, NOTHING)
        files_of = {path: file for path, file in before.files.items() if path in again.files}
        facts_of = {path: facts for path, facts in before_taken.files.items() if path in again.files}
        for path in paths & self._own(again.files).keys():
            stored_file = self._stored(path, again.files[path])
            if stored_file is not None:
                files_of[path] = stored_file
                facts_of[path] = again.files[path]
        taken = GroupContent(files=facts_of, folders=again.folders, links=again.links)
        return self._version(files_of, again), taken

    def _own(self, files: Mapping[str, FileFacts]) -> dict[str, FileFacts]:
        """Return the files, except unchanged files that were restored from elsewhere."""
        return {path: facts for path, facts in files.items() if self._inherited.files.get(path) != facts}

    def _version(self, files: Mapping[str, CheckpointFile], content: GroupContent) -> GroupVersion:
        return GroupVersion(
            files=files,
            folders=content.folders - self._inherited.folders,
            links={path: target for path, target in content.links.items() if self._inherited.links.get(path) != target},
        )

    def _expect_at_plain_paths(self, checkpoints: CheckpointSet) -> None:
        """Mark the plain paths of this set as occupied, except on the first host.

        The first host copies the other hosts' files to these paths, now or later.
        """
        if not self._writer.is_first:
            for file in checkpoints.files:
                self.names.add(file.path)

    def _stored(self, path: str, facts: FileFacts) -> CheckpointFile | None:
        known = self._known.get(path)
        return known[1] if known is not None and known[0] == facts else None

    def _with_evidence(self, file: CheckpointFile) -> CheckpointFile:
        decision = self._decisions.get(file.path)
        if decision is None:
            return file
        return replace(file, evidence=decision.evidence.value, rested_s=round(decision.rested_s, 1))

    def _with_plain_key(self, file: CheckpointFile) -> CheckpointFile:
        """Return the file with its plain path as key if the object at that path is known to have its content."""
        if self._writer.is_first and file.key != file.path and self._may_name_plain(file):
            return replace(file, key=file.path)
        return file

    def _commit(
        self,
        groups: Mapping[str, GroupVersion],
        *,
        gone: tuple[str, ...],
        taken_at: datetime,
    ) -> None:
        """Write the manifest and read it back: from then on the set exists."""
        in_groups = [file for version in groups.values() for file in version.files.values()]
        files = sorted(map(self._with_plain_key, in_groups), key=lambda file: file.path)
        links = {path: target for version in groups.values() for path, target in sorted(version.links.items())}
        checkpoints = CheckpointSet(
            host=self._writer.host,
            number=self._next_number,
            job_arn=self._writer.job_arn,
            attempt=self._writer.attempt,
            taken_at=taken_at,
            files=tuple(files),
            folders=tuple(sorted(folder for version in groups.values() for folder in version.folders)),
            links=links,
            gone=gone,
            left_out=tuple(sorted({path for version in groups.values() for path in version.left_out})),
            step_counts=self._step_counts.counts_of(files) if self._step_counts is not None else None,
        )
        data = write_manifest(checkpoints)
        # From here on a set with this number may exist, whatever the store answers: the next try uses another number,
        # and writes a set even without a change since the last known set.
        self._numbers.add(checkpoints.number)
        self.is_uncertain = True
        key = self._prefix.key(manifest_key(self._writer.host, checkpoints.number))
        self._store.put_bytes(self._prefix.bucket, key, data)
        if self._store.get_bytes(self._prefix.bucket, key, max_bytes=len(data) + 1) != data:
            raise ObjectStoreError(
                f"s3://{self._prefix.bucket}/{key}: the store returns other bytes than were written",
                retryable=True,
            )
        self.last = checkpoints
        self._expect_at_plain_paths(checkpoints)
        self.is_uncertain = False
        self._recent = [*self._recent, checkpoints][-_NUM_SETS:]
        self._unfinished.clear()
        for file in files:
            known = self._known.get(file.path)
            if known is not None and known[1].sha256 == file.sha256:
                self._known[file.path] = (known[0], file)

    def _gone(self, groups: Mapping[str, GroupVersion], taken: Mapping[str, GroupContent]) -> tuple[str, ...]:
        """Return the paths below the prefix that must not be restored: deleted files, pieces of unfinished sets.

        They include a file that was restored from another host's set and then deleted in this host's folder. The
        other host may still keep it in its own set.
        """
        named = {path for version in groups.values() for path in (*version.files, *version.links)}
        lying = {path for content in taken.values() for path in (*content.files, *content.links)}
        before = {file.path for file in self.last.files} | set(self.last.gone) if self.last is not None else set()
        deleted = {*self._inherited.files, *self._inherited.links} - lying
        candidates = (before | deleted | self._unfinished) - named
        return tuple(sorted(path for path in candidates if path in self.names or path in self._of_others))

    def _clean_up(self, snapshot: Snapshot) -> None:
        """Delete manifests and content that no set needs any more."""
        self._known = {path: known for path, known in self._known.items() if path in snapshot.files}
        needed = {file.key for checkpoints in self._recent for file in checkpoints.files}
        needed |= {file.key for _, file in self._known.values()}
        for key in sorted(self._contents - needed):
            self._store.delete(self._prefix.bucket, self._prefix.key(key))
            self._contents.discard(key)
        for number in sorted(self._numbers)[:-_NUM_MANIFESTS]:
            self._store.delete(self._prefix.bucket, self._prefix.key(manifest_key(self._writer.host, number)))
            self._numbers.discard(number)

    @property
    def _next_number(self) -> int:
        return max(self._numbers, default=0) + 1

    def _known_files(self, history: History) -> dict[str, tuple[FileFacts, CheckpointFile]]:
        files = history.last.files if history.last is not None else ()
        facts = history.baseline.files
        return {file.path: (facts[file.path], file) for file in files if file.path in facts}


def _chosen_files(contents: Mapping[str, GroupContent], choice: Choice) -> dict[str, FileFacts]:
    files: dict[str, FileFacts] = {}
    for name in choice.whole:
        # Noise is not stored here: the set must not wait for it.
        files.update(contents.get(name, NOTHING).without(choice.noise.get(name, ())).files)
    for name, paths in choice.single.items():
        content = contents.get(name, NOTHING)
        files.update({path: content.files[path] for path in paths if path in content.files})
    return files


def _differs(one: GroupVersion, other: GroupVersion) -> bool:
    """Whether two versions restore different content; keys of the content are ignored."""
    return (
        (one.folders, dict(one.links), one.left_out) != (other.folders, dict(other.links), other.left_out)
        or one.files.keys() != other.files.keys()
        or any(_content(file) != _content(other.files[path]) for path, file in one.files.items())
    )


def _restored_doubts(history: History) -> dict[str, GroupContent]:
    """Return the groups whose restored version may lack files, with their content after the restore.

    The folder does not show which files a version lacks, because the restore did not bring them. So the version stays
    in doubt until the program has rewritten or removed all its restored files.
    """
    contents = contents_of(history.baseline)
    return {
        name: replace(contents[name], left_out=version.left_out)
        for name, version in versions_of(history.last).items()
        if version.left_out and name in contents
    }


def _content(file: CheckpointFile) -> CheckpointFile:
    """Return a file without its key and evidence; a change of these alone makes no new set."""
    return replace(file, key="", evidence="", rested_s=0.0)


def missing_paths(snapshot: Snapshot, taken: Mapping[str, GroupContent]) -> list[str]:
    """Return the sorted files and links whose state in a snapshot, or whose deletion, was not taken."""
    known: dict[str, FileFacts | str] = {}
    for content in taken.values():
        known |= {**content.files, **content.links}
    found: dict[str, FileFacts | str] = {**snapshot.files, **snapshot.links}
    return sorted(path for path in {*found, *known} if found.get(path) != known.get(path))
