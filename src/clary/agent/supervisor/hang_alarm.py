"""Alarm about a program without progress: evidence for people, and the program's end if the plan demands it.

Where: `program_companions` starts it with the program. The alarm appears in the host's facts and in the log; it is
cleared when the program continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from clary.agent.autopsy.progress_watch import ProgressWatch
from clary.agent.companion import Companion, WatchedProgram
from clary.agent.fact_board import FactBoard
from clary.agent.log.host_log import HostLog
from clary.base.errors import Fault
from clary.contract.agent_protocol import Failure
from clary.contract.launch_plan import LaunchPlan

_DUMP_S = 60.0  # longest wait until the service has this host's dump
_OTHERS_S = 5.0  # wait after that for other hosts' dumps: report, dump and delivery

logger = logging.getLogger(__name__)


class HangAlarm(Companion):
    """Watches the progress of one program.

    Args:
        plan: of the attempt: how long the program may stand still, and whether it is then ended.
        take_dump: starts a dump of the host's processes with a reason; returns an event that is set when the dump is
            sent or has failed.
        on_hung: called from another thread, with the reason, to end the program.
        has_gpus: whether a rank that waits may seem to compute, as with GPUs; if so, a program that has only computed
            for the limit gets a dump without an alarm.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        board: FactBoard,
        log: HostLog,
        take_dump: Callable[[str], threading.Event],
        on_hung: Callable[[str], None],
        has_gpus: bool = False,
    ) -> None:
        self._plan = plan
        self._board = board
        self._log = log
        self._take_dump = take_dump
        self._on_hung = on_hung
        self._has_gpus = has_gpus
        self._watch: ProgressWatch | None = None
        # set when the program continues, or when the watch ends, so that the alarm then ends no program
        self._gets_on = threading.Event()
        self.failure: Failure | None = None  # failure of a program that was ended because it hangs

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Watch the program's processes, if the first process is known and the plan sets a limit."""
        first_pid = program.init_pid
        if first_pid is None or not self._plan.hang_timeout_s:
            return
        self._watch = ProgressWatch(
            first_pid,
            num_outputs=lambda: self._log.num_outputs,
            limit_s=self._plan.hang_timeout_s,
            on_standstill=self._raise_alarm,
            on_progress=self._end_alarm,
            on_quiet=self._look if self._has_gpus else None,
        )
        self._watch.start()

    def blame(self, words: str) -> None:
        """Record that the program is ended because it hangs."""
        self.failure = Failure(
            fault=Fault.INFRASTRUCTURE.value,
            message=f"the program hangs: {words}",
            retryable=True,
            at=datetime.now(timezone.utc),
        )

    def ended(self) -> None:
        """End the watch; a second call does nothing."""
        self.abort()

    def abort(self) -> None:
        """End the watch; a second call does nothing."""
        self._gets_on.set()
        if self._watch is not None:
            self._watch.close()

    def _look(self, words: str) -> None:
        self._log.say(f"the program's processes are dumped: {words}, like ranks that wait for each other on GPUs")
        self._take_dump(words)

    def _raise_alarm(self, words: str) -> None:
        logger.warning("%s", words)
        self._log.say(f"alarm: {words}")
        self._board.tell(standstill=words)
        is_known = self._take_dump(words)
        if self._plan.restart_hung:
            self._gets_on = threading.Event()
            arguments = (words, is_known, self._gets_on)
            threading.Thread(target=self._end_after_dump, args=arguments, name="hang-end", daemon=True).start()

    def _end_after_dump(self, words: str, is_known: threading.Event, gets_on: threading.Event) -> None:
        """End the program after all hosts have had time for dumps, which its end makes impossible."""
        is_known.wait(_DUMP_S)
        if not gets_on.wait(_OTHERS_S):
            self._on_hung(words)

    def _end_alarm(self) -> None:
        self._gets_on.set()
        self._log.say("the program goes on")
        self._board.tell(standstill="")
