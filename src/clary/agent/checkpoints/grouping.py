"""Groups of files in the checkpoint folder that belong together. Pure.

Files in the same top-level folder are a group; the files outside of any folder are the group "". Checkpoint sets
consist of groups; `choosing` decides when a group may be stored in a set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from clary.agent.checkpoints.scanning import FileFacts, Snapshot
from clary.contract.checkpoint_sets import CheckpointFile, CheckpointSet

TOP = ""  # the group of the files outside of any folder


@dataclass(frozen=True, kw_only=True)
class GroupContent:
    """The content of a group in the folder at one moment."""

    files: Mapping[str, FileFacts] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()  # files that the set lacks or has in an old state

    def without(self, paths: Collection[str]) -> GroupContent:
        """Return the content without the files at `paths`."""
        return replace(self, files={path: facts for path, facts in self.files.items() if path not in paths})


@dataclass(frozen=True, kw_only=True)
class GroupVersion:
    """The content of a group in one set."""

    files: Mapping[str, CheckpointFile] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()  # files that the set may lack, as in `CheckpointSet.may_lack`


NOTHING = GroupContent()
NO_VERSION = GroupVersion()


def group_of(path: str, *, is_folder: bool = False) -> str:
    """Return the group of a path; an empty top-level folder is a group of its own."""
    first, slash, _ = path.partition("/")
    return first if slash or is_folder else TOP


def contents_of(snapshot: Snapshot) -> dict[str, GroupContent]:
    """Return the groups of a snapshot."""
    return {
        name: GroupContent(
            files={path: snapshot.files[path] for path in files},
            folders=frozenset(folders),
            links={path: snapshot.links[path] for path in links},
        )
        for name, (files, folders, links) in _split(snapshot.files, snapshot.folders, snapshot.links).items()
    }


def versions_of(checkpoints: CheckpointSet | None) -> dict[str, GroupVersion]:
    """Return the groups of a set."""
    if checkpoints is None:
        return {}
    by_path = {file.path: file for file in checkpoints.files}
    all_links = checkpoints.links or {}
    left_out: dict[str, set[str]] = {}
    for path in checkpoints.may_lack:
        left_out.setdefault(group_of(path), set()).add(path)
    return {
        name: GroupVersion(
            files={path: by_path[path] for path in files},
            folders=frozenset(folders),
            links={path: all_links[path] for path in links},
            left_out=frozenset(left_out.get(name, ())),
        )
        for name, (files, folders, links) in _split(by_path, checkpoints.folders, all_links).items()
    }


def without_collisions(
    old: Mapping[str, GroupVersion], new: Mapping[str, GroupVersion]
) -> tuple[dict[str, GroupVersion], frozenset[str]]:
    """Combine the groups of an old and a new state; return the result and the names of omitted new groups.

    A top-level name that was a file and became a folder belongs to two groups. If only one of these groups can be
    taken, the set would hold both the folder and the file: then the new group waits for the other group.
    """
    kept = dict(new)
    held_back: set[str] = set()
    while True:
        merged = {**old, **kept}
        top = merged.get(TOP, NO_VERSION)
        colliding = {name for name in (*top.files, *top.links) if merged.get(name, NO_VERSION) != NO_VERSION}
        refused = {name for name in kept if name in colliding or (name == TOP and colliding)}
        if not refused:
            return merged, frozenset(held_back)
        held_back |= refused
        kept = {name: version for name, version in kept.items() if name not in refused}


def _split(
    files: Iterable[str], folders: Iterable[str], links: Iterable[str]
) -> dict[str, tuple[list[str], list[str], list[str]]]:
    groups: dict[str, tuple[list[str], list[str], list[str]]] = {}
    for index, paths in enumerate((files, folders, links)):
        for path in paths:
            name = group_of(path, is_folder=index == 1)
            groups.setdefault(name, ([], [], []))[index].append(path)
    return groups
