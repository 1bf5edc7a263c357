"""The health of one host: checked while it is prepared, and looked after while the program runs.

Where: `host_life` has the preparation run `check` beside its other parts, starts the watch with the program and closes
both. Findings stand in the host's facts; what is not well is also said in the log.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from clary.agent.health.host_checks import UnderWay, check_host
from clary.agent.health.link_verdicts import network_findings, unchecked_network
from clary.agent.health.network_doctor import NetworkDoctor, network_order
from clary.agent.supervisor.fact_board import FactBoard
from clary.agent.supervisor.host_log import HostLog
from clary.contract.errors import AgentError
from clary.contract.health import Check, FindingState, HealthFinding
from clary.contract.launch_plan import Isolation, LaunchPlan

INTERVAL_S = 30.0
_LINGER_S = 9.0  # for the network program to answer peers that have not finished
_NETWORK_S = 60.0  # for the findings on the network: beyond every limit of `network_doctor`
_JOIN_S = 5.0
_TOLD = (FindingState.WARN, FindingState.BAD)

logger = logging.getLogger(__name__)


class HostHealth:
    """Finds out how a host is, and tells it when that changes.

    Args:
        plan: the attempt; without `health_checks` nothing is done.
        host: name of this host.
        interval_s: from one look at a running host to the next.
    """

    def __init__(
        self, plan: LaunchPlan, *, host: str, board: FactBoard, log: HostLog, interval_s: float = INTERVAL_S
    ) -> None:
        self._plan = plan
        self._host = plan.host(host)
        self._board = board
        self._log = log
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._lock = threading.Lock()  # guards `_doctor`
        self._doctor: NetworkDoctor | None = None
        self._of_network: queue.SimpleQueue[tuple[HealthFinding, ...]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._findings: dict[tuple[Check, str | None], HealthFinding] = {}
        self._under_way: UnderWay = {}
        self._has_turned: set[Check] = set()  # checks whose present state is of a running host

    @property
    def is_wanted(self) -> bool:
        """Whether the plan asks for checks."""
        return self._plan.health_checks

    def check(self) -> None:
        """Check the host and its links, and tell what was found; never raises, for checks end nothing themselves."""
        try:
            self._start_thread(self._check_network, "health-network")
            found = check_host(self._plan, self._host, self._under_way, writes=True, computes=True)
            found += self._network_found()
        except Exception:  # boundary: agent supervisor; the host is prepared without its checks
            logger.exception("the health of %s could not be checked", self._host.name)
            return
        if not self._ending.is_set():
            self._tell(found)

    def end_network_check(self) -> None:
        """Free the port of the network program: when programs start, no peer has anything left to ask."""
        with self._lock:
            doctor = self._doctor
        if doctor is not None:
            doctor.end()

    def start(self) -> None:
        """Begin to look after the host while its program runs."""
        if self.is_wanted:
            self._start_thread(self._look_after, "health-watch")

    def close(self) -> None:
        """End everything; nobody is told anything after this. Harmless when repeated."""
        self._ending.set()
        self.end_network_check()

    def join(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait for the threads to end; return whether they did."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _network_found(self) -> tuple[HealthFinding, ...]:
        try:
            return self._of_network.get(timeout=_NETWORK_S)
        except queue.Empty:
            return unchecked_network(self._host.name, f"nothing was found within {_NETWORK_S:g} s")

    def _check_network(self) -> None:
        """Run the network program to its end, on one thread: it dies with the thread that has started it."""
        name = self._host.name
        doctor = None
        try:
            if why := self._why_no_network():
                self._of_network.put(unchecked_network(name, why))
                return
            order = network_order(self._plan, self._host)
            doctor = NetworkDoctor(order)
            with self._lock:
                self._doctor = doctor
            if self._ending.is_set():  # closed meanwhile, before there was anything to end
                doctor.end()
            self._of_network.put(network_findings(order, doctor.reading()))
            doctor.wait(_LINGER_S)
        except Exception as error:  # boundary: agent supervisor; the host is prepared without this check
            if not isinstance(error, AgentError | OSError):
                logger.exception("the network of %s could not be checked", name)
            self._of_network.put(unchecked_network(name, str(error)))
        finally:
            if doctor is not None:
                doctor.close()

    def _why_no_network(self) -> str:
        if self._plan.isolation is not Isolation.NAMESPACES:
            return "hosts share the machine's network (isolation: processes)"
        if self._host.name not in self._plan.network.namespace_paths:
            return "the host has no network of its own"
        if len(self._plan.hosts) == 1:
            return "the job has one host"
        job = self._plan.network_checked_for
        return f"found well when {job} had these hosts" if job else ""

    def _look_after(self) -> None:
        while not self._ending.wait(self._interval_s):
            try:
                found = check_host(self._plan, self._host, self._under_way, writes=False, computes=False)
            except Exception:  # boundary: agent supervisor; checks must not end what they check
                logger.exception("the health of %s could not be checked; it is left alone", self._host.name)
                return
            turned = [finding for finding in found if self._has_news(finding)]
            if turned and not self._ending.is_set():
                self._has_turned.update(finding.check for finding in turned)
                self._tell(turned)

    def _has_news(self, finding: HealthFinding) -> bool:
        """Whether a check came out otherwise than last time: numbers alone are none, and change with every look.

        What the thorough checks before the start have found is not taken back by those that are less thorough.
        """
        before = self._findings.get((finding.check, finding.peer))
        if before is None or before.state is finding.state:
            return False
        return finding.state in _TOLD or finding.check in self._has_turned

    def _tell(self, found: Sequence[HealthFinding]) -> None:
        self._findings |= {(finding.check, finding.peer): finding for finding in found}
        facts = {"health": tuple(self._findings.values())}
        is_bad = any(finding.state is FindingState.BAD for finding in found)
        self._board.tell(**facts) if is_bad else self._board.note(**facts)
        self._log.say(*(in_words(finding) for finding in found if finding.state in _TOLD))
        for finding in found:
            if finding.state is FindingState.BAD:
                self._board.add_note(in_words(finding))

    def _start_thread(self, act: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=act, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def in_words(finding: HealthFinding) -> str:
    """Say a finding in one line, for the log and for describe."""
    where = f"{finding.host} to {finding.peer}" if finding.peer is not None else finding.host
    cause = f" ({finding.cause})" if finding.cause else ""
    return f"health: {finding.check} of {where}: {finding.words}{cause}"
