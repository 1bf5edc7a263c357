"""Carries out a rehearsal: creates two jobs, injects faults, follows both jobs to their ends, gathers their facts.

Where: `clary rehearse` calls it; `control.rehearsal` decides on faults and verdict. For the service, both jobs are jobs
like any others in which faults may be injected: if this program is killed, they continue. Only if the service itself
has started this program (`reconcile.desks.rehearsal_desk`), it stops them. Reads outlast a restart of the service
(`patience`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from clary.base.errors import ClaryError, Fault, WireError
from clary.cli.connection import Connection
from clary.cli.no_answer import NoAnswer
from clary.cli.patience import PatientConnection, is_away, may_be_done
from clary.cli.queue_words import state_words
from clary.control.rehearsal.certificate import Run, Strike
from clary.control.rehearsal.faults import FaultKind, PlannedFault, without_cuts
from clary.control.rehearsal.history import Attempt
from clary.control.rehearsal.readings import Reader
from clary.control.rehearsal.recordings import read_record

POLL_S = 0.2
RELEASE_S = 60.0  # wait until an ended job's hosts are released and their programs' records are readable
TERMINAL = ("Completed", "Failed", "Stopped")
STRIKES_ANEW = (FaultKind.RECLAIM, FaultKind.KILL, FaultKind.KILL_RANK)  # a repeated order would be a second fault

Say = Callable[[str], None]


class JobOverdue(ClaryError):
    """Jobs of a rehearsal did not end in the time that the command gives them."""

    default_fault = Fault.USER


@dataclass
class _Pending:
    """A fault that has not begun or not ended yet."""

    fault: PlannedFault
    due_since_s: float | None = None  # monotonic
    struck_at_s: float | None = None  # seconds after training began
    over_at_s: float | None = None  # monotonic time of the fault's end; None: the fault needs no end, or has ended
    attempt: int = 0  # attempt in which the fault began
    note: str = ""
    is_unknown: bool = False  # whether it was ordered, and no answer says whether it has struck


@dataclass
class JobWatch:
    """Follows one job, and injects its faults when they are due.

    Args:
        connection: connection to the service.
        name: name of the job.
        reader: finds training steps in log lines.
        say: called with each change, in words.
        faults: planned faults, each with a step or a time.
        is_ours: set while no answer says whether this rehearsal has created the job: finds out, before it is stopped.
        facts: the service's last answer on the job.
        checkpoints: attempt -> last report of its hosts on checkpoints.
    """

    connection: PatientConnection
    name: str
    reader: Reader
    say: Say
    faults: Sequence[PlannedFault] = ()
    is_ours: Callable[[Connection], bool] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    checkpoints: dict[int, dict[str, Any]] = field(default_factory=dict)  # attempt -> last report of its hosts

    def __post_init__(self) -> None:
        """Begin with every fault pending."""
        self._pending = [_Pending(fault) for fault in self.faults]
        self._tokens: dict[str, str] = {}
        self._began_s: float | None = None  # monotonic time at which training was first seen
        self._said_status = ""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.facts.get("status") in TERMINAL

    def look(self) -> None:
        """Poll the job once, and inject the faults that are due."""
        readings = self._new_readings() if any(item.struck_at_s is None for item in self._pending) else []
        self.facts = self.connection.job_page(self.name)
        self._keep_checkpoints()
        status = state_words(self.facts)
        if status != self._said_status:
            self._said_status = status
            self.say(f"{self.name}: {status}")
        if self._began_s is None and self.facts["secondary_status"] == "Training":
            self._began_s = time.monotonic()
        now_s = time.monotonic()
        for item in self._pending:
            if item.struck_at_s is None and not self.is_over and not item.is_unknown:
                self._consider(item, readings, now_s)
            elif item.over_at_s is not None and now_s >= item.over_at_s and not self.is_over:
                self._end(item)

    def strikes(self) -> tuple[Strike, ...]:
        """Return the outcome of each fault."""
        return tuple(
            Strike(
                words=str(item.fault),
                kind=item.fault.kind.value,
                hosts=item.fault.hosts,
                length_s=item.fault.length_s,
                at_s=None if item.struck_at_s is None else round(item.struck_at_s, 1),
                note=item.note or ("" if item.struck_at_s is not None else "the job had ended by then"),
            )
            for item in self._pending
        )

    def result(self, *, has_checkpoints: bool) -> Run:
        """Gather the ended job's results: attempts with their lines and records, times, metrics."""
        self._wait_for_release()
        past = {entry["number"]: entry for entry in self.facts["past_attempts"]}
        attempts = []
        for number in range(1, self.facts["attempt"] + 1):
            said = self.checkpoints.get(number, {})
            files = self.connection.job_page(self.name, "records", {"attempt": number})["records"]
            records = [read_record(file["text"], self.reader) for file in files]
            attempts.append(
                Attempt(
                    number=number,
                    readings=tuple(self.reader.read_all(self._printed(number))),
                    records=tuple(record for record in records if record is not None),
                    end=past[number]["reason"] if number in past else "",
                    restored_files=sum(facts.get("restored_files", 0) for facts in said.values()),
                    stored_sets=max((facts.get("set_number", 0) for facts in said.values()), default=0),
                )
            )
        ledger = self.facts["ledger"]
        return Run(
            name=self.name,
            status=self.facts["status"],
            failure_reason=self.facts["failure_reason"],
            attempts=tuple(attempts),
            wall_s=ledger["wall_s"],
            lost_s=ledger["seconds"].get("lost_to_restart", 0.0),
            metrics={item["name"]: _number(item["value"]) for item in self.facts.get("metrics") or ()},
            has_checkpoints=has_checkpoints,
            failed_host=(self.facts.get("cause") or {}).get("host") or "",
            failed_at_s=failed_at_s(self.facts),
        )

    def stop(self) -> None:
        """End the job if it still runs; never raises."""
        try:
            if self.is_ours is not None and not self.connection.once(self.is_ours):
                print(f"clary: {self.name}: not created by this rehearsal, so it is not stopped", file=sys.stderr)
            elif not self.is_over:
                self.connection.call("StopTrainingJob", {"TrainingJobName": self.name})
        except ClaryError as error:
            print(f"clary: {self.name}: could not be stopped: {error.message}", file=sys.stderr)

    def delete(self) -> None:
        """Delete a job that has ended; never raises."""
        try:
            self.connection.call("DeleteTrainingJob", {"TrainingJobName": self.name})
        except ClaryError as error:
            print(f"clary: {self.name}: could not be deleted: {error.message}", file=sys.stderr)

    def _keep_checkpoints(self) -> None:
        """Record hosts' checkpoint reports by attempt; a waiting job still shows its previous attempt's reports."""
        running = {host["name"] for host in self.facts["hosts"] if host["phase"] != "launching"}
        said = self.facts.get("checkpoints") or {}
        current = {host: facts for host, facts in said.items() if host in running or self.is_over}
        if current:
            self.checkpoints.setdefault(self.facts["attempt"], {}).update(current)

    def _new_readings(self) -> list[Any]:
        page = self._log_page({f"after.{stream}": token for stream, token in self._tokens.items()})
        return self.reader.read_all(line["text"] for line in page["lines"])

    def _log_page(self, query: Mapping[str, Any]) -> dict[str, Any]:
        page = self.connection.job_page(self.name, "logs", query)
        self._tokens.update(page["tokens"])
        return page

    def _consider(self, item: _Pending, readings: Sequence[Any], now_s: float) -> None:
        moment = item.fault.moment
        if item.due_since_s is None:
            seconds_passed = (
                moment.seconds is not None and self._began_s is not None and now_s - self._began_s >= moment.seconds
            )
            if not seconds_passed and not any(
                moment.has_come(step=reading.step, epoch=reading.epoch) for reading in readings
            ):
                return
            item.due_since_s = now_s
        if self.facts["secondary_status"] != "Training":
            return  # between two attempts: the fault waits until the next attempt trains
        try:
            self._strike(item.fault, is_over=False)
        except (WireError, NoAnswer) as error:  # after NoAnswer, the next look waits for the service
            item.note = error.message
            if may_be_done(error) and item.fault.kind in STRIKES_ANEW:
                item.is_unknown = True
                why = f"the service failed ({error.message})" if isinstance(error, WireError) else "no answer came"
                item.note = f"{why} when it was ordered, so it may have struck unseen"
            return
        item.note = ""
        item.attempt = self.facts["attempt"]
        item.struck_at_s = now_s - (self._began_s or now_s)
        if item.fault.length_s is not None:
            item.over_at_s = time.monotonic() + item.fault.length_s
        self.say(f"{self.name}: {item.fault}: struck {item.struck_at_s:.1f} s after training began")

    def _end(self, item: _Pending) -> None:
        """End a fault that has a length, but keep network cuts that another fault needs.

        A fault also ends when its hosts end.
        """
        over_at_s, item.over_at_s = item.over_at_s, None
        others = [other for other in self._pending if other is not item and self._goes_on(other)]
        fault = without_cuts(item.fault, [other.fault for other in others], num_hosts=len(self.facts["hosts"]))
        if fault is None:
            self.say(f"{self.name}: {item.fault}: over; another fault still cuts there")
            return
        try:
            self._strike(fault, is_over=True)
            self.say(f"{self.name}: {item.fault}: over")
        except (WireError, NoAnswer) as error:
            if is_away(error):  # the end is ordered once more at the next look, which waits for the service
                item.over_at_s = over_at_s
            else:
                item.note = f"could not be ended: {error.message}"

    def _goes_on(self, item: _Pending) -> bool:
        """Whether a fault has begun on the present hosts, and not ended."""
        if item.struck_at_s is None or item.attempt != self.facts["attempt"]:
            return False
        return item.fault.length_s is None or item.over_at_s is not None

    def _strike(self, fault: PlannedFault, *, is_over: bool) -> None:
        if fault.kind is FaultKind.RECLAIM:
            self.connection.post_job_page(self.name, "reclaim", {"host": fault.hosts[0]} if fault.hosts else {})
            return
        body: dict[str, Any] = {"kind": fault.kind.value, "hosts": list(fault.hosts), "is_over": is_over}
        if fault.rank is not None:
            body["rank"] = fault.rank
        if fault.is_between:
            body["between"] = True
        if fault.rate_mbit_s is not None:
            body["rate_mbit_s"] = fault.rate_mbit_s
        self.connection.post_job_page(self.name, "strike", body)

    def _wait_for_release(self) -> None:
        """Wait until the hosts are released: their records can be read only afterwards."""
        deadline_s = time.monotonic() + RELEASE_S
        while time.monotonic() < deadline_s:
            self.facts = self.connection.job_page(self.name)
            if all(host["phase"] in ("released", "lost") for host in self.facts["hosts"]):
                page = self.connection.job_page(self.name, "records", {"attempt": self.facts["attempt"]})
                if page["is_released"]:
                    return
            time.sleep(POLL_S)

    def _printed(self, attempt: int) -> list[str]:
        """Return the lines of the rank that prints steps, in one attempt."""
        by_rank: dict[tuple[Any, str], list[str]] = {}
        tokens: dict[str, str] = {}
        while True:
            query = {f"after.{stream}": token for stream, token in tokens.items()} | {"attempt": str(attempt)}
            page = self.connection.job_page(self.name, "logs", query)
            for line in page["lines"]:  # the output may be larger than memory
                if self.reader.read(line["text"]) is not None:
                    by_rank.setdefault((line["rank"], line["host"]), []).append(line["text"])
            if page["sure_until_ms"] is None:
                break
            tokens |= page["tokens"]
        # The rank with the most lines, the first of several: another rank may print a total at the end.
        return max(by_rank.values(), key=len, default=[])


def follow(watches: Sequence[JobWatch], *, timeout_s: float) -> None:
    """Poll jobs until all have ended.

    Raises: JobOverdue after `timeout_s`, naming the jobs that still run.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        for watch in watches:
            if not watch.is_over:
                watch.look()
        if all(watch.is_over for watch in watches):
            return
        if time.monotonic() >= deadline_s:
            names = ", ".join(watch.name for watch in watches if not watch.is_over)
            raise JobOverdue(f"{names} did not end within {timeout_s:g} s; give the jobs more time: --timeout")
        time.sleep(POLL_S)


def _number(value: float | None) -> float:
    return math.nan if value is None else value  # the service sends null for NaN and infinity


def failed_at_s(facts: Mapping[str, Any]) -> float | None:
    """Return the time of the first cause of a job's failure, in seconds after its training first began."""
    began = [row["started_at"] for row in facts.get("transitions") or () if row["status"] == "Training"]
    causes = [row["at"] for row in facts.get("timeline") or () if row["kind"] == "cause"]
    if not began or not causes:
        return None
    return (datetime.fromisoformat(causes[0]) - datetime.fromisoformat(began[0])).total_seconds()
