"""Reads every file of checkpoint sets and compares it with the manifests.

Where: `clary checkpoints verify JOB`; `server.verification_runs` runs it in the background, since reading all files
takes long. Only checksums are kept, and a thread does the hashing.

A set is "as stored" if the content of all its files matches the manifest, which suffices for a restore. It is "whole"
if there is also evidence other than time that every file was whole when it was stored (`contract.checkpoint_evidence`),
and no unfinished file was left out. The files under the plain paths are compared too, and reported separately: there a
file may be missing, or have the content of another host or of an older set, without harm to a restore.
"""

from __future__ import annotations

import asyncio
import hashlib
import http
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from clary.base.errors import ContractError, ObjectStoreError
from clary.contract.checkpoint_evidence import Evidence, is_whole
from clary.contract.checkpoint_sets import CheckpointFile, CheckpointSet
from clary.control.objects.checkpoint_manifests import (
    MAX_FAULT_CHARACTERS,
    CheckpointPlace,
    find_manifests,
    load_set,
    newest_numbers,
)
from clary.control.objects.store_client import StoreClient

MAX_FINDINGS = 1000  # of one kind per set; further findings are only counted
MAX_DOUBTFUL = 20  # doubtful files of a set that are named
MAX_NEWER = 5  # how often a host's newest set may be replaced while it is read
READ_ATTEMPTS = 3  # of one object, if the store does not answer
RETRY_PAUSE_S = 0.5
HASH_PIECE_BYTES = 1024 * 1024
MISSING = "is missing"


@dataclass(frozen=True, kw_only=True)
class SetTarget:
    """A set to read."""

    host: str
    number: int
    follows: bool  # whether to read a newer set of the host instead as soon as it exists


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A file that is missing, cannot be read, or differs from its manifest."""

    path: str
    key: str  # key of the object below the prefix
    fault: str


@dataclass(kw_only=True)
class Findings:
    """Number of findings of one kind, and the first MAX_FINDINGS of them."""

    count: int = 0
    first: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it unless MAX_FINDINGS are kept."""
        self.count += 1
        if len(self.first) < MAX_FINDINGS:
            self.first.append(finding)


@dataclass(kw_only=True)
class SetReport:
    """The report of one set; it grows while the set is read."""

    host: str
    number: int
    fault: str = ""  # fault of the manifest
    num_files: int = 0
    size_bytes: int = 0
    num_read: int = 0  # number of files read
    is_done: bool = False
    wrong: Findings = field(default_factory=Findings)
    plain: Findings = field(default_factory=Findings)  # findings under the plain paths, which do not harm a restore
    evidence: dict[str, int] = field(default_factory=dict)  # kind of evidence that files are whole -> number of files
    least_rest_s: float = 0.0  # shortest time without changes, of the files whose only evidence is that time
    doubtful: list[str] = field(default_factory=list)  # files without evidence other than time, or perhaps incomplete

    @property
    def is_as_stored(self) -> bool:
        """Whether every file of the set was read and equals its manifest."""
        return self.is_done and not self.fault and not self.wrong.count

    @property
    def is_whole(self) -> bool:
        """Whether the set is as stored, every file has evidence other than time, and no unfinished file is left out."""
        return self.is_as_stored and is_whole(self.evidence)


@dataclass(kw_only=True)
class VerificationReport:
    """The report of all requested sets."""

    sets: list[SetReport] = field(default_factory=list)
    bytes_read: int = 0
    size_bytes: int = 0  # of all files of the sets read so far
    error: str = ""  # why the verification ended early; empty otherwise

    @property
    def is_as_stored(self) -> bool:
        """Whether there are sets and all are as stored."""
        return bool(self.sets) and not self.error and all(report.is_as_stored for report in self.sets)

    @property
    def is_whole(self) -> bool:
        """Whether there are sets and all are whole."""
        return bool(self.sets) and not self.error and all(report.is_whole for report in self.sets)


async def verify_sets(
    client: StoreClient, place: CheckpointPlace, targets: Sequence[SetTarget], report: VerificationReport
) -> None:
    """Read sets one after the other and record each finding in `report` at once.

    Ends with `report.error` if the store does not return a manifest; a file that it does not return is a finding.
    Cancel it to end it early.

    Args:
        client: open.
        place: bucket and prefix of the job's checkpoints.
        targets: sets in the order in which they are read; the first host to name a path owns the plain path.
        report: filled while the sets are read; callers may read it meanwhile.
    """
    try:
        # If several hosts have the same path, only the first host's file is stored under the plain path.
        first_owner: dict[str, str] = {}
        for target in targets:
            await _verify_target(client, place, target, report, first_owner)
    except ObjectStoreError as error:
        report.error = error.message


async def _verify_target(
    client: StoreClient,
    place: CheckpointPlace,
    target: SetTarget,
    report: VerificationReport,
    first_owner: dict[str, str],
) -> None:
    number = target.number
    for remaining in range(MAX_NEWER, -1, -1):
        current = SetReport(host=target.host, number=number)
        report.sets.append(current)
        await _verify_set(client, place, report, first_owner)
        if current.is_as_stored or not target.follows or not remaining:
            break
        # [Note: sets that move] in `checkpoint_sets`: files that an agent has just replaced are no fault.
        found = await find_manifests(client, place, host=target.host)
        newer = newest_numbers(found).get(target.host, number)
        if newer <= number:
            break
        report.sets.pop()
        report.size_bytes -= current.size_bytes
        number = newer


async def _verify_set(
    client: StoreClient, place: CheckpointPlace, report: VerificationReport, first_owner: dict[str, str]
) -> None:
    current = report.sets[-1]
    try:
        checkpoints = await load_set(client, place, host=current.host, number=current.number)
    except ContractError as error:
        current.fault = error.message[:MAX_FAULT_CHARACTERS]
        current.is_done = True
        return
    current.num_files = len(checkpoints.files)
    current.size_bytes = checkpoints.size_bytes
    current.evidence, current.least_rest_s = checkpoints.evidence_counts, checkpoints.least_rest_s
    doubtful = (file.path for file in checkpoints.files if not Evidence.of(file.evidence).is_statement)
    current.doubtful = list(itertools.islice(itertools.chain(doubtful, checkpoints.may_lack), MAX_DOUBTFUL))
    report.size_bytes += checkpoints.size_bytes
    for file in checkpoints.files:
        fault = await _fault_of(client, place, file, file.key, report)
        if fault:
            current.wrong.add(Finding(path=file.path, key=file.key, fault=fault))
        if file.key != file.path and (fault := await _fault_of(client, place, file, file.path, report)):
            owner = first_owner.get(file.path)
            words = f"{fault}; {owner} has a file of this name too" if owner and fault != MISSING else fault
            current.plain.add(Finding(path=file.path, key=file.path, fault=words))
        current.num_read += 1
    _remember(checkpoints, first_owner)
    current.is_done = True


def _remember(checkpoints: CheckpointSet, first_owner: dict[str, str]) -> None:
    for file in checkpoints.files:
        first_owner.setdefault(file.path, checkpoints.host)


async def _fault_of(
    client: StoreClient, place: CheckpointPlace, file: CheckpointFile, relative: str, report: VerificationReport
) -> str:
    """Return how the object at a key differs from a file of the manifest, or an empty string."""
    said = ""
    for attempt in range(1, READ_ATTEMPTS + 1):
        try:
            return await _compare(client, place, file, relative, report)
        except ObjectStoreError as error:
            said = error.message
            if not error.retryable:
                break
        await asyncio.sleep(RETRY_PAUSE_S * attempt)
    return f"could not be read: {said}"


async def _compare(
    client: StoreClient, place: CheckpointPlace, file: CheckpointFile, relative: str, report: VerificationReport
) -> str:
    async with client.open(place.bucket, place.key(relative)) as stream:
        if stream.status == http.HTTPStatus.NOT_FOUND:
            return MISSING
        if stream.status != http.HTTPStatus.OK:
            raise ObjectStoreError(
                f"the object store answered {stream.status}",
                retryable=stream.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR,
            )
        if stream.content_length not in (None, file.size_bytes):
            return f"has {stream.content_length} bytes, expected {file.size_bytes}"
        digest = hashlib.sha256()
        size_bytes = 0
        held: list[bytes] = []
        held_bytes = 0
        async for piece in stream.pieces():
            size_bytes += len(piece)
            report.bytes_read += len(piece)
            if size_bytes > file.size_bytes:
                return f"has more than {file.size_bytes} bytes, as many were expected"
            held.append(piece)
            held_bytes += len(piece)
            if held_bytes >= HASH_PIECE_BYTES:
                await asyncio.to_thread(_update, digest, held)
                held, held_bytes = [], 0
        await asyncio.to_thread(_update, digest, held)
    if size_bytes != file.size_bytes:
        return f"has {size_bytes} bytes, expected {file.size_bytes}"
    if digest.hexdigest() != file.sha256:
        return f"has other content: SHA-256 {digest.hexdigest()[:12]}..., expected {file.sha256[:12]}..."
    return ""


def _update(digest: hashlib._Hash, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        digest.update(piece)
