"""Jobs that are always in flight while faults strike, each followed from its request to the end of its audit.

Where: `fault_run` starts a fleet, asks it for a job that is at a given moment of its life, and records the faults
that have struck. Each of its threads follows one job at a time: it creates the job, describes it often, and audits its
remains.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from clary.testing.faults import fault_audit
from clary.testing.faults.fault_clients import NoAnswer
from clary.testing.faults.fault_ledger import TERMINAL, Ending, Harm, Violation, judge
from clary.testing.faults.fault_plan import FaultKind, JobSpec, Moment
from clary.testing.faults.fault_world import FaultWorld

POLL_S = 0.12
JOB_DEADLINE_S = 150.0  # longest time from the request to a terminal status
LEFT_DEADLINE_S = 45.0  # longest time from the terminal status to the end of the job's last process
FRESH_S = 0.3  # seconds for which a job counts as just accepted
AFTERMATH_S = 10.0  # seconds after a fault is mended in which it can still cause a failure
STORE_AFTERMATH_S = 75.0  # the same for a full disk of the object store, which checks for space once a minute

_MOMENT_OF = {
    "Starting": Moment.STARTING,
    "Pending": Moment.STARTING,
    "Downloading": Moment.DOWNLOADING,
    "Training": Moment.TRAINING,
    "Uploading": Moment.UPLOADING,
}


@dataclass
class Strike:
    """A fault that has struck its target."""

    number: int
    kind: FaultKind
    jobs: tuple[str, ...]  # jobs that it was aimed at; empty if it can affect all jobs
    at_s: float
    mended_at_s: float | None = None


@dataclass
class JobEntry:
    """The driver's entry of one job."""

    spec: JobSpec
    asked_at_s: float
    is_accepted: bool = False
    moment: Moment | None = None
    moment_since_s: float = 0.0
    ending: Ending | None = None
    ended_at_s: float | None = None
    is_audited: bool = False


@dataclass
class Book:
    """The driver's own record of jobs, faults and broken promises; guarded by `changed`."""

    jobs: dict[str, JobEntry] = field(default_factory=dict)
    strikes: list[Strike] = field(default_factory=list)
    violations: list[tuple[Violation, Strike | None]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add_violation(self, violation: Violation) -> None:
        """Record a violation with its likeliest cause.

        The cause is the last fault aimed at the job, else the last during the job's life, else the last of the run.
        """
        with self.changed:
            entry = self.jobs.get(violation.job)
            met = self.struck(entry) if entry is not None else []
            aimed = [strike for strike in met if strike.jobs]
            causes = aimed or met or self.strikes
            self.violations.append((violation, causes[-1] if causes else None))

    def struck(self, entry: JobEntry) -> list[Strike]:
        """Return the faults that may have affected a job, including faults that were mended shortly before it."""
        with self.changed:
            until_s = entry.ended_at_s if entry.ended_at_s is not None else time.monotonic()
            return [
                strike
                for strike in self.strikes
                if (not strike.jobs or entry.spec.name in strike.jobs)
                and strike.at_s <= until_s
                and (strike.mended_at_s is None or strike.mended_at_s + _aftermath_s(strike.kind) >= entry.asked_at_s)
            ]


class Fleet:
    """Keeps `num_jobs` jobs in flight until `finish` is called.

    Args:
        world: the service.
        specs: the jobs, in order.
        book: records jobs, faults and broken promises.
        num_jobs: number of jobs at a time.
        say: receives each broken promise at once.
    """

    def __init__(
        self, world: FaultWorld, specs: Iterator[JobSpec], book: Book, *, num_jobs: int, say: Callable[[str], None]
    ) -> None:
        self._world = world
        self._specs = specs
        self._book = book
        self._say = say
        self._finishing = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"fleet-{index}") for index in range(num_jobs)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Start no more jobs, and wait until the jobs in flight are audited."""
        self._finishing.set()
        for thread in self._threads:
            thread.join()

    def find_job(self, moment: Moment, choice: float, *, timeout_s: float) -> tuple[str, Moment | None]:
        """Wait until some job is at a moment of its life; after `timeout_s`, take any job in flight.

        Args:
            moment: moment of its life at which the job should be.
            choice: selects one of the possible jobs; 0 to 1, exclusive.
            timeout_s: longest wait in seconds.
        Returns: the job's name, or an empty string, and the moment at which the job really is.
        """
        deadline = time.monotonic() + timeout_s
        with self._book.changed:
            while True:
                now_s = time.monotonic()
                in_flight = [entry for entry in self._book.jobs.values() if entry.moment and not entry.is_audited]
                there = [entry for entry in in_flight if _is_at(entry, moment, now_s)]
                if there or now_s >= deadline:
                    break
                self._book.changed.wait(min(0.1, deadline - now_s))
            running = [entry for entry in in_flight if entry.moment is not Moment.ENDED]
            found = there or running or in_flight
            if not found:
                return "", None
            entry = found[int(choice * len(found))]
            return entry.spec.name, entry.moment

    def _run(self) -> None:
        while not self._finishing.is_set():
            with self._book.changed:
                spec = next(self._specs)
                entry = self._book.jobs[spec.name] = JobEntry(spec, time.monotonic())
            try:
                self._follow(entry)
            except NoAnswer as error:
                self._break(Harm.HUNG, entry, str(error))
            except ClientError as error:
                self._break(Harm.LOST, entry, f"the service answered {error}")
            except Exception as error:  # noqa: BLE001 - boundary: a thread of the driver; the run must not pass
                self._break(Harm.HUNG, entry, f"the audit itself failed: {type(error).__name__}: {error}")
            finally:
                self._enter(entry, None)

    def _follow(self, entry: JobEntry) -> None:
        self._create(entry)
        ending = self._wait_for_end(entry)
        if ending is None:
            return
        self._wait_until_gone(entry)
        evidence = fault_audit.gather(self._world, entry.spec, ending)
        kinds = {strike.kind for strike in self._book.struck(entry)}
        for violation in judge(entry.spec, evidence, kinds):
            self._tell(violation)
        with self._book.changed:
            entry.is_audited = True

    def _create(self, entry: JobEntry) -> None:
        request = fault_audit.request_of(entry.spec)

        def create() -> None:
            try:
                self._world.client("sagemaker").create_training_job(**request)
            except ClientError as error:
                # The job exists: the answer to an earlier request was lost.
                if error.response["Error"]["Code"] != "ResourceInUse":
                    raise

        self._world.ask(create)
        with self._book.changed:
            entry.is_accepted = True
        self._enter(entry, Moment.ACCEPTED)

    def _wait_for_end(self, entry: JobEntry) -> Ending | None:
        deadline = time.monotonic() + JOB_DEADLINE_S
        facts: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                facts = fault_audit.describe(self._world, entry.spec.name)
            except ClientError as error:
                is_spoiled = FaultKind.SPOIL_ROW in {strike.kind for strike in self._book.struck(entry)}
                if not (is_spoiled and fault_audit.is_set_aside(error, entry.spec.name)):
                    raise
                facts = {}
            if not facts:  # the driver will soon mend the job's record
                time.sleep(POLL_S)
                continue
            if facts["TrainingJobStatus"] in TERMINAL:
                with self._book.changed:
                    entry.ending = fault_audit.ending_of(facts)
                    entry.ended_at_s = time.monotonic()
                self._enter(entry, Moment.ENDED)
                return entry.ending
            self._enter(entry, _MOMENT_OF.get(facts["SecondaryStatus"], Moment.TRAINING))
            time.sleep(POLL_S)
        last = f"{facts['TrainingJobStatus']}, {facts['SecondaryStatus']}" if facts else "in quarantine"
        what = f"still {last} {JOB_DEADLINE_S:g} s after its request"
        self._break(Harm.HUNG, entry, what)
        return None

    def _wait_until_gone(self, entry: JobEntry) -> None:
        deadline = time.monotonic() + LEFT_DEADLINE_S
        name = entry.spec.name
        while left := self._world.processes_of_jobs().get(name):
            if time.monotonic() > deadline:
                words = "; ".join(f"{pid} {command[:120]}" for pid, command in left.items())
                self._break(Harm.HUNG, entry, f"processes are left {LEFT_DEADLINE_S:g} s after its end: {words}")
                return
            time.sleep(3 * POLL_S)
            self._world.service.revive()

    def _enter(self, entry: JobEntry, moment: Moment | None) -> None:
        with self._book.changed:
            if entry.moment is not moment:
                # A job that was just accepted is Starting as well; a fault of either moment may strike it.
                if not (entry.moment is Moment.ACCEPTED and _is_at(entry, Moment.ACCEPTED, time.monotonic())):
                    entry.moment, entry.moment_since_s = moment, time.monotonic()
                if moment is None or moment is Moment.ENDED:
                    entry.moment = moment
                self._book.changed.notify_all()

    def _break(self, harm: Harm, entry: JobEntry, what: str) -> None:
        self._tell(Violation(harm=harm, job=entry.spec.name, what=what))

    def _tell(self, violation: Violation) -> None:
        self._book.add_violation(violation)
        self._say(str(violation))


def _aftermath_s(kind: FaultKind) -> float:
    return STORE_AFTERMATH_S if kind is FaultKind.FILL_HOME else AFTERMATH_S


def _is_at(entry: JobEntry, moment: Moment, now_s: float) -> bool:
    if moment is Moment.ANY:
        return True
    if moment is Moment.ACCEPTED:
        return entry.moment is moment and now_s - entry.moment_since_s < FRESH_S
    return entry.moment is moment
