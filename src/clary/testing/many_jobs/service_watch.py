"""The machine's resources that a running service uses: memory, open files, threads, processor time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from clary.control.state_folder import StateFolder

KIB = 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER_TICKS_FIELD, _SYSTEM_TICKS_FIELD = 11, 12  # indices of the fields of /proc/PID/stat after the command


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement."""

    label: str
    elapsed_s: float
    rss_bytes: int
    num_files: int
    num_threads: int
    cpu_s: float


class ServiceWatch:
    """Measures the service of a state folder.

    Raises: ContractError if the service's record cannot be read, AssertionError if no service runs.
    """

    def __init__(self, home: Path) -> None:
        record = StateFolder(home).read_service_record()
        assert record is not None, f"no service runs for {home}: start one first"
        self._folder = Path("/proc") / str(record.pid)

    def look(self, label: str, *, elapsed_s: float) -> Sample:
        """Return the resources that the service uses now; raises OSError if the service has ended."""
        lines = (self._folder / "status").read_text().splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        stat = (self._folder / "stat").read_text().rpartition(")")[2].split()
        ticks = int(stat[_USER_TICKS_FIELD]) + int(stat[_SYSTEM_TICKS_FIELD])
        return Sample(
            label=label,
            elapsed_s=elapsed_s,
            rss_bytes=int(status["VmRSS"][0]) * KIB,
            num_files=len(list((self._folder / "fd").iterdir())),
            num_threads=int(status["Threads"][0]),
            cpu_s=ticks / _TICKS_PER_S,
        )
