"""The facts of this host: the supervisor writes them, the heartbeat reports them to the service."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

from clary.base.clock import Clock
from clary.contract.agent_protocol import CapacityNotice, HostFacts, HostPhase, Report


class FactBoard:
    """The facts of one host and the newest order received; thread-safe.

    Args:
        clock: gives the time at which a phase began.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._facts = HostFacts(phase=HostPhase.PREPARING, phase_started_at=clock.now(), agent_pid=os.getpid())
        self._last_order = 0
        self._num_reports = 0
        self._is_urgent = True  # the first report is due at once
        self._noticed_at_s: float | None = None  # monotonic time of the notice
        self._num_phases = 1  # phases begun so far
        self._num_phases_told = 0  # phases that the service has received
        self._is_closed = False

    @property
    def facts(self) -> HostFacts:
        """The current facts."""
        return self._facts

    @property
    def phase(self) -> HostPhase:
        """The host's current phase."""
        return self._facts.phase

    def enter(self, phase: HostPhase, **changes: Any) -> None:
        """Begin a phase, with facts that change at the same time; reported at once."""
        with self._changed:
            self._facts = replace(self._facts, phase=phase, phase_started_at=self._clock.now(), **changes)
            self._is_urgent = True
            self._num_phases += 1
            self._changed.notify_all()

    def note(self, **changes: Any) -> None:
        """Change facts within a phase; reported with the next heartbeat."""
        with self._changed:
            self._facts = replace(self._facts, **changes)

    def tell(self, **changes: Any) -> None:
        """Change facts within a phase; reported at once."""
        with self._changed:
            self._facts = replace(self._facts, **changes)
            self._is_urgent = True
            self._changed.notify_all()

    def give_notice(self, notice: CapacityNotice) -> None:
        """Record the notice that the host's capacity ends; reported at once. Only the first notice counts."""
        with self._changed:
            if self._facts.notice is None:
                self._noticed_at_s = self._clock.monotonic()
                self._facts = replace(self._facts, notice=notice)
                self._is_urgent = True
                self._changed.notify_all()

    def add_timing(self, part: str, seconds: float) -> None:
        """Record the duration of a part of the work."""
        with self._changed:
            self._facts = replace(self._facts, timings_s={**self._facts.timings_s, part: round(seconds, 4)})

    def add_note(self, sentence: str) -> None:
        """Add a warning for describe, once."""
        with self._changed:
            if sentence not in self._facts.notes:
                self._facts = replace(self._facts, notes=(*self._facts.notes, sentence))

    def take_up(self, order_number: int) -> None:
        """Record the newest order; reported with the next report."""
        with self._changed:
            self._last_order = max(self._last_order, order_number)

    def next_report(self) -> tuple[Report, int]:
        """Return the next report with the current facts, and the mark to pass to `told` once the service has it."""
        with self._changed:
            self._is_urgent = False
            self._num_reports += 1
            age_s = 0.0 if self._noticed_at_s is None else self._clock.monotonic() - self._noticed_at_s
            report = Report(
                number=self._num_reports, facts=self._facts, last_order=self._last_order, notice_age_s=round(age_s, 3)
            )
            return report, self._num_phases

    def told(self, mark: int) -> None:
        """Record that the service has received the report with this mark."""
        with self._changed:
            self._num_phases_told = max(self._num_phases_told, mark)
            self._changed.notify_all()

    def wait_until_told(self, timeout_s: float) -> bool:
        """Wait until the service has received the newest phase; return whether it has."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_phases_told >= self._num_phases or self._is_closed, timeout_s)
            return self._num_phases_told >= self._num_phases

    def wait_until_urgent(self, timeout_s: float) -> None:
        """Wait until facts have to be reported at once, for `timeout_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_urgent or self._is_closed, timeout_s)

    def close(self) -> None:
        """Wake all waiting threads; later waits return at once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
