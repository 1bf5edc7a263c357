"""Runs rehearsals that people request from the service, monitors them, and removes their jobs and files.

Where: the page `rehearsals` of a job starts and cancels them; the server begins with `load` and ends with `interrupt`.

[Note: who runs a rehearsal]
A separate process runs `clary rehearse`, the same command that the page shows. Its input may contain regular
expressions that never finish and logs of any length, which must not block the service. The command needs the service,
so it outlives it by two minutes at most: then it exits without an answer. A new service ends the process that an
earlier service started. The service knows the names of both jobs beforehand, so it stops them however the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from clary.base.clock import Clock
from clary.base.errors import ClaryError, StoreError, WireError
from clary.base.processes import ProcessId
from clary.control.jobs import events
from clary.control.jobs.training_job import EndCause, TrainingJob
from clary.control.limited_children import end_child
from clary.control.reconcile.desks.rehearsal_shelf import (
    CERTIFICATE_FILE,
    ERRORS,
    NUM_KEPT,
    OUTPUT,
    KeptRehearsal,
    RehearsalShelf,
    RehearsalState,
)
from clary.control.reconcile.hub import JobHub
from clary.control.rehearsal.orders import RehearsalOrder
from clary.control.rehearsal.requests import rehearsal_names

COMMAND = (sys.executable, "-P", "-m", "clary.cli.main")
MAX_RUNNING = 4  # rehearsals of all jobs together; each has two jobs
LIMIT_S = 2 * 86_400.0 + 3600.0  # the command gives each of its jobs a day
KILL_S = 10.0
LATE_S = 60.0  # longest time until a request that the process sent before it was killed takes effect
SUFFIX_BYTES = 3  # bytes of the suffix, written in hexadecimal
STOPPED = "the service was stopped while it ran, and its jobs with it: start it again"
KILLED = "the service ended while it ran, and the next one has stopped its jobs: start it again"
CANCELLED = "it was cancelled, and its jobs were stopped"

log = logging.getLogger(__name__)


class Role(NamedTuple):
    """The role of a twin or rehearsal job in a rehearsal."""

    job: str  # the rehearsed job
    number: int
    role: str  # twin or rehearsal


class _Ending(NamedTuple):
    """Order to end a process early."""

    state: RehearsalState
    why: str


@dataclass(eq=False)
class _Run:
    """A running rehearsal."""

    ending: asyncio.Future[_Ending]
    task: asyncio.Task[None] | None = None
    is_written: asyncio.Event = field(default_factory=asyncio.Event)  # set once its record is stored
    is_forgotten: bool = False  # whether its job was deleted, so that no record is kept


@dataclass(eq=False)
class RehearsalDesk:
    """Starts, ends and records rehearsals; all methods must run in one event loop.

    Args:
        shelf: keeps the rehearsals.
        hub: knows the rehearsals' jobs, and stops them.
        clock: gives the times of records.
        home: the service's state folder, where the command finds the service.
        grace_s: time in seconds that programs get to exit when their job is stopped.
        command: command line that runs `clary`.
    """

    shelf: RehearsalShelf
    hub: JobHub
    clock: Clock
    home: Path
    grace_s: float
    command: Sequence[str] = COMMAND
    _kept: dict[str, list[KeptRehearsal]] = field(init=False, default_factory=dict)  # job -> rehearsals, oldest first
    _runs: dict[tuple[str, int], _Run] = field(init=False, default_factory=dict)
    _roles: dict[str, Role] = field(init=False, default_factory=dict)  # name of a twin or a rehearsal -> its role
    _late: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    _is_leaving: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Register for changes of jobs."""
        self.hub.listen(self._stop_late)

    def of(self, job_name: str) -> list[KeptRehearsal]:
        """Return the rehearsals of a job, the newest first."""
        return self._kept.get(job_name, [])[::-1]

    def role_of(self, job_name: str) -> Role | None:
        """Return the role of a job in a rehearsal, or None if it was not created for a rehearsal."""
        return self._roles.get(job_name)

    async def start(self, job_name: str, order: RehearsalOrder) -> KeptRehearsal:
        """Start a rehearsal; return before its jobs are created.

        Raises: WireError while a rehearsal of this job, or `MAX_RUNNING` rehearsals, run.
        """
        if self._is_leaving:
            raise WireError(
                "ServiceUnavailable", "the service is shutting down: try again when it is back", http_status=503
            )
        running = next((kept for kept in self.of(job_name) if not kept.is_over), None)
        if running is not None:
            raise WireError(
                "ResourceInUse",
                f"rehearsal {running.number} of {job_name} is under way: wait for its certificate, or cancel it",
            )
        if len(self._runs) >= MAX_RUNNING:
            others = ", ".join(sorted({name for name, _ in self._runs}))
            raise WireError(
                "ResourceLimitExceeded",
                f"{len(self._runs)} rehearsals are under way, of {others}: try again when one of them has ended",
            )
        suffix = secrets.token_hex(SUFFIX_BYTES)
        twin, rehearsal = rehearsal_names(job_name, suffix)
        kept = KeptRehearsal(
            job=job_name,
            number=max((item.number for item in self.of(job_name)), default=0) + 1,
            state=RehearsalState.RUNNING,
            faults=order.faults,
            arguments=order.arguments,
            seed=order.seed,
            twin=twin,
            rehearsal=rehearsal,
            started_at=self.clock.now(),
        )
        self._remember(kept)
        run = self._runs[job_name, kept.number] = _Run(asyncio.get_running_loop().create_future())
        name = f"rehearsal {kept.number} of {job_name}"
        run.task = asyncio.create_task(self._carry_out(kept, run, suffix), name=name)
        await run.is_written.wait()
        return kept

    def cancel(self, job_name: str, number: int) -> None:
        """Order the end of a rehearsal without waiting for it. Raises: WireError if the rehearsal does not run."""
        run = self._runs.get((job_name, number))
        if run is None or not any(kept.number == number and not kept.is_over for kept in self.of(job_name)):
            raise WireError("ValidationException", f"rehearsal {number} of {job_name} is not under way")
        _end(run, _Ending(RehearsalState.CANCELLED, CANCELLED))

    async def forget(self, job_name: str) -> None:
        """Remove the rehearsals of a job that is being deleted; return when a running rehearsal has ended."""
        for kept in self.of(job_name):
            run = self._runs.get((job_name, kept.number))
            if run is None:
                await self._drop(kept)
                continue
            run.is_forgotten = True
            _end(run, _Ending(RehearsalState.CANCELLED, CANCELLED))
            if run.task is not None:
                await asyncio.wait([run.task])

    async def load(self) -> None:
        """Load the rehearsals of an earlier service, end running rehearsals, and stop their jobs."""
        for found in await self.shelf.read_all():
            kept = found
            self._remember(found)
            if not found.is_over:
                if found.process is not None:
                    await asyncio.to_thread(found.process.kill, timeout_s=KILL_S)
                kept = self._settled(found, _Ending(RehearsalState.INTERRUPTED, KILLED))
                await self._keep(kept)
            await self._stop_jobs(kept)  # a killed service may not have stopped them

    async def interrupt(self) -> None:
        """End all running rehearsals, because the service ends, and accept no more."""
        self._is_leaving = True
        for run in self._runs.values():
            _end(run, _Ending(RehearsalState.INTERRUPTED, STOPPED))
        tasks = [*(run.task for run in self._runs.values() if run.task is not None), *self._late]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, kept: KeptRehearsal, run: _Run, suffix: str) -> None:
        ending = _Ending(RehearsalState.INTERRUPTED, STOPPED)
        try:
            try:
                await self._begin(kept)
                run.is_written.set()
                ending = await self._run_command(kept, run, suffix)
            except Exception as error:  # boundary: after any error the rehearsal counts as ended
                log.exception("rehearsal %d of %s could not be carried out", kept.number, kept.job)
                ending = _Ending(RehearsalState.FAILED, f"the command could not be started: {error}")
            finally:
                run.is_written.set()
                ended = self._settled(kept, ending)
                await self._keep(ended)
            await self._stop_jobs(ended)
        finally:
            del self._runs[kept.job, kept.number]
            if run.is_forgotten:
                await self._drop_forgotten(kept)

    async def _drop_forgotten(self, kept: KeptRehearsal) -> None:
        """Drop a rehearsal of a deleted job; an error of the task that ends with this is ignored."""
        try:
            await self._drop(kept)
        except (StoreError, OSError):
            log.exception("rehearsal %d of %s, whose job was deleted, could not be removed", kept.number, kept.job)

    async def _begin(self, kept: KeptRehearsal) -> None:
        """Store a rehearsal's record, make its folder, and drop the job's oldest rehearsals beyond `NUM_KEPT`.

        If a folder of this number exists already, its record is unreadable, and the folder is removed first.
        """
        await self.shelf.remove(kept.job, kept.number)
        await self._keep(kept)
        await asyncio.to_thread(self.shelf.place(kept.job, kept.number).mkdir, parents=True)
        for old in self._kept[kept.job][:-NUM_KEPT]:
            await self._drop(old)

    async def _run_command(self, kept: KeptRehearsal, run: _Run, suffix: str) -> _Ending:
        folder = self.shelf.place(kept.job, kept.number)
        arguments = [
            "rehearse",
            *kept.arguments,
            f"--suffix={suffix}",
            f"--certificate={CERTIFICATE_FILE}",
            "--",
            kept.job,
        ]
        with (folder / OUTPUT).open("wb") as output, (folder / ERRORS).open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # no file in this folder has the name of a job: the command would read such a file as the request
                cwd=folder,
                # The command prints programs' output, which may have any encoding, whatever the locale of the service.
                env={**os.environ, "CLARY_HOME": str(self.home), "PYTHONIOENCODING": "utf-8:backslashreplace"},
                start_new_session=True,
            )
        waiting = asyncio.ensure_future(process.wait())
        try:
            await self._keep(replace(kept, process=ProcessId.of(process.pid)))
            watched: set[asyncio.Future[Any]] = {waiting, run.ending}
            await asyncio.wait(watched, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            is_late = not waiting.done() and not run.ending.done()
        finally:
            if not waiting.done() and not await end_child(process):
                waiting.cancel()
            await asyncio.wait({waiting})
        if run.ending.done():
            return run.ending.result()
        if is_late:
            return _Ending(RehearsalState.FAILED, f"it did not end within {LIMIT_S / 3600:g} hours")
        said = [line for line in self.shelf.lines(kept.job, kept.number, ERRORS) if line.strip()]
        why = said[-1].removeprefix("clary: ")[:2000] if said else f"the command ended with {process.returncode}"
        return _Ending(RehearsalState.FAILED, why)

    def _settled(self, kept: KeptRehearsal, ending: _Ending) -> KeptRehearsal:
        """Return a rehearsal as ended: certified if its command has written a certificate, else by `ending`."""
        ended = replace(kept, ended_at=self.clock.now(), process=None)
        certificate = self.shelf.written(kept.job, kept.number)
        if certificate is None:
            return replace(ended, state=ending.state, why=ending.why)
        reason = str(certificate.get("reason", ""))
        return replace(ended, state=RehearsalState.CERTIFIED, verdict=certificate["verdict"], reason=reason)

    def _stop_late(self, before: TrainingJob | None, job: TrainingJob) -> None:
        """Stop a job that is created after its rehearsal ended, by a request that the killed process had sent."""
        role = self._roles.get(job.name)
        if before is not None or role is None:
            return
        for kept in self._kept.get(role.job, ()):
            if kept.number == role.number and kept.is_over:
                task = asyncio.create_task(self._stop_jobs(kept), name=f"stop of {job.name}")
                self._late.add(task)
                task.add_done_callback(self._late.discard)

    async def _stop_jobs(self, kept: KeptRehearsal) -> None:
        """Stop the jobs of a rehearsal without a certificate, but not later jobs of the same names."""
        if kept.state is RehearsalState.CERTIFIED or kept.ended_at is None:
            return
        for name in (kept.twin, kept.rehearsal):
            job = self.hub.live_job(name)
            if job is None or job.created_at > kept.ended_at + timedelta(seconds=LATE_S):
                continue
            wanted = events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=self.grace_s)
            try:
                await self.hub.apply(name, wanted)
            except ClaryError as error:
                log.warning("%s, of rehearsal %d of %s: not stopped: %s", name, kept.number, kept.job, error.message)

    async def _keep(self, kept: KeptRehearsal) -> None:
        self._remember(kept)
        try:
            await self.shelf.write(kept)
        except StoreError:  # a full disk: the record in memory counts until the service ends
            log.exception("rehearsal %d of %s could not be written down", kept.number, kept.job)

    def _remember(self, kept: KeptRehearsal) -> None:
        known = self._kept.setdefault(kept.job, [])
        known[:] = sorted([*(item for item in known if item.number != kept.number), kept], key=lambda item: item.number)
        self._roles[kept.twin] = Role(kept.job, kept.number, "twin")
        self._roles[kept.rehearsal] = Role(kept.job, kept.number, "rehearsal")

    async def _drop(self, kept: KeptRehearsal) -> None:
        left = [item for item in self._kept.get(kept.job, []) if item.number != kept.number]
        if left:
            self._kept[kept.job] = left
        else:
            self._kept.pop(kept.job, None)
        for name in (kept.twin, kept.rehearsal):
            self._roles.pop(name, None)
        await self.shelf.remove(kept.job, kept.number)


def _end(run: _Run, ending: _Ending) -> None:
    if not run.ending.done():
        run.ending.set_result(ending)
