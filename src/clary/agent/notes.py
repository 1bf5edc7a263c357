"""Notes of a host, grouped by subject, so that a thousand skipped files make one line.

Where: channels and artifacts add notes for users; `HostFacts.notes` passes the lines to `describe`.
"""

from __future__ import annotations

_MAX_NAMES = 8  # names listed per subject; further names are counted
_MAX_NAME_CHARACTERS = 200


class NoteBook:
    """Notes in the order of their first appearance."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def add(self, subject: str, name: str = "") -> None:
        """Add a note on `subject`, with the name of the affected item, if any."""
        names = self._names.setdefault(subject, [])
        self._counts[subject] = self._counts.get(subject, 0) + 1
        if name and len(names) < _MAX_NAMES:
            names.append(name[:_MAX_NAME_CHARACTERS])

    def lines(self) -> tuple[str, ...]:
        """Return one line for each subject: `subject: name, name and 12 more`."""
        return tuple(self._line(subject, names) for subject, names in self._names.items())

    def _line(self, subject: str, names: list[str]) -> str:
        if not names:
            return subject
        num_more = self._counts[subject] - len(names)
        # Names come from file systems and may be invalid text, but notes are sent as JSON and logged.
        listed = ", ".join(name.encode("utf-8", "backslashreplace").decode() for name in names)
        return f"{subject}: {listed}{f' and {num_more} more' if num_more else ''}"
