"""One run: faults strike one after another, and from time to time the book is compared with the service's answers.

Where: `fault_runner` makes the world and one run in it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from botocore.exceptions import ClientError

from clary.base.errors import ClaryError
from clary.testing.faults import fault_audit
from clary.testing.faults.fault_clients import NoAnswer
from clary.testing.faults.fault_counts import RunResult, count_by_kind
from clary.testing.faults.fault_damage import Damage, damage_of
from clary.testing.faults.fault_executor import strike as strike_world
from clary.testing.faults.fault_fleet import STORE_AFTERMATH_S, Book, Fleet, Strike
from clary.testing.faults.fault_ledger import Harm, Violation, compare_endings, compare_lists
from clary.testing.faults.fault_plan import Fault, FaultKind, Moment, make_jobs, name_prefix
from clary.testing.faults.fault_row_strikes import held_records
from clary.testing.faults.fault_ruin import BrokenPromise
from clary.testing.faults.fault_tuning import TuningDriver
from clary.testing.faults.fault_world import FaultWorld

NUM_JOBS = 6  # jobs in flight
MOMENT_TIMEOUT_S = 0.8
MAX_STANDING = 3  # largest number of faults that may be unmended at the same time
FAULTS_PER_CHECK = 25

Say = Callable[[str], None]


class FaultRun:
    """One run: the faults strike one after another, and a few last at the same time."""

    def __init__(self, world: FaultWorld, seed: int, say: Say, journal: TextIO | None) -> None:
        self._world = world
        self._seed = seed
        self._say = say
        self._journal = journal
        self._book = Book()
        self._fleet = Fleet(world, make_jobs(seed, world.run), self._book, num_jobs=NUM_JOBS, say=say)
        self._tuning = TuningDriver(
            world, f"tuned-{seed}-{world.run}-", struck_since=self._struck_since, tell=self._tell
        )
        self._standing: list[threading.Thread] = []  # each thread waits for the end of one fault, then mends it
        self._started_at_s = time.monotonic()

    def run(self, faults: tuple[Fault, ...], num_faults: int) -> None:
        """Strike until `num_faults` faults have met a target; then wait for the jobs and run all checks once more."""
        self._fleet.start()
        self._tuning.start()
        try:
            for fault in faults:
                if len(self._book.strikes) >= num_faults:
                    break
                if self._strike(fault) and len(self._book.strikes) % FAULTS_PER_CHECK == 0:
                    self._mend_all()
                    self._check()
        except KeyboardInterrupt:
            self._say("told to stop: no more faults; the jobs in flight are followed to their end")
        except NoAnswer as error:  # further faults would have effects that cannot be told apart
            self._tell(Violation(harm=Harm.HUNG, job="", what=str(error)))
        finally:
            self._mend_all()
            self._world.set_clock(0.0)
            self._fleet.finish()
            self._tuning.finish()
        self._check()
        self._check_quarantine()
        self._check_endings()

    def result(self, wall_s: float) -> RunResult:
        """Return the counts."""
        entries = self._book.jobs.values()
        return RunResult(
            seed=self._seed,
            counts=count_by_kind(self._book.strikes, self._book.violations),
            statuses=dict(Counter(entry.ending.status if entry.ending else "unknown" for entry in entries)),
            violations=tuple(
                f"{violation}{f' (after fault {cause.number}, {cause.kind})' if cause else ''}"
                for violation, cause in self._book.violations
            ),
            wall_s=wall_s,
            num_tuned=self._tuning.num_ended,
        )

    def _strike(self, fault: Fault) -> bool:
        """Strike with one fault; return whether it met a target."""
        time.sleep(fault.pause_s)
        job_name, met = self._fleet.find_job(fault.moment, fault.choice, timeout_s=MOMENT_TIMEOUT_S)
        strike = Strike(fault.number, fault.kind, (), time.monotonic())
        with self._book.changed:
            self._book.strikes.append(strike)  # recorded before the strike, whose effect may be visible at once
        try:
            damage = strike_world(self._world, fault, job_name)
        except (BrokenPromise, ClaryError) as error:
            self._tell(Violation(harm=Harm.LOST, job="", what=f"{fault}: {error}"))
            damage = damage_of(fault, "a promise that was broken at once")
        with self._book.changed:
            if damage is None:
                self._book.strikes.remove(strike)
                return False
            strike.jobs = damage.jobs
        self._write_down(fault, damage, met)
        mending = threading.Thread(target=self._mend, args=(damage, strike), name=f"mend-{fault.number}")
        mending.start()
        self._standing = [thread for thread in self._standing if thread.is_alive()] + [mending]
        while self._standing and (len(self._standing) >= MAX_STANDING or not fault.overlaps):
            self._standing.pop(0).join()
        return True

    def _mend(self, damage: Damage, strike: Strike) -> None:
        """Wait for the time at which a fault ends, and mend it."""
        time.sleep(max(0.0, damage.mend_at_s - time.monotonic()))
        try:
            damage.mend()
        except Exception as error:  # noqa: BLE001 - boundary: what stays broken breaks promises, and is told
            what = f"{damage.fault} could not be mended: {type(error).__name__}: {error}"
            self._tell(Violation(harm=Harm.HUNG, job="", what=what))
        with self._book.changed:
            strike.mended_at_s = time.monotonic()

    def _mend_all(self) -> None:
        """Wait until every fault is mended."""
        while self._standing:
            self._standing.pop().join()

    def _check(self) -> None:
        """Compare the list of jobs with the ledger, and look for processes of ended jobs."""
        num_struck = len(self._book.strikes)
        with self._book.changed:
            known = {name: entry.ending for name, entry in self._book.jobs.items() if entry.is_accepted}
            audited = {name for name, entry in self._book.jobs.items() if entry.is_audited}
        try:
            listed = fault_audit.list_jobs(self._world, name_prefix(self._seed, self._world.run))
        except (NoAnswer, ClientError) as error:
            self._tell(Violation(harm=Harm.HUNG, job="", what=f"ListTrainingJobs after fault {num_struck}: {error}"))
            return
        with self._book.changed:
            asked = set(self._book.jobs)
        for violation in compare_lists(known, listed, asked):
            self._tell(violation)
        back = {name: commands for name, commands in self._world.processes_of_jobs().items() if name in audited}
        for name, commands in back.items():
            self._tell(Violation(harm=Harm.DOUBLED, job=name, what=f"runs again after its end: {commands}"))
        while self._world.service.unexpected_ends:
            self._tell(Violation(harm=Harm.HUNG, job="", what=self._world.service.unexpected_ends.pop()))
        wall_s = time.monotonic() - self._started_at_s
        self._say(
            f"{wall_s:6.0f} s  {num_struck} faults, {len(audited)} jobs audited, "
            f"{len(self._book.violations)} promises broken"
        )

    def _check_quarantine(self) -> None:
        """Check that no record is in quarantine: every damaged record has been mended by now."""
        try:
            held = held_records(self._world)
        except (NoAnswer, ClaryError) as error:
            held = [f"(the quarantine itself does not answer: {error})"]
        for words in held:
            self._tell(Violation(harm=Harm.LOST, job="", what=f"a record is in quarantine: {words}"))

    def _check_endings(self) -> None:
        """Describe every ended job once more: its end must not have changed."""
        for name, entry in self._book.jobs.items():
            if entry.ending is None:
                continue
            try:
                now = fault_audit.ending_of(fault_audit.describe(self._world, name))
            except (NoAnswer, ClientError) as error:
                self._tell(Violation(harm=Harm.LOST, job=name, what=f"cannot be described any more: {error}"))
                continue
            for violation in compare_endings(name, entry.ending, now):
                self._tell(violation)

    def _struck_since(self, began_s: float) -> set[FaultKind]:
        """Return the kinds of faults that were active, or had effects, at any time since a monotonic time."""
        with self._book.changed:
            return {
                strike.kind
                for strike in self._book.strikes
                if strike.mended_at_s is None or strike.mended_at_s + STORE_AFTERMATH_S >= began_s
            }

    def _tell(self, violation: Violation) -> None:
        self._book.add_violation(violation)
        self._say(str(violation))

    def _write_down(self, fault: Fault, damage: Damage, met: Moment | None) -> None:
        if self._journal is None:
            return
        document = {
            "fault": fault.number,
            "kind": fault.kind.value,
            "wanted": fault.moment.value,
            "met": met.value if met else None,
            "target": damage.target,
            "duration_s": fault.duration_s,
            "at_s": round(time.monotonic() - self._started_at_s, 3),
        }
        self._journal.write(json.dumps(document) + "\n")
        self._journal.flush()
