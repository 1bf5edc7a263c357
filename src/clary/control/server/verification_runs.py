"""Verifications of checkpoints in the background, because reading every byte takes long.

Where: `pages.checkpoints_page` starts a run and answers later requests with its results so far. A run without requests
for `FORGET_AFTER_S` is ended and forgotten.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from clary.base.errors import WireError
from clary.control.objects.checkpoint_verification import VerificationReport

ANSWER_AFTER_S = 5.0  # longest wait for the end of a run within a request; clients wait 30 s
FORGET_AFTER_S = 30.0  # time without a request
MAX_RUNS = 4  # concurrent runs


@dataclass(eq=False)
class VerificationRun:
    """One verification; `report` grows while the task works."""

    owner: str  # name of the job
    report: VerificationReport
    task: asyncio.Task[None]
    timer: asyncio.TimerHandle | None = None
    number: str = field(default_factory=lambda: secrets.token_hex(8))


class VerificationRuns:
    """Starts, stores and ends runs. All methods must run in one event loop."""

    def __init__(self, *, forget_after_s: float = FORGET_AFTER_S) -> None:
        self._forget_after_s = forget_after_s
        self._runs: dict[str, VerificationRun] = {}

    def start(self, owner: str, work: Callable[[VerificationReport], Awaitable[None]]) -> VerificationRun:
        """Begin a run. Raises: WireError ThrottlingException while MAX_RUNS run already."""
        num_at_work = sum(not run.task.done() for run in self._runs.values())
        if num_at_work >= MAX_RUNS:
            raise WireError(
                "ThrottlingException",
                f"{num_at_work} verifications of checkpoints are at work already; try again when one has ended",
                http_status=429,
            )
        report = VerificationReport()

        async def run_work() -> None:
            await work(report)

        run = VerificationRun(owner, report, asyncio.create_task(run_work(), name="verification"))
        self._runs[run.number] = run
        self._put_off(run)
        return run

    def find(self, owner: str, number: str) -> VerificationRun:
        """Return a run of a job. Raises: WireError NotFound if there is no such run, or it was forgotten."""
        run = self._runs.get(number)
        if run is None or run.owner != owner:
            raise WireError(
                "NotFound",
                f"there is no verification {number[:20]!r} of {owner} any more: no client asked about it for "
                f"{self._forget_after_s:.0f} s, or the service was started again; start another one",
                http_status=404,
            )
        self._put_off(run)
        return run

    async def wait(self, run: VerificationRun, *, timeout_s: float = ANSWER_AFTER_S) -> bool:
        """Wait for the end of a run; return whether it has ended. Raises: the error that ended it."""
        await asyncio.wait({run.task}, timeout=timeout_s)
        self._put_off(run)
        if run.task.done():
            run.task.result()
        return run.task.done()

    async def close(self) -> None:
        """End all runs."""
        runs = list(self._runs.values())
        for run in runs:
            self._forget(run)
        await asyncio.gather(*(run.task for run in runs), return_exceptions=True)

    def _put_off(self, run: VerificationRun) -> None:
        if run.timer is not None:
            run.timer.cancel()
        if run.number in self._runs:
            run.timer = asyncio.get_running_loop().call_later(self._forget_after_s, self._forget, run)

    def _forget(self, run: VerificationRun) -> None:
        self._runs.pop(run.number, None)
        if run.timer is not None:
            run.timer.cancel()
        run.task.cancel()
