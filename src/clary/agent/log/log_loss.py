"""Counts lost log lines, so that the log can say, at the place where lines are missing, how many were lost.

Where: `log_spool` has one for lines that the disk or the size limit refuses, `output_buffer` has one for each stream
blocked by a hanging disk.
"""

from __future__ import annotations

OWN_PREFIX = "clary: "  # prefix of lines that the agent adds to the program's output


class LogLoss:
    """Counts the lines of successive gaps; not thread-safe."""

    def __init__(self) -> None:
        self.num_lines = 0  # total number of lost lines
        self._gap_lines = 0  # lost lines since the last sentence
        self._gap_bytes = 0
        self._reasons: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether lines were lost that no sentence has reported yet."""
        return bool(self._reasons)

    @property
    def newest_reason(self) -> str:
        """The reason of the last loss in the open gap."""
        return self._reasons[-1]

    def add(self, num_lines: int, size_bytes: int, reason: str) -> None:
        """Count lost lines, with the reason.

        Args:
            num_lines: number of lines; 0 if only a part of a line is lost.
            size_bytes: size of the lost text.
            reason: a clause for the sentence; each reason is named once per gap.
        """
        self.num_lines += num_lines
        self._gap_lines += num_lines
        self._gap_bytes += size_bytes
        if reason not in self._reasons:
            self._reasons.append(reason)

    def sentence(self) -> str | None:
        """Return the sentence about the open gap for the log, or None without a gap."""
        if not self._reasons:
            return None
        reasons = " and ".join(self._reasons)
        return f"{OWN_PREFIX}{self._gap_lines} lines ({self._gap_bytes} bytes) were lost here: {reasons}"

    def note_told(self) -> None:
        """Start a new count after the log has received the sentence."""
        self._gap_lines = self._gap_bytes = 0
        self._reasons.clear()
