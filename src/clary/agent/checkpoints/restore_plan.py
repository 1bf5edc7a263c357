"""The plan of a restore: the files that a host gets. Pure.

Order of precedence for each path: the host's own set; other hosts' sets, lowest number first; objects that belong to no
set. A deletion by the host itself overrides the sets of all other hosts; a deletion by any host excludes an object of
no set, which may be the first host's copy at a plain path. Announced pieces of unfinished sets are never restored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clary.agent.checkpoints.listing import Listing
from clary.agent.checkpoints.places import Prefix, TakenNames, folders_above, set_problem
from clary.agent.notes import NoteBook
from clary.contract.checkpoint_sets import Announcement, CheckpointFile, CheckpointSet


@dataclass(frozen=True, kw_only=True)
class RestoreItem:
    """A file that is restored."""

    path: str
    key: str  # whole
    size_bytes: int
    file: CheckpointFile | None = None  # the file's entry in its set; None for an object of no set
    host: str = ""  # the host of the file's set


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """All files, folders and links that are restored."""

    items: tuple[RestoreItem, ...]
    folders: tuple[str, ...]
    links: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(item.size_bytes for item in self.items)


def host_order(name: str) -> tuple[int, str]:
    """Return the sort key of a host name: algo-2 comes before algo-10."""
    number = name.rpartition("-")[2]
    return (int(number) if number.isdecimal() else 0, name)


def why_not_whole(
    checkpoints: CheckpointSet,
    size_of: Callable[[str], int | None],
    *,
    host: str,
    number: int,
) -> str | None:
    """Return the defect of a set that the sizes of its objects reveal, or None.

    Args:
        size_of: returns the size of the object with a key below the prefix; None if it does not exist.
    """
    problem = set_problem(checkpoints, host=host, number=number)
    if problem is not None:
        return problem
    for file in checkpoints.files:
        size_bytes = size_of(file.key)
        if size_bytes is None:
            return f"{file.path!a} is missing ({file.key})"
        if size_bytes != file.size_bytes:
            return f"{file.path!a} has {size_bytes} bytes instead of {file.size_bytes} ({file.key})"
    return None


def unfinished_paths(announcements: Mapping[str, Announcement], sets: Mapping[str, CheckpointSet]) -> frozenset[str]:
    """Return the announced paths of sets that do not exist or are not whole."""
    return frozenset(
        path
        for host, announcement in announcements.items()
        if host not in sets or sets[host].number < announcement.number
        for path in announcement.paths
    )


def plan_restore(
    listing: Listing,
    *,
    prefix: Prefix,
    host: str,
    sets: Mapping[str, CheckpointSet],
    announcements: Mapping[str, Announcement],
    broken: frozenset[str] = frozenset(),
) -> RestorePlan:
    """Return the files that a restore brings to `host`.

    Args:
        sets: host -> its newest whole set.
        announcements: of all hosts that have an announcement.
        broken: paths of hosts without any whole set; their objects would be an incomplete set.
    """
    notes = NoteBook()
    names = TakenNames()
    items: dict[str, RestoreItem] = {}
    links: dict[str, str] = {}
    folders: list[str] = []
    own_gone = set(sets[host].gone) if host in sets else set()
    plain_gone = {path for checkpoints in sets.values() for path in checkpoints.gone} | broken
    plain_gone |= unfinished_paths(announcements, sets)
    collisions = "checkpoints: not restored, a file stands where it needs a folder"

    def is_wanted(path: str) -> bool:
        if path in names:
            return False
        if names.collides(path):
            notes.add(collisions, path)
            return False
        names.add(path)
        return True

    for name in _own_first(sets, host):
        checkpoints = sets[name]
        for file in checkpoints.files:
            if (name == host or file.path not in own_gone) and is_wanted(file.path):
                items[file.path] = RestoreItem(
                    path=file.path,
                    key=prefix.key(file.key),
                    size_bytes=file.size_bytes,
                    file=file,
                    host=name,
                )
        links |= {
            path: target
            for path, target in (checkpoints.links or {}).items()
            if (name == host or path not in own_gone) and is_wanted(path)
        }
        folders += checkpoints.folders
    named = {file.path for checkpoints in sets.values() for file in checkpoints.files}
    for plain in listing.plain:
        if plain.path in plain_gone or plain.path in named or not is_wanted(plain.path):
            continue
        items[plain.path] = RestoreItem(path=plain.path, key=plain.key, size_bytes=plain.size_bytes)
        if plain.is_neighbour:
            notes.add(
                f"checkpoints: S3Uri {prefix.uri} also matches objects beside its folder, which are restored as in the "
                "original, without the prefix; end it with a slash to leave them out",
                plain.key,
            )
    folders += listing.folders
    return RestorePlan(
        items=tuple(items.values()),
        folders=tuple(folder for folder in dict.fromkeys(folders) if _can_be_folder(folder, names)),
        links=links,
        warnings=notes.lines(),
    )


def _own_first(sets: Mapping[str, CheckpointSet], host: str) -> Sequence[str]:
    return sorted(sets, key=lambda name: (name != host, host_order(name)))


def _can_be_folder(folder: str, names: TakenNames) -> bool:
    return folder not in names and not any(above in names for above in folders_above(folder))
