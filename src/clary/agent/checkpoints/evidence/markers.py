"""Markers that known libraries write last, and the files that each marker declares whole. Pure.

| marker | writer | declares whole |
|---|---|---|
| `.metadata` | torch.distributed.checkpoint, by the rank that coordinates | its folder |
| `trainer_state.json` | Trainer of transformers | its folder |
| `checkpoint.json` beside `part-*.bin` | `clary.train.checkpoint` | its folder |
| `latest`, which names a folder | DeepSpeed | that folder |
| `latest_checkpointed_iteration.txt`, which holds a number | Megatron | `iter_NUMBER` beside it |

A marker is no evidence for files written after it: a folder that is written again still has the earlier save's marker.
Events and looks (scans of the folder) show whether the marker or the file came last. Without them the mtime and the
ctime of both files decide: a copy that keeps times sets the mtime, and any clock may be set back, so neither time alone
is enough. At the top of the checkpoint folder a marker declares the files beside it whole, but not the folders, which
may be separate saves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clary.agent.checkpoints.scanning import FileFacts

MAX_POINTER_BYTES = 256
_OF_ITS_FOLDER = frozenset({".metadata", "trainer_state.json", "checkpoint.json"})
_OURS = "checkpoint.json"
_LATEST, _MEGATRON = "latest", "latest_checkpointed_iteration.txt"
_PART = re.compile(r"part-\d{5,}\.bin")


@dataclass(frozen=True)
class Mark:
    """A marker as evidence that a file was whole when the marker was written.

    Attributes:
        path: of the marker.
        is_seen: whether events or looks showed that the marker came last; otherwise only times show it.
    """

    path: str
    is_seen: bool


def marker_candidates(files: Mapping[str, FileFacts]) -> dict[str, str]:
    """Return the paths of possible markers, with the names of the markers."""
    found = {}
    for path in files:
        name = path.rpartition("/")[2]
        if name in _OF_ITS_FOLDER or name in (_LATEST, _MEGATRON):
            found[path] = name
    return found


def marked(
    files: Mapping[str, FileFacts],
    *,
    is_whole: Callable[[str], bool],
    text_of: Callable[[str], str],
    came_last: Callable[[str, str], bool | None],
) -> dict[str, Mark]:
    """Return file -> marker, for the files that a marker declares whole.

    Args:
        is_whole: whether the marker at a path is whole.
        text_of: returns the text of a marker that names a folder; empty if the text is unreadable or too long for a
            name.
        came_last: whether the file at the first path was closed or renamed after the file at the second path; None if
            unknown.
    """
    folders: dict[str, str] = {}  # folder ("" or ending in a slash) -> its marker
    for path, name in marker_candidates(files).items():
        above = path[: -len(name)]
        if name == _OURS and not any(
            _PART.fullmatch(other[len(above) :]) for other in files if other.startswith(above)
        ):
            continue
        if not is_whole(path):
            continue
        folder = _named_folder(above, name, text_of) if name in (_LATEST, _MEGATRON) else above
        if folder is not None:
            folders[folder] = path
    if not folders:
        return {}
    found = {}
    for path, facts in files.items():
        for folder in _folders_of(path):
            if not folder and "/" in path:
                break
            marker = folders.get(folder)
            if marker is None or marker == path:
                continue
            is_seen = came_last(marker, path)
            if is_seen if is_seen is not None else _is_older(facts, files[marker]):
                found[path] = Mark(marker, is_seen=is_seen is not None)
                break
    return found


def _is_older(facts: FileFacts, marker: FileFacts) -> bool:
    return facts.modified_ns <= marker.modified_ns and facts.changed_ns <= marker.changed_ns


def _named_folder(above: str, name: str, text_of: Callable[[str], str]) -> str | None:
    text = text_of(above + name).strip()
    if name == _MEGATRON:
        return f"{above}iter_{int(text):07d}/" if text.isascii() and text.isdecimal() else None
    is_name = bool(text) and text not in (".", "..") and "/" not in text and "\0" not in text
    return f"{above}{text}/" if is_name else None


def _folders_of(path: str) -> list[str]:
    """Return a file's parent folders, innermost first, each ending in a slash; the last is ""."""
    parts = path.split("/")[:-1]
    return [*("/".join(parts[:depth]) + "/" for depth in range(len(parts), 0, -1)), ""]
