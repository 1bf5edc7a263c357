"""The checkpoint sets below a prefix, with checks that every file in them exists.

Where: `clary checkpoints JOB`, through `server.pages.checkpoints_page`. Names and sizes are compared here;
`checkpoint_verification` reads the files' content.

[Note: sets that move] Agents continue to store sets while the service reads: a newer set may replace the newest set,
and files that only the replaced set names may be removed. Manifests are read before objects are listed, so every file
of a set existed before the listing; if a newest set lacks a file, the sets are read again, at most `MAX_LOOKS` times,
until that set is still the newest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from clary.base.errors import ContractError, ObjectStoreError
from clary.contract.checkpoint_evidence import is_whole
from clary.contract.checkpoint_sets import CheckpointSet
from clary.control.objects.checkpoint_manifests import (
    MAX_FAULT_CHARACTERS,
    MAX_MANIFEST_BYTES,
    TOO_LARGE,
    CheckpointPlace,
    ManifestObject,
    find_manifests,
    host_order,
    load_set,
    newest_numbers,
)
from clary.control.objects.listing import pages
from clary.control.objects.store_client import StoreClient

LOOK_TIMEOUT_S = 20.0  # for one answer; the command line waits 30 s
MAX_SETS_PER_HOST = 10  # agents keep three
MAX_READ_BYTES = 256 * 1024 * 1024  # of all manifests read for one answer
MAX_LOOKS = 3
PARALLEL_READS = 2


class SetState(StrEnum):
    """The state of a set, without its files' content."""

    WHOLE = "whole"  # every file has its size, and evidence other than time that it was whole when it was stored
    COMPLETE = "complete"  # every file has its size, but some have no evidence other than time, or were left out
    INCOMPLETE = "incomplete"  # files are missing, or have another size, as is normal for older sets
    DAMAGED = "damaged"  # the manifest cannot be read, or is invalid
    UNREAD = "unread"  # the manifest or the files' sizes were not read, for lack of time or space, or by an error


@dataclass(frozen=True, kw_only=True)
class SetEntry:
    """One set in a list."""

    host: str
    number: int
    state: SetState
    is_newest: bool  # whether it is its host's newest set
    fault: str = ""  # sentence on why the set is incomplete, damaged or unread
    taken_at: datetime | None = None  # None if the manifest was not read
    job_arn: str = ""
    attempt: int = 0
    num_files: int = 0
    size_bytes: int = 0
    evidence: Mapping[str, int] = field(default_factory=dict)  # kind of evidence that files are whole -> their number
    least_rest_s: float = 0.0  # shortest time without changes, of the files whose only evidence is that time


@dataclass(frozen=True, kw_only=True)
class SetListing:
    """The newest sets of each host below a prefix, newest first."""

    sets: tuple[SetEntry, ...]
    num_left_out: int  # number of older sets beyond MAX_SETS_PER_HOST


async def find_in_time(
    client: StoreClient, place: CheckpointPlace, *, timeout_s: float = LOOK_TIMEOUT_S
) -> dict[str, tuple[ManifestObject, ...]]:
    """Return host -> its manifests, newest first.

    Raises: ObjectStoreError, also if the store takes longer than `timeout_s`.

    Args:
        client: open.
        place: bucket and prefix of the job's checkpoints.
        timeout_s: limit of the whole listing in seconds.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await find_manifests(client, place)
    except TimeoutError as error:
        raise ObjectStoreError(
            f"the object store did not list the checkpoints below s3://{place.bucket}/{ascii(place.prefix)[1:-1]} "
            f"within {timeout_s:.0f} s; see `clary doctor`",
            retryable=True,
            details={"bucket": place.bucket, "key": place.prefix},
        ) from error


async def list_sets(client: StoreClient, place: CheckpointPlace, *, timeout_s: float = LOOK_TIMEOUT_S) -> SetListing:
    """Return the checkpoint sets below a prefix.

    Args:
        timeout_s: limit of the whole call in seconds; a set that was not read in time gets state UNREAD.
    Raises: ObjectStoreError if the manifests could not be listed.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    entries: Sequence[SetEntry] = ()
    newest: Mapping[str, int] = {}
    found: Mapping[str, Sequence[ManifestObject]] = {}
    for _ in range(MAX_LOOKS):  # [Note: sets that move]
        try:
            found = await find_in_time(client, place, timeout_s=deadline - asyncio.get_running_loop().time())
        except ObjectStoreError:
            if not entries:
                raise
            break  # the earlier result is kept
        if entries and newest_numbers(found) == newest:
            break
        newest = newest_numbers(found)
        entries = await _look(client, place, found, deadline)
        if not any(entry.is_newest and entry.state is SetState.INCOMPLETE for entry in entries):
            break
    num_left_out = sum(max(0, len(manifests) - MAX_SETS_PER_HOST) for manifests in found.values())
    return SetListing(sets=tuple(sorted(entries, key=_newest_first)), num_left_out=num_left_out)


async def _look(
    client: StoreClient,
    place: CheckpointPlace,
    found: Mapping[str, Sequence[ManifestObject]],
    deadline: float,
) -> list[SetEntry]:
    newest = newest_numbers(found)
    manifests = [manifest for of_host in found.values() for manifest in of_host[:MAX_SETS_PER_HOST]]
    # Each host's newest set comes first, because it matters most if time or space runs out.
    manifests.sort(key=lambda manifest: (newest[manifest.host] - manifest.number, host_order(manifest.host)))
    read = await _read_all(client, place, manifests, deadline)
    wanted = {file.key for outcome in read.values() if isinstance(outcome, CheckpointSet) for file in outcome.files}
    sizes = await _sizes(client, place, wanted, deadline)
    return [
        _entry(manifest, read.get(manifest, "there was no time to read its manifest"), sizes, newest)
        for manifest in manifests
    ]


async def _read_all(
    client: StoreClient, place: CheckpointPlace, manifests: Sequence[ManifestObject], deadline: float
) -> dict[ManifestObject, CheckpointSet | ContractError | str]:
    """Return the content of each manifest, its error, or a sentence on why it was not read."""
    outcomes: dict[ManifestObject, CheckpointSet | ContractError | str] = {}
    waiting = list(reversed(manifests))
    room_bytes = MAX_READ_BYTES

    async def read_on() -> None:
        nonlocal room_bytes
        while waiting:
            manifest = waiting.pop()
            if manifest.size_bytes > MAX_MANIFEST_BYTES:
                outcomes[manifest] = TOO_LARGE
                continue
            if manifest.size_bytes > room_bytes:
                outcomes[manifest] = f"the manifests have more than {MAX_READ_BYTES} bytes together"
                continue
            room_bytes -= manifest.size_bytes
            try:
                outcomes[manifest] = await load_set(client, place, host=manifest.host, number=manifest.number)
            except ContractError as error:
                outcomes[manifest] = error
            except ObjectStoreError as error:
                outcomes[manifest] = error.message

    with contextlib.suppress(TimeoutError):  # manifests that were read in time are kept
        async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as readers:
            for _ in range(PARALLEL_READS):
                readers.create_task(read_on())
    return outcomes


async def _sizes(
    client: StoreClient, place: CheckpointPlace, wanted: set[str], deadline: float
) -> dict[str, int] | str:
    """Return the sizes of the wanted objects that exist, by key below the prefix; or why they are unknown, in words."""
    sizes: dict[str, int] = {}
    if not wanted:
        return sizes
    try:
        async with asyncio.timeout_at(deadline):
            async for page in pages(client, place.bucket, place.prefix):
                for item in page.objects:
                    relative = item.key.removeprefix(place.prefix)
                    if relative in wanted:
                        sizes[relative] = item.size_bytes
    except TimeoutError:
        return "there was no time to list all objects below the prefix"
    except ObjectStoreError as error:
        return error.message
    return sizes


def _entry(
    manifest: ManifestObject,
    outcome: CheckpointSet | ContractError | str,
    sizes: dict[str, int] | str,
    newest: Mapping[str, int],
) -> SetEntry:
    is_newest = newest[manifest.host] == manifest.number
    state, fault = SetState.WHOLE, ""
    if isinstance(outcome, ContractError):
        state, fault = SetState.DAMAGED, outcome.message
    elif isinstance(outcome, str):
        state, fault = SetState.UNREAD, outcome
    elif isinstance(sizes, str):
        state, fault = SetState.UNREAD, sizes
    elif fault := why_incomplete(outcome, sizes):
        state = SetState.INCOMPLETE
    elif not is_whole(outcome.evidence_counts):
        state = SetState.COMPLETE
    fault = fault[:MAX_FAULT_CHARACTERS]
    if not isinstance(outcome, CheckpointSet):
        return SetEntry(host=manifest.host, number=manifest.number, state=state, is_newest=is_newest, fault=fault)
    return SetEntry(
        host=manifest.host,
        number=manifest.number,
        state=state,
        is_newest=is_newest,
        fault=fault,
        taken_at=outcome.taken_at,
        job_arn=outcome.job_arn,
        attempt=outcome.attempt,
        num_files=len(outcome.files),
        size_bytes=outcome.size_bytes,
        evidence=outcome.evidence_counts,
        least_rest_s=outcome.least_rest_s,
    )


def why_incomplete(checkpoints: CheckpointSet, sizes: Mapping[str, int]) -> str:
    """Return a sentence that counts a set's missing files and files of another size, or an empty string. Pure."""
    num_gone = sum(file.key not in sizes for file in checkpoints.files)
    num_other = sum(sizes.get(file.key, file.size_bytes) != file.size_bytes for file in checkpoints.files)
    parts = [f"{num_gone} gone"] if num_gone else []
    parts += [f"{num_other} with another size"] if num_other else []
    return f"of {len(checkpoints.files)} files {', '.join(parts)}" if parts else ""


def _newest_first(entry: SetEntry) -> tuple[float, int, tuple[str, int, str]]:
    # A set whose manifest cannot be read has no time: it comes first, so that people notice it.
    taken = entry.taken_at.timestamp() if entry.taken_at is not None else float("inf")
    return -taken, -entry.number, host_order(entry.host)
