"""Which parts of the checkpoint folder may be taken into a set. Pure.

Files that share a top-level folder belong together; those at the top are one group, named "". A group is taken whole,
once nothing in it has changed for a moment. One that never comes to rest, such as a folder with a log that is always
written to, is taken file by file in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clary.agent.checkpoints.scanning import FileFacts, Snapshot
from clary.contract.checkpoint_sets import CheckpointFile, CheckpointSet

TOP = ""  # the group of what lies at the top


@dataclass(frozen=True, kw_only=True)
class GroupContent:
    """What lies in a group of the folder at one moment."""

    files: Mapping[str, FileFacts] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GroupVersion:
    """What a set holds of a group."""

    files: Mapping[str, CheckpointFile] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)


NOTHING = GroupContent()
NO_VERSION = GroupVersion()


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A group as it was seen look after look; times are monotonic seconds."""

    content: GroupContent
    since_s: float  # the first look that saw exactly this
    files_since_s: Mapping[str, float]  # path -> the first look that saw this state of the file
    dirty_since_s: float | None  # the first look that saw something else than what was taken; None: nothing else


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What may be taken now."""

    whole: frozenset[str] = frozenset()  # groups
    single: Mapping[str, frozenset[str]] = field(default_factory=dict)  # group -> paths
    waiting: frozenset[str] = frozenset()  # groups that are being written to

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self.whole and not any(self.single.values())


def group_of(path: str, *, is_folder: bool = False) -> str:
    """Return the group of a path; an empty folder at the top is a group of its own."""
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
    return {
        name: GroupVersion(
            files={path: by_path[path] for path in files},
            folders=frozenset(folders),
            links={path: all_links[path] for path in links},
        )
        for name, (files, folders, links) in _split(by_path, checkpoints.folders, all_links).items()
    }


def follow(
    sights: Mapping[str, Sight],
    contents: Mapping[str, GroupContent],
    *,
    taken: Mapping[str, GroupContent],
    now_s: float,
) -> dict[str, Sight]:
    """Return what is known after another look.

    Args:
        sights: what was known before it.
        contents: what it saw; a group that is not there any more holds nothing.
        taken: what of each group stands in the newest set.
    """
    found = {}
    for name in {*sights, *contents, *taken}:
        content, before = contents.get(name, NOTHING), sights.get(name)
        is_dirty = content != taken.get(name, NOTHING)
        if not is_dirty and content == NOTHING:
            continue
        dirty_since_s = before.dirty_since_s if before is not None else None
        found[name] = Sight(
            content=content,
            since_s=before.since_s if before is not None and before.content == content else now_s,
            files_since_s={
                path: before.files_since_s[path]
                if before is not None and before.content.files.get(path) == facts
                else now_s
                for path, facts in content.files.items()
            },
            dirty_since_s=(now_s if dirty_since_s is None else dirty_since_s) if is_dirty else None,
        )
    return found


def choose(sights: Mapping[str, Sight], *, now_s: float, settle_s: float, patience_s: float) -> Choice:
    """Return what may be taken.

    Args:
        settle_s: how long a group, or a file, must have been seen as it is.
        patience_s: how long a group may be written to until its files are taken one by one.
    """
    whole, waiting = set(), set()
    single = {}
    for name, sight in sights.items():
        if sight.dirty_since_s is None:
            continue
        if now_s - sight.since_s >= settle_s:
            whole.add(name)
        elif now_s - sight.dirty_since_s > patience_s:
            still = {path for path, since_s in sight.files_since_s.items() if now_s - since_s >= settle_s}
            single[name] = frozenset(still)
        else:
            waiting.add(name)
    return Choice(whole=frozenset(whole), single=single, waiting=frozenset(waiting))


def without_collisions(
    old: Mapping[str, GroupVersion], new: Mapping[str, GroupVersion]
) -> tuple[dict[str, GroupVersion], frozenset[str]]:
    """Put groups of two moments together; return all groups, and which new ones had to stay out.

    A name that was a file at the top and became a folder belongs to two groups. If only one of them can be taken, the
    folder and the file would be in one set: then the new one waits for the other.
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
