"""Restore of the checkpoint folder from the object store to a host, before its program starts.

Where: an agent does this while it fetches channels. Size and SHA-256 of all files of a set are checked before any file
is put in place, so that the folder gets a whole set or the job fails. Instead of a set that is not whole, the next
older set of its host is used, with a warning; or a newer one, if a job that still runs has added it meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.history import History
from clary.agent.checkpoints.listing import Listing, list_prefix
from clary.agent.checkpoints.outcomes import named
from clary.agent.checkpoints.places import Prefix
from clary.agent.checkpoints.publishing import MAX_MANIFEST_BYTES
from clary.agent.checkpoints.restore_plan import (
    RestoreItem,
    RestorePlan,
    host_order,
    plan_restore,
    unfinished_paths,
    why_not_whole,
)
from clary.agent.checkpoints.scanning import STAGING, Snapshot, scan
from clary.agent.checkpoints.step_counts import restored_counts
from clary.base.beneath import Folder
from clary.base.beneath_trees import remove_tree
from clary.base.disk_space import disk_errors_named, require_space
from clary.base.errors import AgentError, ContractError, Fault, ObjectStoreError
from clary.contract.checkpoint_evidence import Evidence
from clary.contract.checkpoint_sets import (
    OWN_FOLDER,
    Announcement,
    CheckpointSet,
    announcement_key,
    content_key,
    manifest_key,
    read_announcement,
    read_manifest,
)
from clary.contract.object_store import ObjectStore
from clary.contract.step_counts import RestoredCounts

_NUM_PARALLEL = 8  # parallel downloads, as for channels
_READ_BYTES = 1 << 20
MOST_LISTINGS = 8  # of a prefix in which another job replaces sets while they are read
_MAX_NS = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The result of a restore."""

    history: History = field(default_factory=History)
    num_files: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    sets: tuple[tuple[str, int], ...] = ()  # host and number of every set with a restored file
    warnings: tuple[str, ...] = ()
    step_counts: RestoredCounts = field(default_factory=RestoredCounts)  # the debugger's step counts in those sets


def restore(
    folder: CheckpointFolder,
    prefix: Prefix,
    store: ObjectStore,
    *,
    host: str,
    first: str,
    others: Sequence[str] = (),
) -> Restored:
    """Restore the checkpoints below `prefix` into the folder, in the precedence of `restore_plan`.

    Call it only while no program runs. State after failure: some files may be restored; the program must not start.

    Args:
        host: this host.
        first: the job's host with the lowest number.
        others: the job's other hosts.
    Raises: AgentError in four cases: a host of the job has only defective sets (fault USER; the message names each
        defect), the disk is full, a key would put a file outside the folder, or the folder cannot be written;
        ObjectStoreError.
    """
    started_s = time.monotonic()
    folder.make()
    staging = folder.path / f"{STAGING}-{host}"  # plain processes of several hosts may share a folder
    _remove_staging(folder, staging)
    try:
        return _Restore(
            folder, prefix, store, host=host, first=first, hosts={host, first, *others}, staging=staging
        ).run(started_s)
    except OSError as error:
        raise AgentError(f"Checkpoints cannot be written below {folder.path}: {error}") from error
    finally:
        _remove_staging(folder, staging)


class _NotWholeError(Exception):
    """A file of a set differs from its manifest."""

    def __init__(self, item: RestoreItem, reason: str) -> None:
        super().__init__(reason)
        self.item = item
        self.reason = reason


class _Restore:
    def __init__(
        self,
        folder: CheckpointFolder,
        prefix: Prefix,
        store: ObjectStore,
        *,
        host: str,
        first: str,
        hosts: set[str],
        staging: Path,
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._store = store
        self._host = host
        self._first = first
        self._hosts = hosts  # hosts of the job
        self._staging = staging
        self._wrong: dict[str, dict[int, str]] = {}  # host -> number of a set that is not whole -> reason
        self._read: dict[tuple[str, int], CheckpointSet] = {}
        self._left_out: set[str] = set()  # hosts outside the job without a whole set
        self._staged: dict[tuple[str, str], Path] = {}  # key and SHA-256 -> checked file
        self._num_listings = 0

    def run(self, started_s: float) -> Restored:
        """Restore the checkpoints."""
        listing = self._list()
        while True:
            num_wrong = self._num_wrong()
            try:
                sets = self._newest_whole_sets(listing)
            except AgentError:
                if (newer := self._newer_than(listing)) is None:
                    raise
                listing = newer
                continue
            if self._num_wrong() > num_wrong and (newer := self._newer_than(listing)) is not None:
                listing = newer
                continue
            announcements = self._announcements(listing)
            plan = plan_restore(
                listing,
                prefix=self._prefix,
                host=self._host,
                sets=sets,
                announcements=announcements,
                broken=self._broken_paths(),
            )
            left_bytes = sum(item.size_bytes for item in plan.items if self._key_of(item) not in self._staged)
            require_space(self._folder.path, needed_bytes=left_bytes)
            try:
                self._fetch(plan)
                break
            except _NotWholeError as error:
                self._wrong.setdefault(error.item.host, {})[sets[error.item.host].number] = error.reason
                listing = self._newer_than(listing) or listing
        self._put_in_place(plan)
        _remove_staging(self._folder, self._staging)
        used = {item.host for item in plan.items if item.host}
        return Restored(
            history=self._history(listing, plan, sets, unfinished_paths(announcements, sets)),
            num_files=len(plan.items),
            size_bytes=plan.size_bytes,
            seconds=time.monotonic() - started_s,
            sets=tuple(
                (name, sets[name].number) for name in sorted(used, key=lambda n: (n != self._host, host_order(n)))
            ),
            warnings=(*self._fallback_warnings(sets), *plan.warnings, *_doubts(plan, sets)),
            step_counts=restored_counts(sets.values(), own_host=self._host, order=host_order),
        )

    def _num_wrong(self) -> int:
        return sum(map(len, self._wrong.values()))

    def _list(self) -> Listing:
        self._num_listings += 1
        return list_prefix(self._prefix, self._store)

    def _newer_than(self, listing: Listing) -> Listing | None:
        """Return a new listing if it has a newer set of any host; else None, also after MOST_LISTINGS.

        A job that still runs adds sets, and the objects of its older sets are replaced or removed meanwhile.
        """
        if self._num_listings == MOST_LISTINGS:
            return None
        fresh = self._list()
        newest = {host: max(numbers, default=0) for host, numbers in listing.manifests.items()}
        is_newer = any(max(numbers, default=0) > newest.get(host, 0) for host, numbers in fresh.manifests.items())
        return fresh if is_newer else None

    def _newest_whole_sets(self, listing: Listing) -> dict[str, CheckpointSet]:
        """Return for each host its newest set without a known defect.

        A host outside the job without such a set is skipped. Raises: AgentError for a host of the job without such a
        set.
        """
        sets = {}
        self._left_out.clear()
        sizes = listing.standing | {key: info.size_bytes for key, info in listing.own.items()}

        def size_of(key: str) -> int | None:
            if key not in sizes:  # SeaweedFS omits some names from listings
                found = self._store.head(self._prefix.bucket, self._prefix.key(key))
                if found is None:
                    return None
                sizes[key] = found.size_bytes
            return sizes[key]

        for host, numbers in listing.manifests.items():
            wrong = self._wrong.setdefault(host, {})
            for number in numbers:
                if number in wrong:
                    continue
                try:
                    checkpoints = self._manifest(host, number)
                    reason = why_not_whole(checkpoints, size_of, host=host, number=number)
                except ContractError as error:
                    reason = error.message
                if reason is None:
                    sets[host] = checkpoints
                    break
                wrong[number] = reason
            else:
                if host in self._hosts:
                    raise self._no_whole_set(host)
                self._left_out.add(host)
        return sets

    def _manifest(self, host: str, number: int) -> CheckpointSet:
        if (host, number) not in self._read:
            key = self._prefix.key(manifest_key(host, number))
            try:
                data = self._store.get_bytes(self._prefix.bucket, key, max_bytes=MAX_MANIFEST_BYTES)
            except ObjectStoreError as error:
                if not _is_of_object(error):
                    raise
                raise ContractError(f"its manifest cannot be read: {error.message}") from error
            self._read[host, number] = read_manifest(data)
        return self._read[host, number]

    def _broken_paths(self) -> frozenset[str]:
        """Return the paths in the readable sets of skipped hosts."""
        sets = [checkpoints for (host, _), checkpoints in self._read.items() if host in self._left_out]
        return frozenset(file.path for checkpoints in sets for file in checkpoints.files)

    def _announcements(self, listing: Listing) -> dict[str, Announcement]:
        found = {}
        for key in listing.own:
            host = key.split("/")[1]
            if key == announcement_key(host):
                data = self._store.get_bytes(self._prefix.bucket, self._prefix.key(key), max_bytes=MAX_MANIFEST_BYTES)
                # ignored: if an announcement is truncated, none of the objects that it announces was stored
                with contextlib.suppress(ContractError):
                    found[host] = read_announcement(data)
        return found

    def _fetch(self, plan: RestorePlan) -> None:
        """Fetch missing files into the staging folder and check them. Raises: _NotWholeError for the first bad file."""
        items = [item for item in plan.items if self._key_of(item) not in self._staged]
        if not items:
            return
        with Folder(self._folder.open()) as root:
            root.folder(self._staging.name, create=True).close()
        stop = threading.Event()

        def work(number: int, item: RestoreItem) -> None:
            if stop.is_set():
                return
            try:
                self._fetch_one(item, self._staging / f"{len(self._wrong)}-{number}-{id(plan):x}")
            except BaseException:
                stop.set()
                raise

        with ThreadPoolExecutor(_NUM_PARALLEL, thread_name_prefix="checkpoint-restore") as pool:
            jobs = [pool.submit(work, number, item) for number, item in enumerate(items)]
        for job in jobs:
            job.result()

    def _fetch_one(self, item: RestoreItem, place: Path) -> None:
        try:
            with disk_errors_named(self._folder.path, needed_bytes=item.size_bytes):
                self._store.download(self._prefix.bucket, item.key, place, size_bytes=item.size_bytes)
        except ObjectStoreError as error:
            if item.file is None or not _is_of_object(error):
                raise
            raise _NotWholeError(item, f"{item.path!a}: {error.message}") from error
        if item.file is not None:
            found = _sha256(place)
            if found != item.file.sha256:
                place.unlink()
                reason = f"{item.path!a} has SHA-256 {found[:16]}... instead of {item.file.sha256[:16]}... ({item.key})"
                raise _NotWholeError(item, reason)
            place.chmod(item.file.mode & 0o777)
            modified_ns = min(max(item.file.modified_ns, 0), _MAX_NS)
            os.utime(place, ns=(modified_ns, modified_ns))
        self._staged[self._key_of(item)] = place

    def _put_in_place(self, plan: RestorePlan) -> None:
        """Move every file from the staging folder to its path. Raises: OSError."""
        with Folder(self._folder.open()) as root:
            for item in plan.items:
                _make_folders(root, item.path.rpartition("/")[0])
                if _is_folder(root, item.path):
                    remove_tree(root, item.path)  # left by an earlier job in a folder that is reused
                root.rename(f"{self._staging.name}/{self._staged[self._key_of(item)].name}", item.path)
            for path in plan.folders:
                _make_folders(root, path)
            for path, target in plan.links.items():
                _make_folders(root, path.rpartition("/")[0])
                if not _is_folder(root, path):
                    root.remove(path, missing_ok=True)
                with contextlib.suppress(FileExistsError):  # created by another host that shares the folder
                    root.make_link(path, target)

    def _history(
        self, listing: Listing, plan: RestorePlan, sets: Mapping[str, CheckpointSet], unfinished: frozenset[str]
    ) -> History:
        # A reused folder may contain files that were not restored; the mirror must still store them.
        found = scan(self._folder)
        restored = {item.path for item in plan.items}
        baseline = Snapshot(
            files={path: facts for path, facts in found.files.items() if path in restored},
            folders=found.folders & set(plan.folders),
            links={path: target for path, target in found.links.items() if path in plan.links},
        )
        own_content = content_key(self._host, "")
        own = sets.get(self._host)
        own_links, own_folders = (own.links or {}, own.folders) if own is not None else ({}, ())
        of_others = {item.path for item in plan.items if item.host != self._host}
        inherited = Snapshot(
            files={path: facts for path, facts in baseline.files.items() if path in of_others},
            folders=baseline.folders - set(own_folders),
            links={path: target for path, target in baseline.links.items() if path not in own_links},
        )
        others = [checkpoints for name, checkpoints in sets.items() if name != self._host]
        return History(
            last=own,
            numbers=frozenset(listing.manifests.get(self._host, ())),
            standing=frozenset(listing.standing),
            contents=frozenset(key for key in listing.own if key.startswith(own_content)),
            announced=unfinished if self._host == self._first else frozenset(),
            inherited=inherited,
            of_others=frozenset(
                path
                for checkpoints in others
                for path in (*(file.path for file in checkpoints.files), *(checkpoints.links or {}))
            ),
            baseline=baseline,
        )

    def _fallback_warnings(self, sets: Mapping[str, CheckpointSet]) -> list[str]:
        return [
            f"checkpoints: no set of {host} is whole; {host} is no host of this job, so the restore continues without "
            f"it: {self._reasons(host)}. Remove {self._prefix.key(OWN_FOLDER)}/{host}/ to be rid of this warning"
            for host in sorted(self._left_out)
        ] + [
            f"checkpoints: set {number} of {host} is not whole and was passed over: {reason}"
            for host, wrong in sorted(self._wrong.items())
            if host not in self._left_out
            for number, reason in sorted(wrong.items())
            if number > sets[host].number  # not a set that was replaced while it was read
        ]

    def _reasons(self, host: str) -> str:
        return "; ".join(f"set {number}: {reason}" for number, reason in sorted(self._wrong[host].items()))

    def _no_whole_set(self, host: str) -> AgentError:
        return AgentError(
            f"No set of checkpoints of {host} below {self._prefix.uri} is whole, and half of one is not restored: "
            f"{self._reasons(host)}. {self._advice(host)}",
            fault=Fault.USER,
            details={"host": host, "uri": str(self._prefix.uri)},
        )

    def _advice(self, host: str) -> str:
        if self._num_listings == MOST_LISTINGS:
            return "Another job replaced them faster than they could be read: restore when it does not run."
        return f"Bring the objects back, or remove {self._prefix.key(OWN_FOLDER)}/{host}/ to begin without."

    @staticmethod
    def _key_of(item: RestoreItem) -> tuple[str, str]:
        return item.key, f"{item.file.sha256} {item.path}" if item.file is not None else ""


def _doubts(plan: RestorePlan, sets: Mapping[str, CheckpointSet]) -> list[str]:
    """Return warnings about restored files and sets that may be incomplete.

    A file may be incomplete if the only sign that it was complete is that it had not changed for some time. A set may
    be incomplete if it was stored without some files.
    """
    rested: dict[str, list[RestoreItem]] = {}
    for item in plan.items:
        if item.file is not None and item.file.evidence == Evidence.RESTED:
            rested.setdefault(item.host, []).append(item)
    hosts = sorted({item.host for item in plan.items} & sets.keys())
    by_time = [
        f"checkpoints: of set {sets[host].number} of {host} nothing says that {named([item.path for item in items])} "
        f"was whole but {min(item.file.rested_s for item in items if item.file is not None):.0f} s of rest; it is "
        "restored nevertheless"
        for host, items in sorted(rested.items())
    ]
    lacking = [
        f"checkpoints: set {sets[host].number} of {host} was stored without what had changed in {named(left_out)}, so "
        "that it may lack a part of a checkpoint; it is restored nevertheless"
        for host in hosts
        if (left_out := sets[host].left_out)
    ]
    return by_time + lacking


def _is_of_object(error: ObjectStoreError) -> bool:
    """Whether an error concerns this one object, and not the store or the access key."""
    return error.fault is Fault.USER and error.details.get("status") != HTTPStatus.FORBIDDEN


def _sha256(place: Path) -> str:
    digest = hashlib.sha256()
    with place.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _remove_staging(folder: CheckpointFolder, staging: Path) -> None:
    with contextlib.suppress(OSError), Folder(folder.open()) as root:
        remove_tree(root, staging.name)


def _make_folders(root: Folder, path: str) -> None:
    """Make folders below `root`, replacing links and files."""
    parts = path.split("/") if path else []
    for depth in range(1, len(parts) + 1):
        place = "/".join(parts[:depth])
        if root.exists(place) and not _is_folder(root, place):
            root.remove(place)
        root.folder(place, create=True).close()


def _is_folder(root: Folder, path: str) -> bool:
    try:
        return stat.S_ISDIR(root.status(path).st_mode)
    except FileNotFoundError:
        return False
