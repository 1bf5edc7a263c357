"""Evidence that a checkpoint file is whole, as manifests store it and as people read it in words.

Where: agents write the evidence into sets (`agent.checkpoints.evidence` determines it); the service and the command
line show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clary.base.string_enum import StrEnum


class Evidence(StrEnum):
    """Kind of evidence that a file is whole."""

    UNKNOWN = ""  # no evidence, as in sets of earlier releases, or evidence that this release does not know
    RENAMED = "renamed"  # the file was renamed or linked to its path
    MARKED = "marked"  # a marker file, which known writers write last, was written after the file
    CLOSED = "closed"  # its last writer closed it, and still ran or ended with exit code 0
    ENDED = "ended"  # the program closed it and ended with exit code 0
    LOG = "log"  # its name is that of a log, which is valid at any length; no evidence for other files
    RESTED = "rested"  # only time: the file was unchanged for ten times the longest pause seen, and for a minimum time
    LEFT_OUT = "left-out"  # for a name that a set may lack: the file was incomplete or was being rewritten

    @classmethod
    def of(cls, text: str) -> Evidence:
        """Return the evidence that a manifest's text names, or UNKNOWN for a text of a newer release."""
        return cls(text) if text in _VALUES else cls.UNKNOWN

    @property
    def is_statement(self) -> bool:
        """Whether the evidence is more than time without changes."""
        return self not in (Evidence.UNKNOWN, Evidence.RESTED, Evidence.LEFT_OUT)


_VALUES = frozenset(item.value for item in Evidence)
_WORDS = {
    Evidence.RENAMED: "renamed into place",
    Evidence.MARKED: "with the writer's marker",
    Evidence.CLOSED: "closed by the writer",
    Evidence.ENDED: "closed before the program ended with 0",
    Evidence.LOG: "kept as far as a log had got",
}


def is_whole(counts: Mapping[str, int]) -> bool:
    """Whether every file has evidence other than time, and no file was left out.

    Args:
        counts: value of Evidence -> number of files, or of names that the set may lack, with this evidence.
    """
    return all(Evidence.of(text).is_statement for text, number in counts.items() if number)


def count_evidence(values: Iterable[str]) -> dict[str, int]:
    """Return value of Evidence -> count, in the order of the enum."""
    found = [Evidence.of(value) for value in values]
    return {item.value: number for item in Evidence if (number := found.count(item))}


def statements_in_words(counts: Mapping[str, int]) -> str:
    """Return `12 files closed by the writer, 1 file renamed into place`; empty without such evidence."""
    return ", ".join(
        f"{_files(counts[item.value])} {words}" for item, words in _WORDS.items() if counts.get(item.value)
    )


def doubts_in_words(counts: Mapping[str, int], *, least_rest_s: float) -> str:
    """Return why the files are not known to be whole; empty if they are.

    Args:
        least_rest_s: shortest time without changes, among the files for which such a time is the only evidence.
    """
    parts = []
    if number := counts.get(Evidence.RESTED.value, 0):
        parts.append(f"nothing said so of {_files(number)} but {least_rest_s:.0f} s of rest")
    if number := counts.get(Evidence.UNKNOWN.value, 0):
        parts.append(f"the manifest says nothing of {_files(number)}, as those of earlier releases")
    if number := counts.get(Evidence.LEFT_OUT.value, 0):
        names = "1 file or folder" if number == 1 else f"{number} files or folders"
        parts.append(f"it may lack something of {names} that had changed")
    return "; ".join(parts)


def _files(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"
