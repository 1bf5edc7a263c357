"""Lines that could not be kept: counted where they would have stood, and said there in the log itself.

Where: `log_spool` has one for what its disk or its bound refuses, `output_buffer` one for each stream that a disk which
hangs holds up.
"""

from __future__ import annotations

OWN_PREFIX = "clary: "  # of lines that the agent adds to the program's own


class LogLoss:
    """Counts one gap after the other; not safe for several threads at once."""

    def __init__(self) -> None:
        self.num_lines = 0  # in all
        self._gap_lines = 0  # since the last sentence
        self._gap_bytes = 0
        self._reasons: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether something was lost that no sentence tells yet."""
        return bool(self._reasons)

    @property
    def newest_reason(self) -> str:
        """Why lines were lost last; only of an open gap."""
        return self._reasons[-1]

    def add(self, num_lines: int, size_bytes: int, reason: str) -> None:
        """Count lost lines, with the reason.

        Args:
            num_lines: 0 where only a part of a line is lost.
            size_bytes: of their text.
            reason: a clause for the sentence; each is named once in a gap.
        """
        self.num_lines += num_lines
        self._gap_lines += num_lines
        self._gap_bytes += size_bytes
        if reason not in self._reasons:
            self._reasons.append(reason)

    def sentence(self) -> str | None:
        """Return the sentence for the log at this place, or None if nothing is missing here."""
        if not self._reasons:
            return None
        reasons = " and ".join(self._reasons)
        return f"{OWN_PREFIX}{self._gap_lines} lines ({self._gap_bytes} bytes) were lost here: {reasons}"

    def note_told(self) -> None:
        """Begin to count anew: the sentence stands in the log."""
        self._gap_lines = self._gap_bytes = 0
        self._reasons.clear()
