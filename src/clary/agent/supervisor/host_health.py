"""The health of one host: checks during its preparation, and a watch while the program runs.

Where: `host_life` begins the checks first, lets the preparation run `check` in parallel with its other parts, starts
the watch with the program and closes both. Findings appear in the host's facts; problems are also logged.

[Note: checks before the program] If sick hosts are replaced, the program waits for all checks. Otherwise it waits only
for checks that cannot run at the same time as the program: connections from this host to the ports of all other hosts
at which programs will listen, and work on GPUs, whose memory the program will need. Programs start only when all hosts
are prepared, so no host tries a port of a running program. Checks that take no time (free space, memory) are reported
before the program starts too. All other checks are pending until their result is known or the program ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from clary.agent.fact_board import FactBoard
from clary.agent.health.health_record import Record, in_words, merged, settled
from clary.agent.health.host_checks import UnderWay, check_host
from clary.agent.health.link_verdicts import (
    UNDER_WAY,
    network_findings,
    port_findings,
    unchecked_network,
    unmeasured_network,
)
from clary.agent.health.network_doctor import NetworkDoctor, network_order
from clary.agent.log.host_log import HostLog
from clary.agent.worker import Worker
from clary.base.errors import AgentError
from clary.contract.health import Check, FindingState, HealthAction, HealthFinding
from clary.contract.launch_plan import Isolation, LaunchPlan

INTERVAL_S = 30.0
_LINGER_S = 9.0  # time in which the network program answers peers that have not finished
_NETWORK_S = 60.0  # timeout of the findings on the network: longer than all limits of `network_doctor`
_JOIN_S = 5.0
_TOLD = (FindingState.WARN, FindingState.BAD)
_FIRST = (Check.DISK, Check.MEMORY, Check.GPU)  # before the program: quick, or on the program's GPUs
_BESIDE = (Check.DISK, Check.CLOCK)  # a second check of the disk measures its speed

logger = logging.getLogger(__name__)


class HostHealth:
    """Checks the health of a host and reports changes.

    Args:
        plan: of the attempt; without `health_checks` there are no checks.
        host: name of this host.
        interval_s: time between two checks of a running host.
    """

    def __init__(
        self, plan: LaunchPlan, *, host: str, board: FactBoard, log: HostLog, interval_s: float = INTERVAL_S
    ) -> None:
        self._plan = plan
        self._host = plan.host(host)
        self._board = board
        self._log = log
        self._interval_s = interval_s
        self._waits_for_all = plan.health_action is HealthAction.REPLACE
        self._is_ended = False  # set when no further callback may be called
        self._watch = Worker(
            "health-watch",
            failure=f"the health of {host} could not be checked; it is left alone",
            act=self._look_after,
            first_pause_s=interval_s,
        )
        self._is_network_known = threading.Event()  # set when the findings that the program waits for are known
        self._network: tuple[HealthFinding, ...] = ()  # set before `_is_network_known`
        self._better_interface = ""  # set before `_is_network_known`
        self._lock = threading.Lock()  # guards the fields below
        self._is_closed = False
        self._doctor: NetworkDoctor | None = None
        self._threads: list[threading.Thread] = []
        self._record: Record = {}
        self._under_way: UnderWay = {}
        self._has_turned: set[Check] = set()  # checks whose state has changed while the program ran
        self._has_begun = False

    @property
    def is_wanted(self) -> bool:
        """Whether the plan demands checks."""
        return self._plan.health_checks

    @property
    def better_interface(self) -> str:
        """After `check`: an interface that reaches all peers although the job's does not, or ""."""
        return self._better_interface

    def begin(self) -> None:
        """Begin the longest check, of the network, if checks are wanted; a second call does nothing."""
        if self.is_wanted and not self._has_begun:
            self._has_begun = True
            self._start_thread(self._check_network, "health-network")

    def check(self) -> None:
        """Run the checks for which the program must wait, and report the findings.

        It never raises: a failed check does not end the host.
        """
        name = self._host.name
        try:
            self.begin()
            if self._waits_for_all:
                found = check_host(self._plan, self._host, self._under_way, writes=True, computes=True)
            else:
                found = check_host(self._plan, self._host, self._under_way, writes=False, computes=True, wanted=_FIRST)
                found += (HealthFinding(check=Check.CLOCK, state=FindingState.PENDING, host=name, words=UNDER_WAY),)
            if not self._is_network_known.wait(_NETWORK_S):
                self._end_network_check()  # otherwise the network program might try ports of running programs
                self._network = unchecked_network(name, f"nothing was found within {_NETWORK_S:g} s")
            self._tell((*found, *self._network))
            if not self._waits_for_all:
                self._start_thread(self._check_beside, "health-beside")
        except Exception:  # error boundary: the host is prepared without its checks
            logger.exception("the health of %s could not be checked", name)

    def make_way(self) -> None:
        """Free the network program's port for a starting program, if all its measurements have finished."""
        if self._waits_for_all:
            self._end_network_check()

    def start(self) -> None:
        """Start to watch the host while its program runs."""
        if self.is_wanted:
            self._watch.start()

    def ended(self) -> None:
        """Stop reports after the program's end; peers whose program may still run are still answered."""
        with self._lock:
            if not self._is_ended:
                self._is_ended = True
                self._watch.abort()
                if self._record:
                    self._record = settled(self._record, "the host's program ended before this was known")
                    self._board.note(health=tuple(self._record.values()))

    def abort(self) -> None:
        """End all checks; no callback is called afterwards. A second call does nothing."""
        self.ended()
        self._end_network_check()

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait, after `abort`, for the threads to end; return whether they have."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        has_ended = self._watch.join(max(0.0, deadline_s - time.monotonic()))
        return has_ended and not any(thread.is_alive() for thread in threads)

    def _end_network_check(self) -> None:
        with self._lock:
            self._is_closed = True
            doctor = self._doctor
        if doctor is not None:
            doctor.end()

    def _check_network(self) -> None:
        """Run the network program to its end on one thread, because it is killed with the thread that started it."""
        name = self._host.name
        order = doctor = None
        try:
            if why := self._why_no_network():
                self._on_network(unchecked_network(name, why), is_all=True)
                return
            order = network_order(self._plan, self._host)
            doctor = NetworkDoctor(order)
            with self._lock:
                self._doctor = doctor
                is_closed = self._is_closed
            if is_closed:  # closed meanwhile, before the doctor existed
                doctor.end()
            ports = doctor.port_reading()
            self._better_interface = next(iter(ports.better), "")
            self._on_network(port_findings(order, ports), is_all=False)
            self._on_network(network_findings(order, doctor.reading()), is_all=True)
            doctor.wait(_LINGER_S)
        except Exception as error:  # error boundary: the host is prepared without this check
            if not isinstance(error, AgentError | OSError):
                logger.exception("the network of %s could not be checked", name)
            if doctor is not None:
                doctor.close()  # before the next order: the network program must not try ports of running programs
            if order is not None and self._is_network_known.is_set():
                found = unmeasured_network(order, str(error))
            else:
                found = unchecked_network(name, str(error))
            self._on_network(found, is_all=True)
        finally:
            if doctor is not None:
                doctor.close()

    def _on_network(self, found: tuple[HealthFinding, ...], *, is_all: bool) -> None:
        """Pass the awaited findings to `check`; report later findings here."""
        if not self._is_network_known.is_set():
            if is_all or not self._waits_for_all:
                self._network = found
                self._is_network_known.set()
            return
        if self._better_interface:  # the program uses it: the job's own interface no longer matters
            found = tuple(
                item for item in found if item.check is not Check.INTERFACE or item.state is not FindingState.OK
            )
        self._tell(found)

    def _check_beside(self) -> None:
        try:
            self._tell(check_host(self._plan, self._host, self._under_way, writes=True, computes=False, wanted=_BESIDE))
        except Exception:  # error boundary: the host does not depend on the check
            logger.exception("the disk and the clock of %s could not be checked", self._host.name)

    def _why_no_network(self) -> str:
        if self._plan.isolation is not Isolation.NAMESPACES:
            return "hosts share the machine's network (isolation: processes)"
        if self._host.name not in self._plan.network.namespace_paths:
            return "the host has no network of its own"
        if len(self._plan.hosts) == 1:
            return "the job has one host"
        job = self._plan.network_checked_for
        return f"found well when {job} had these hosts" if job else ""

    def _look_after(self) -> float:
        found = check_host(self._plan, self._host, self._under_way, writes=False, computes=False)
        turned = [finding for finding in found if self._has_news(finding)]
        if turned and not self._is_ended:
            self._has_turned.update(finding.check for finding in turned)
            self._tell(turned)
        return self._interval_s

    def _has_news(self, finding: HealthFinding) -> bool:
        """Whether the state of a check has changed; changes of numbers alone do not count.

        A less thorough check does not replace a finding of the thorough checks before the start.
        """
        before = self._record.get((finding.check, finding.peer))
        if before is None or before.state is finding.state:
            return False
        return finding.state in _TOLD or finding.check in self._has_turned

    def _tell(self, found: Sequence[HealthFinding]) -> None:
        with self._lock:
            if self._is_ended:
                return
            before, self._record = self._record, merged(self._record, found)
            facts = {"health": tuple(self._record.values())}
            is_bad = any(finding.state is FindingState.BAD for finding in found)
            self._board.tell(**facts) if is_bad else self._board.note(**facts)
        told = [item for item in found if item.state in _TOLD and before.get((item.check, item.peer)) != item]
        self._log.say(*(in_words(finding) for finding in told))
        for finding in told:
            if finding.state is FindingState.BAD:
                self._board.add_note(in_words(finding))

    def _start_thread(self, act: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=act, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
