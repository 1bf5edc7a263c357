"""The time from a notice that the host's capacity ends to the end of its agent.

Where: the supervisor has one per attempt and polls it for due actions. A notice is a signal to the agent, by a
scheduler that takes the host back or by a person; the service responds with an order to stop the whole gang.

[Note: one SIGTERM] Some engines signal every process of a host, some only the agent, and some do either.
Therefore the host's first process detects signals to the programs (`host.stopping.outside`). Signals to several
processes, or to several hosts, do not arrive at the same time, so a stop waits for them: `ECHO_S` after a notice to
this host; `GANG_ECHO_S` if another host got the notice and the engine signals every process, because the engine's
signal to this host then follows.

[Note: an upload without a kill] Some engines announce that a host is wanted back, and never kill it: a box that is
drained. There a host whose program had ended before the notice waits for its order to upload, uploads, and waits for
its release, for `upload_timeout_s` in all; an upload of any other program goes on until it ends, within the same time.
"""

from __future__ import annotations

import math
import time

from clary.contract.agent_protocol import NOTICE_MARGIN_S, RECLAIM_REASON, notice_margin_s
from clary.contract.launch_plan import LaunchPlan

ECHO_S = 0.25  # a loop over the processes of a host takes milliseconds, unless the machine is busy
GANG_ECHO_S = 1.0  # longer, because schedulers signal nodes through a tree of daemons
AFTER_STOP_S = 10.0  # time for the last reports of a host that no engine kills


class NoticePeriod:
    """The notice of one attempt on one host; `begin` may be called in a signal handler.

    Args:
        answer_s: time after the notice at which the host stops even without an order.
        margin_s: longest time reserved before the engine's kill for the steps after the programs' end.
        after_stop_s: time from the end of the programs' grace, or of the upload, to the agent's exit, if no engine
            kills.
    """

    def __init__(
        self, *, answer_s: float, margin_s: float = NOTICE_MARGIN_S, after_stop_s: float = AFTER_STOP_S
    ) -> None:
        self._answer_s = answer_s
        self._margin_s = margin_s
        self._after_stop_s = after_stop_s
        self._began_at_s: float | None = None
        self._why = ""
        self._came_after_end = False
        self._engine_grace_s = 0.0
        self._stop_grace_s = 0.0
        self._upload_limit_s = 0.0
        self._least_leave_at_s = -math.inf
        self._is_engine_of_all = False
        self._was_for_all = False

    @property
    def has_begun(self) -> bool:
        """Whether a notice was received."""
        return self._began_at_s is not None

    @property
    def came_after_end(self) -> bool:
        """Whether the program had ended when the notice came."""
        return self._came_after_end

    @property
    def why(self) -> str:
        """A phrase about the notice; empty without a notice."""
        return f"{self._why} from the engine" if self._why and self._engine_grace_s else self._why

    @property
    def engine_grace_s(self) -> float | None:
        """Time from the notice to the engine's kill; None if unknown."""
        return self._engine_grace_s or None

    def know(self, plan: LaunchPlan) -> None:
        """Read the times from a plan."""
        self._engine_grace_s = plan.notice_grace_s
        self._stop_grace_s = plan.stop_grace_s
        self._upload_limit_s = plan.upload_timeout_s
        self._is_engine_of_all = plan.engine_signals_all

    def begin(self, why: str, *, has_ended: bool = False) -> None:
        """Record a notice; only the first notice counts.

        Args:
            why: a phrase about the notice.
            has_ended: whether the program has ended by now.
        """
        if self._began_at_s is None:
            self._began_at_s, self._why, self._came_after_end = time.monotonic(), why, has_ended

    def hear_of_all(self) -> None:
        """Record that every process of the host was signalled."""
        self._was_for_all = True

    def stop_at_s(self) -> float | None:
        """Return the monotonic time at which the host stops without an order; None without a notice."""
        return None if self._began_at_s is None else self._began_at_s + self._answer_s

    def wait_for_release(self) -> None:
        """Record that results were uploaded until now: if no engine kills, the service has time to answer."""
        self._least_leave_at_s = time.monotonic() + self._after_stop_s

    def leave_at_s(self, *, owes_results: bool = False) -> float | None:
        """Return the monotonic time at which the agent exits even without a release; None without a notice.

        See [Note: an upload without a kill].
        """
        if self._began_at_s is None:
            return None
        ends_at_s = self._ends_at_s(self._began_at_s)
        if self._engine_grace_s:
            return ends_at_s
        if owes_results:
            ends_at_s = max(ends_at_s, self._began_at_s + self._upload_limit_s)
        return max(ends_at_s + self._after_stop_s, self._least_leave_at_s)

    def is_over(self, *, owes_results: bool = False) -> bool:
        """Whether the agent must exit now."""
        leave_at_s = self.leave_at_s(owes_results=owes_results)
        return leave_at_s is not None and time.monotonic() >= leave_at_s

    def grace_s(self, ordered_s: float) -> float:
        """Return the grace of an order to stop, or the time that the notice leaves, if less."""
        return ordered_s if self._began_at_s is None else min(ordered_s, self.left_s())

    def left_s(self) -> float:
        """Return the seconds of grace that a notice still leaves to programs."""
        assert self._began_at_s is not None
        return max(0.0, self._ends_at_s(self._began_at_s) - time.monotonic())

    def pause_s(self, reason: str) -> float:
        """Return the seconds for which a stop waits for the engine's own signal to the programs."""
        if self._was_for_all:
            return 0.0
        if self._began_at_s is not None:
            return max(0.0, self._began_at_s + ECHO_S - time.monotonic())
        return GANG_ECHO_S if self._is_engine_of_all and reason == RECLAIM_REASON else 0.0

    def _ends_at_s(self, began_at_s: float) -> float:
        if not self._engine_grace_s:
            return began_at_s + self._stop_grace_s
        return began_at_s + self._engine_grace_s - notice_margin_s(self._engine_grace_s, self._margin_s)
