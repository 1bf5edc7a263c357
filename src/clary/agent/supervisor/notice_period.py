"""The time from a notice that the host's capacity ends to the end of its agent.

Where: the supervisor holds one for each attempt and asks it what is due. A notice is a signal to the agent, by a
scheduler that takes the host back or by a person; the service answers it with an order to stop for the whole gang.

[Note: one SIGTERM] Some engines signal every process of a host, others only the agent, and some do either.
Therefore the host's first process detects the signals that the programs receive (`host.stopping.outside`).
The signals to several processes, and to several hosts, do not come at the same time, so a stop waits for them:
`ECHO_S` after a notice of its own; `GANG_ECHO_S` where another host had the notice and the engine signals every
process, because the engine's signal to this host is then on its way.
"""

from __future__ import annotations

import time

from clary.contract.agent_protocol import NOTICE_MARGIN_S, RECLAIM_REASON, notice_margin_s
from clary.contract.launch_plan import LaunchPlan

ECHO_S = 0.25  # a loop over the processes of a host takes milliseconds, unless the machine is busy
GANG_ECHO_S = 1.0  # schedulers signal nodes through a tree of daemons
AFTER_STOP_S = 10.0  # for the last reports of a host that no engine kills


class NoticePeriod:
    """The notice of one attempt on one host; `begin` may be called in a signal handler.

    Args:
        answer_s: from the notice to the moment at which the host stops without an order.
        margin_s: longest time kept free before the engine's kill, for the steps after the programs' end.
        after_stop_s: from the end of the programs' grace to the agent's leave, where no engine kills.
    """

    def __init__(
        self, *, answer_s: float, margin_s: float = NOTICE_MARGIN_S, after_stop_s: float = AFTER_STOP_S
    ) -> None:
        self._answer_s = answer_s
        self._margin_s = margin_s
        self._after_stop_s = after_stop_s
        self._began_at_s: float | None = None
        self._why = ""
        self._engine_grace_s = 0.0
        self._stop_grace_s = 0.0
        self._is_engine_of_all = False
        self._was_for_all = False

    @property
    def has_begun(self) -> bool:
        """Whether a notice came."""
        return self._began_at_s is not None

    @property
    def why(self) -> str:
        """The notice in words; empty without one."""
        return f"{self._why} from the engine" if self._why and self._engine_grace_s else self._why

    @property
    def engine_grace_s(self) -> float | None:
        """Time from the notice to the engine's kill; None if unknown."""
        return self._engine_grace_s or None

    def know(self, plan: LaunchPlan) -> None:
        """Read the times of a plan."""
        self._engine_grace_s = plan.notice_grace_s
        self._stop_grace_s = plan.stop_grace_s
        self._is_engine_of_all = plan.engine_signals_all

    def begin(self, why: str) -> None:
        """Take note of a notice; the first counts."""
        if self._began_at_s is None:
            self._began_at_s, self._why = time.monotonic(), why

    def hear_of_all(self) -> None:
        """Take note that every process of the host was signalled."""
        self._was_for_all = True

    def stop_at_s(self) -> float | None:
        """Return the monotonic time at which the host stops without an order; None without a notice."""
        return None if self._began_at_s is None else self._began_at_s + self._answer_s

    def leave_at_s(self) -> float | None:
        """Return the monotonic time at which the agent leaves, released or not; None without a notice."""
        if self._began_at_s is None:
            return None
        return self._ends_at_s(self._began_at_s) + (0.0 if self._engine_grace_s else self._after_stop_s)

    def is_over(self) -> bool:
        """Whether it is time to leave."""
        leave_at_s = self.leave_at_s()
        return leave_at_s is not None and time.monotonic() >= leave_at_s

    def grace_s(self, ordered_s: float) -> float:
        """Return the grace of an order to stop, or less where the notice leaves less."""
        return ordered_s if self._began_at_s is None else min(ordered_s, self.left_s())

    def left_s(self) -> float:
        """Return the grace that a notice leaves to programs, from now on."""
        assert self._began_at_s is not None
        return max(0.0, self._ends_at_s(self._began_at_s) - time.monotonic())

    def pause_s(self, reason: str) -> float:
        """Return how long an order to stop waits for the engine's own signal to the programs; 0 for no wait."""
        if self._was_for_all:
            return 0.0
        if self._began_at_s is not None:
            return max(0.0, self._began_at_s + ECHO_S - time.monotonic())
        return GANG_ECHO_S if self._is_engine_of_all and reason == RECLAIM_REASON else 0.0

    def _ends_at_s(self, began_at_s: float) -> float:
        if not self._engine_grace_s:
            return began_at_s + self._stop_grace_s
        return began_at_s + self._engine_grace_s - notice_margin_s(self._engine_grace_s, self._margin_s)
