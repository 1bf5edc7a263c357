"""Entries of a listing in S3's order: the order of the bytes of their keys.

Where: `ordered_listing` asks the store for windows, and writes what the walk yields. Pure apart from these requests.

[Note: the store's order] SeaweedFS lists folder by folder: everything below `a/` before `a-b` and `a.txt`, though `-`
and `.` precede `/`. And a marker `a` skips the whole folder `a/`. `aws s3 sync` compares sorted listings: with
`--delete` it removes objects of an unsorted one. So the walk holds a folder back until all names of its parent that
precede it have come. If the folder's end is not in the window, the walk skips it and reads it when its turn comes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from clary.contract.object_store.stored_names import stored_name


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An object, or a folder of a listing with delimiter `/`."""

    key: str  # of a folder: its prefix, with the slash
    element: bytes  # as the store has written it


class NoProgress(Exception):
    """The store says that entries follow, but its window is empty: an end here would silently leave them out."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Some entries that follow each other in the store's order."""

    entries: Sequence[Entry]
    is_last: bool


@dataclass(frozen=True)
class _Below:
    """The order to read a folder before the walk goes on."""

    prefix: str
    after: str
    first: Window | None = None  # the folder's first entries, if they are known; it has more


# Receives a prefix, a name of the store behind which the window begins, and whether a few entries are enough. The name
# of a folder skips all of it.
Fetch = Callable[[str, str, bool], Awaitable[Window]]


class KeyWalk:
    """Walks through the entries of one listing.

    Args:
        fetch: returns the next entries with a prefix.
        has_folders: whether the entries are those of one folder (delimiter `/`), not of all folders below it.
    """

    def __init__(self, fetch: Fetch, *, has_folders: bool) -> None:
        self._fetch = fetch
        self._has_folders = has_folders

    async def entries(self, prefix: str, after: str) -> AsyncIterator[Entry]:
        """Yield the entries with a prefix whose keys are greater than a marker, in the order of their keys.

        A key may have 500 folders, so levels are kept on a stack of this method, not on Python's.

        Args:
            prefix: of the keys.
            after: the marker; empty for all.
        Raises: NoProgress.
        """
        levels = [self._level(prefix, after)]
        while levels:
            try:
                item = await anext(levels[-1])
            except StopAsyncIteration:
                levels.pop()
                continue
            if isinstance(item, Entry):
                yield item
            else:
                levels.append(self._level(item.prefix, item.after, item.first))

    async def _level(self, prefix: str, after: str, first: Window | None = None) -> AsyncIterator[Entry | _Below]:
        """Yield the entries of one folder, and for each folder in it either all its entries or the order to read it."""
        if after and not after.startswith(prefix):
            if after > prefix:
                return
            after = ""
        folder = prefix[: prefix.rfind("/") + 1]
        name, slash, _ = after[len(folder) :].partition("/")
        if slash and not self._has_folders:
            yield _Below(f"{folder}{name}/", after)
        # Folders that the store lists before the marker, though they follow it.
        held: list[tuple[str, Window | None]] = [
            (f"{folder}{begin}/", None) for begin in _earlier_names(name, is_folder=bool(slash))
        ]
        held = [item for item in held if item[0].startswith(prefix)]
        position = _end_of(f"{folder}{name}/") if name or slash else ""
        is_brief = False
        while True:
            window = first or await self._fetch(prefix, position, is_brief)
            first, is_brief = None, False
            reached = position
            index = 0
            while index < len(window.entries):
                entry = window.entries[index]
                name, slash, _ = entry.key[len(folder) :].partition("/")
                while held and not _precedes(f"{folder}{name}", held[-1][0]):
                    for one in await self._released(*held.pop()):
                        yield one
                if not slash:
                    reached = stored_name(entry.key)
                    index += 1
                    if entry.key > after:
                        yield entry
                    if index == len(window.entries) and not window.is_last and name:
                        held.append((f"{entry.key}/", None))  # the next window would skip such a folder
                    continue
                inner = f"{folder}{name}/"
                end = index + 1
                while end < len(window.entries) and window.entries[end].key.startswith(inner):
                    end += 1
                is_whole = self._has_folders or end < len(window.entries) or window.is_last
                if inner > after:
                    held.append((inner, Window(entries=window.entries[index:end], is_last=is_whole)))
                # Whether a name of this level precedes the folder shows in a few entries behind it.
                is_brief = not is_whole
                reached = _end_of(inner)
                index = end
            if window.is_last:
                break
            if reached == position:
                raise NoProgress
            position = reached
        while held:
            for one in await self._released(*held.pop()):
                yield one

    async def _released(self, inner: str, known: Window | None) -> Sequence[Entry | _Below]:
        if known is not None and known.is_last:
            return sorted(known.entries, key=lambda entry: entry.key)
        if not self._has_folders:
            return [_Below(inner, "", known)]
        window = await self._fetch(inner[:-1], "", True)
        return [entry for entry in window.entries if entry.key == inner]


def _earlier_names(name: str, *, is_folder: bool) -> list[str]:
    """Return names of folders that sort before a name without a slash behind them, and after it with one."""
    names = [name[:length] for length in range(1, len(name)) if name[length] < "/"]
    return names if is_folder or not name else [*names, name]


def _precedes(key: str, inner: str) -> bool:
    """Whether a key, or the folder that it names, precedes the keys of a folder that the store lists before it."""
    begin = inner[:-1]
    return key.startswith(begin) and begin < key < inner


def _end_of(inner: str) -> str:
    """Return the store's name of a folder; a listing that begins behind it skips the folder's keys."""
    return stored_name(inner)[:-1]
