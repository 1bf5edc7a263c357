"""Search in a process's output for the error that ended it, and the time at which it was printed.

Where: `log_intake` scans the last lines of each stream with it, `last_words` chooses one line for users. It is for
programs that leave no error record (`clues`): bash around Python, another interpreter, a launcher whose ranks share one
pipe and prefix their lines.

Only the last exception of each rank is kept, because programs print other exceptions and survive them. For a chain of
exceptions ("During handling of the above exception...") the last exception, which ended the program, is kept with the
time of the first exception.
"""

from __future__ import annotations

import re
from datetime import datetime

from clary.base.signal_names import signal_name
from clary.contract.agent_protocol import MAX_CLUE_CHARACTERS, Clue

MAX_RANKS = 256

# Prefixes of lines by mpirun --tag-output, by Clary in mpirun's style, and by torch's excepthook.
_PREFIX = re.compile(r"^(?:\[1,(?:mpirank:)?(\d+)[^\]]*\]<std(?:out|err)>:\s?)?(?:\[rank(\d+)\]:\s?)?")
_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# Python prints no traceback for these if they are in the program's own file.
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
# The output of an uncaught C++ exception before its abort: the watchdogs of NCCL and gloo end ranks in this way.
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^']+)'")
_WHAT = re.compile(r"\s*what\(\):\s+(.*)")
# torchrun's line about a rank killed by a signal; ranks that end with an exit code print their own errors.
_ELASTIC = re.compile(r"failed \(exitcode: -(\d+)\) local_rank: (\d+) \(pid: \d+\) of binary")
_MPIRUN = re.compile(r"mpirun noticed that (process rank (\d+) .*exited on signal \d+.*)")
# mpirun's alternative line for a killed rank; as in a shell, the code is 128 + signal.
_MPI_PROCESS = re.compile(r"\s*Process name: \[\[\d+,\d+\],(\d+)\]")
_MPI_CODE = re.compile(r"\s*Exit code:\s+(\d+)")
_SIGNAL_BASE = 128
# A line that only resembles an exception: shown to users if no better line is found.
_LOOSE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::.*)?")


class ErrorScanner:
    """Reads the lines of one stream in order.

    Args:
        rank: of the printing process; None if it is unknown or lines contain it.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._inside: dict[int | None, bool] = {}  # rank -> whether its lines are inside a traceback
        self._terminated: dict[int | None, str] = {}  # rank -> class of the C++ exception whose text follows
        self._chained: set[int | None] = set()  # ranks whose next exception continues a chain
        self._found: dict[int | None, Clue] = {}
        self._mpi_rank: int | None = None  # identifies the process whose exit code mpirun prints in the next line
        self._last: str | None = None
        self._loose: str | None = None

    @property
    def clues(self) -> tuple[Clue, ...]:
        """The last exception of each rank."""
        return tuple(self._found.values())

    @property
    def words(self) -> str | None:
        """The last exception of any rank; else the last line that resembles an exception."""
        return self._last or self._loose

    def feed(self, line: str, at: datetime) -> None:
        """Process the next line."""
        match = _PREFIX.match(line)
        assert match is not None  # each part is optional
        marked = match[2] or match[1]
        rank = self._rank if self._rank is not None or marked is None else int(marked)
        text = line[match.end() :].rstrip()
        if text.startswith(_TRACEBACK):
            if len(self._inside) < MAX_RANKS or rank in self._inside:
                self._inside[rank] = True
        elif self._inside.get(rank):
            if text and not text[0].isspace():
                self._inside[rank] = False
                self._note(rank, text, at)
        elif text.startswith(_CHAIN):
            self._chained.add(rank)
        elif (elastic := _ELASTIC.search(text)) is not None:
            self._keep(rank, f"local rank {elastic[2]} was ended by {signal_name(int(elastic[1]))}", at)
        elif (mpirun := _MPIRUN.search(text)) is not None:
            self._keep(int(mpirun[2]) if self._rank is None else rank, mpirun[1], at)
        elif (named := _MPI_PROCESS.match(text)) is not None:
            self._mpi_rank = int(named[1])
        elif self._mpi_rank is not None and (told := _MPI_CODE.match(text)) is not None:
            self._keep_exit(self._mpi_rank, int(told[1]), at)
            self._mpi_rank = None
        elif _SYNTAX.match(text):
            self._note(rank, text, at)
        elif (terminate := _TERMINATE.match(text)) is not None:
            if len(self._terminated) < MAX_RANKS or rank in self._terminated:
                self._terminated[rank] = terminate[1]
        elif rank in self._terminated and (what := _WHAT.match(text)) is not None:
            self._note(rank, f"{self._terminated.pop(rank)}: {what[1]}", at)
        elif _LOOSE.fullmatch(text):
            self._loose = text

    def _note(self, rank: int | None, text: str, at: datetime) -> None:
        if rank in self._chained and rank in self._found:
            at = self._found[rank].at
        self._chained.discard(rank)
        if rank in self._found and self._found[rank].text.startswith(("local rank", "process rank")):
            return  # an exception after a launcher's line about a dead rank is the launcher's own
        self._keep(rank, text, at)

    def _keep_exit(self, rank: int, code: int, at: datetime) -> None:
        """Record a launcher's report of a rank's end, unless the rank has printed an error itself."""
        if rank not in self._found:
            is_signal = code > _SIGNAL_BASE
            how = f"was ended by {signal_name(code - _SIGNAL_BASE)}" if is_signal else f"ended with exit code {code}"
            self._keep(rank, how, at)

    def _keep(self, rank: int | None, text: str, at: datetime) -> None:
        if len(self._found) >= MAX_RANKS and rank not in self._found:
            return
        self._last = text[:MAX_CLUE_CHARACTERS]
        self._found[rank] = Clue(rank=rank, at=at, text=self._last)
