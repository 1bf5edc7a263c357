"""One host's results staged in the store, where the leader reads them.

Where: hosts other than the leader write `<output>/.clary-staging/<attempt>/<host>-<kind>.tar` beside the final objects,
in the user's own bucket, the only storage that such a host and the leader can both reach. The archives are plain tar:
compressing twice would cost more than the transfer of the bytes on the cluster's own network. A program, and everyone
else with the job's key, can replace a staged archive: the leader reads the version that its host wrote, by the ETag,
and no more bytes and members than that host has reported.

Two kinds of results:
- `model`: the content of `/opt/ml/model`.
- `output`: the content of `/opt/ml/output/data`, and the program's failure file as `failure` beside it, because
  FailureReason keeps only the file's first 1024 characters.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Generator, Iterator

from clary.agent.archives import (
    BLOCK_BYTES,
    NO_MOUNTS,
    ArchiveLimits,
    Member,
    MemberKind,
    Mounts,
    TreeSource,
    has_members,
    read_members,
    write_tree,
)
from clary.agent.notes import NoteBook
from clary.base.beneath import Folder
from clary.base.errors import AgentError
from clary.base.string_enum import StrEnum
from clary.contract.agent_protocol import StagedPart
from clary.contract.launch_plan import LaunchPlan
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectInfo, ObjectStore, S3Uri, parse_s3_uri

STAGING_FOLDER = ".clary-staging"


class ResultKind(StrEnum):
    """Kinds of results; the values are those of `StagedPart.kind`."""

    MODEL = "model"
    OUTPUT = "output"


def result_sources(kind: ResultKind, tree: MlTree, mounts: Mounts = NO_MOUNTS) -> tuple[TreeSource, ...]:
    """Return the parts of a host's tree that belong to results of this kind.

    Args:
        kind: of the results.
        tree: of the host, as the agent sees it.
        mounts: folders that the program saw below the tree and that lie elsewhere.
    """
    if kind is ResultKind.MODEL:
        return (TreeSource(root=tree.model, home=tree.root, mounts=mounts),)
    data = TreeSource(root=tree.output_data, home=tree.root, mounts=mounts)
    return (data, TreeSource(root=tree.failure, home=tree.root)) if _has_failure(tree) else (data,)


def _has_failure(tree: MlTree) -> bool:
    """Whether the program left a non-empty failure file; a link in its place does not count."""
    try:
        with Folder.at(tree.root) as top:
            status = top.status(tree.failure.relative_to(tree.root).as_posix())
    except OSError:  # no file, or a parent is no folder; the latter is reported when the data beside it is read
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def staging_prefix(plan: LaunchPlan) -> S3Uri:
    """Return the prefix below which all attempts of the job stage results; ends in a slash."""
    model = parse_s3_uri(plan.output.model_uri)
    parent = model.key.rstrip("/").rpartition("/")[0]
    return S3Uri(model.bucket, f"{parent}/{STAGING_FOLDER}/" if parent else f"{STAGING_FOLDER}/")


def stage_results(
    kind: ResultKind,
    *,
    plan: LaunchPlan,
    host: str,
    tree: MlTree,
    store: ObjectStore,
    notes: NoteBook,
    mounts: Mounts = NO_MOUNTS,
) -> StagedPart | None:
    """Stage a host's results of one kind, replacing an earlier archive; return None if there are no results.

    Args:
        kind: of the results.
        plan: of the attempt.
        host: name of the host; part of the archive's name.
        tree: of the host, as the agent sees it.
        store: where the job's output goes.
        notes: receives a note on each entry that is skipped or changed in the archive.
        mounts: as for `result_sources`.
    Raises: AgentError, ObjectStoreError; an object that was written counts as missing then.
    """
    sources = result_sources(kind, tree, mounts)
    if not has_members(sources):
        return None
    prefix = staging_prefix(plan)
    uri = S3Uri(prefix.bucket, f"{prefix.key}{plan.attempt}/{host}-{kind.value}.tar")
    with store.open_writer(uri.bucket, uri.key) as writer:
        # Loose objects cannot be links, and the target of a link cannot be looked up in an archive that is read as a
        # stream.
        facts = write_tree(writer, sources, compress=False, follow_links=not plan.output.is_compressed)
    for note in facts.notes:
        notes.add(f"{host}: {kind.value}: {note}")
    stored = require_stored(store, uri, size_bytes=writer.size_bytes)
    return StagedPart(
        host=host,
        kind=kind.value,
        uri=str(uri),
        size_bytes=writer.size_bytes,
        num_files=facts.num_files,
        num_members=facts.num_members,
        etag=stored.etag,
    )


def staged_members(part: StagedPart, *, store: ObjectStore) -> Generator[Member, None, None]:
    """Yield the members of a staged archive.

    Raises: AgentError if the archive is damaged or differs from what its host wrote: other files, more bytes, more
        members, or gzip; ObjectStoreError if it was replaced.
    """
    uri = parse_s3_uri(part.uri)
    num_files = 0
    with contextlib.closing(store.open_reader(uri.bucket, uri.key, etag=part.etag)) as reader:
        members: Iterator[Member] = read_members(reader, limits=_limits_of(part), label=part.uri, accepts_gzip=False)
        for member in members:
            num_files += member.kind is MemberKind.FILE
            yield member
    if num_files != part.num_files:
        raise AgentError(
            f"Results of {part.host} at {part.uri} are incomplete: expected {part.num_files} files, got {num_files}.",
            retryable=True,
            details={"host": part.host, "uri": part.uri},
        )


def _limits_of(part: StagedPart) -> ArchiveLimits:
    """Return the size that the host has reported; each member of an archive takes a block."""
    return ArchiveLimits(max_members=part.num_members or part.size_bytes // BLOCK_BYTES, max_bytes=part.size_bytes)


def missing_parts(parts: tuple[StagedPart, ...], *, store: ObjectStore) -> tuple[StagedPart, ...]:
    """Return the parts that are not in the store. Raises: AgentError for a part that was replaced."""
    missing = []
    for part in parts:
        uri = parse_s3_uri(part.uri)
        facts = store.head(uri.bucket, uri.key)
        if facts is None:
            missing.append(part)
        elif facts.size_bytes != part.size_bytes:
            raise _wrong_size(part.uri, part.size_bytes, facts.size_bytes)
        elif part.etag and facts.etag and facts.etag != part.etag:
            raise AgentError(
                f"Results that {part.host} had staged at {part.uri} were replaced: expected the version with the ETag "
                f"{part.etag}, the object store has {facts.etag}. Does another program write to this place?",
                details={"uri": part.uri, "expected_etag": part.etag, "got_etag": facts.etag},
            )
    return tuple(missing)


def remove_staging(plan: LaunchPlan, *, store: ObjectStore) -> None:
    """Delete all staged objects of all attempts of the job."""
    prefix = staging_prefix(plan)
    for info in list(store.list_objects(prefix.bucket, prefix.key)):
        store.delete(prefix.bucket, info.key)


def require_stored(store: ObjectStore, uri: S3Uri, *, size_bytes: int) -> ObjectInfo:
    """Return the facts of an object that was just written. Raises: AgentError if it is missing or incomplete.

    Args:
        store: the store that has the object.
        uri: of the object.
        size_bytes: number of bytes that were written.
    """
    facts = store.head(uri.bucket, uri.key)
    if facts is None or facts.size_bytes != size_bytes:
        raise _wrong_size(str(uri), size_bytes, None if facts is None else facts.size_bytes)
    return facts


def _wrong_size(uri: str, expected_bytes: int, got_bytes: int | None) -> AgentError:
    got = "no object" if got_bytes is None else f"{got_bytes} bytes"
    return AgentError(
        f"Results at {uri} are not whole: expected {expected_bytes} bytes, the object store has {got}.",
        retryable=True,
        details={"uri": uri, "expected_bytes": expected_bytes, "got_bytes": got_bytes},
    )
