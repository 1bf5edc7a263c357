"""The record of a running program: its live processes, their exits, and its reports.

Where: the reader thread of `program` writes it from the reports of the host's first process (`keeper` lists them);
the program's methods read it, wait on it, and record acts of the agent. All methods may be called from any thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from clary.agent.host.sandbox import ProcessSpec
from clary.base.clock import Clock
from clary.contract.agent_protocol import ProcessExit

MAX_NOTES = 10_000  # further reports of failures are dropped
MAX_NOTE_CHARS = 1000
MAX_INDEX_CHARS = 20
REPORT_KINDS = frozenset(
    ("init", "forked", "begun", "ready", "note", "signalled", "again", "heard", "exited", "failed")
)


class ProgramRecord:
    """The record of one program.

    Args:
        processes: the program's processes.
        hostname: name of the program's host, for messages.
        clock: time of day for exits not reported by the keeper.
    """

    def __init__(self, processes: Sequence[ProcessSpec], *, hostname: str, clock: Clock) -> None:
        self._processes = tuple(processes)
        self._hostname = hostname
        self._clock = clock
        self._changed = threading.Condition()
        self._exits: dict[int, ProcessExit] = {}
        self._pids: dict[int, int] = {}  # index -> pid on the machine
        self._answers: dict[int, int] = {}  # id of a signal order -> number of signalled processes
        self._notes: list[str] = []
        self._repeated: dict[str, tuple[str, int]] = {}  # kind -> its first note, number of notes
        self._is_killed = False
        self._is_gone = False  # no further report will arrive
        self.has_begun = False  # processes may have run the program's code
        self.is_ready = False  # every process was started
        self.was_signalled = False  # every process of the host received SIGTERM from outside
        self.lost_why = ""  # a sentence, if the first process ended before the program did
        self.failure = ""  # reason why the host could not be made, or why its first process stopped later
        self.init_pid = 0
        self.not_isolated: tuple[str, ...] = ()
        self.num_forked = 0  # processes forked from the standby interpreter
        self.why_not_again: str | None = None  # reason why the host serves no other program, or ""; None until known
        self.why_not_forked = ""  # reason, if processes that could have been forked were not

    def check(self, report: Mapping[str, Any]) -> None:
        """Check that a report names a process of this program, if it names any. Raises: ValueError."""
        if report["kind"] in ("forked", "exited"):
            index = report["index"]
            if type(index) is not int or not 0 <= index < len(self._processes):
                raise ValueError(
                    f"report {report['kind']!r} names process {str(index)[:MAX_INDEX_CHARS]}, "
                    f"expected 0 to {len(self._processes) - 1}"
                )

    def apply(self, report: Mapping[str, Any], *, sender: int) -> None:
        """Apply one report that `check` has passed; `sender` is the sender's pid on the machine.

        Raises: ValueError for a kind that `check` refuses.
        """
        with self._changed:
            match report["kind"]:
                case "init":
                    self.init_pid = sender
                case "forked":
                    self._pids[report["index"]] = sender
                case "begun":
                    self.has_begun = True
                case "ready":
                    self.not_isolated = tuple(report["not_isolated"])
                    self.num_forked = report.get("num_forked", 0)
                    self.why_not_forked = report.get("why_not_forked", "")
                    self.is_ready = True
                case "note":
                    if len(self._notes) < MAX_NOTES:
                        self._notes.append(str(report["text"])[:MAX_NOTE_CHARS])
                case "signalled":
                    self._answers[report["id"]] = report["count"]
                case "again":
                    self.why_not_again = report["why_not"]
                case "heard":
                    self.was_signalled = True
                case "exited":
                    self._add_exit(
                        report["index"],
                        exit_code=report["code"],
                        signal_number=report["signal"],
                        ended_at=datetime.fromtimestamp(report["at"], timezone.utc),
                        is_consequence=report["doomed"],
                    )
                case "failed":
                    self.failure = report["message"]
                case _:
                    raise ValueError(f"there is no report {str(report['kind'])[:MAX_INDEX_CHARS]!r}")
            self._changed.notify_all()

    def add_note(self, sentence: str) -> None:
        """Record a failure other than an exit, as a sentence."""
        with self._changed:
            if len(self._notes) < MAX_NOTES:
                self._notes.append(sentence)

    def add_repeated_note(self, kind: str, sentence: str) -> None:
        """Record a failure that may happen often: `notes` has the first sentence of its kind, with a count.

        Args:
            kind: one of few; programs must not be able to choose it freely.
            sentence: with a full stop.
        """
        with self._changed:
            first, count = self._repeated.get(kind, (sentence, 0))
            self._repeated[kind] = (first, count + 1)

    def fail(self, reason: str) -> None:
        """Record why the host cannot go on; an earlier reason stays."""
        with self._changed:
            self.failure = self.failure or reason
            self._changed.notify_all()

    def expect_end(self) -> None:
        """From now on, attribute an end without a report to the agent."""
        with self._changed:
            self._is_killed = True

    def lose_the_rest(self) -> None:
        """Record the end of reports: the remaining processes were killed, through no fault of their own."""
        with self._changed:
            self._is_gone = True
            lost = [index for index in range(len(self._processes)) if index not in self._exits]
            for index in lost:
                self._add_exit(
                    index,
                    exit_code=None,
                    signal_number=int(signal.SIGKILL),
                    ended_at=self._clock.now(),
                    is_consequence=True,
                )
            if lost and not self._is_killed and self.is_ready:
                reason = f" ({self.failure})" if self.failure else ""
                self.lost_why = (
                    f"the first process of {self._hostname} ended before its program did{reason}; the kernel killed "
                    f"{len(lost)} of {len(self._processes)} processes with it"
                )
            self._changed.notify_all()

    def wait_until_started(self, timeout_s: float) -> bool:
        """Wait until the host is made or has failed; return False on timeout."""
        return self._wait_for(lambda: self.is_ready or self._is_gone or bool(self.failure), timeout_s)

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait until every process has ended; return False on timeout."""
        return self._wait_for(lambda: len(self._exits) == len(self._processes), timeout_s)

    def wait_for_answer(self, number: int, timeout_s: float) -> int:
        """Wait for the number of processes that a signal order reached; 0 if the keeper does not answer."""
        self._wait_for(lambda: number in self._answers or self._is_gone, timeout_s)
        with self._changed:
            return self._answers.pop(number, 0)

    def wait_until_free(self, timeout_s: float) -> str:
        """Wait for the host's answer; return "", or the reason why it cannot serve another program."""
        self._wait_for(lambda: self.why_not_again is not None or self._is_gone, timeout_s)
        with self._changed:
            return "it has not answered" if self.why_not_again is None else self.why_not_again

    def exits_in_order(self) -> tuple[ProcessExit, ...]:
        """Return the exits so far, in the order of the given processes."""
        with self._changed:
            return tuple(self._exits[index] for index in sorted(self._exits))

    def notes(self) -> tuple[str, ...]:
        """Return sentences about failures other than exits."""
        with self._changed:
            repeated = (
                first if count == 1 else f"{first} This happened {count} times."
                for first, count in self._repeated.values()
            )
            return (*self._notes, *repeated)

    def num_running(self) -> int:
        """Return the number of processes that have not ended."""
        with self._changed:
            return len(self._processes) - len(self._exits)

    def ranks_by_pid(self) -> dict[int, int]:
        """Return pid on the machine -> rank, for running ranks."""
        with self._changed:
            ranks = {pid: self._processes[index].rank for index, pid in self._pids.items() if index not in self._exits}
        return {pid: rank for pid, rank in ranks.items() if rank is not None}

    def running_pids(self) -> list[int]:
        """Return the pids, on the machine, of processes that have not ended."""
        with self._changed:
            return [pid for index, pid in self._pids.items() if index not in self._exits]

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _add_exit(
        self,
        index: int,
        *,
        exit_code: int | None,
        signal_number: int | None,
        ended_at: datetime,
        is_consequence: bool,
    ) -> None:
        process = self._processes[index]
        self._exits[index] = ProcessExit(
            rank=process.rank,
            local_rank=process.local_rank,
            pid=self._pids.get(index, 0),
            exit_code=exit_code,
            signal=signal_number,
            ended_at=ended_at,
            is_consequence=is_consequence,
        )
