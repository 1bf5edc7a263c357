"""Requests whose windows have not begun: answers to them, choice of the next request, expiry.

Where: `recorder` holds them, and calls every method except `forget` under its lock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from clary.contract.deep_profiles import ProfileRequest, RankState
from clary.train.profiling.rank_files import RankFiles, read_requests
from clary.train.profiling.ranks import may_be_rank, own_rank
from clary.train.profiling.step_counter import StepCounter

NO_STEPS_S = 20.0  # wait for a program's first step before a recording by time: the program may still be starting
NO_STEPS_TIMED_S = 5.0  # the same wait if the request names a duration


class Waiting(NamedTuple):
    """A request, the files of its answer, and its times on the monotonic clock.

    The times are converted when the request is first read, since the time of day may be set later.
    """

    request: ProfileRequest
    files: RankFiles
    start_s: float
    give_up_s: float  # infinite if the request does not expire


class WaitingRequests:
    """Requests to one process whose windows have not begun.

    Args:
        folder: folder of requests.
        steps: the program's step counter; a process that has made a step is a rank.
        tell: function that writes an answer.
    """

    def __init__(self, folder: Path, *, steps: StepCounter, tell: Callable[[RankFiles, RankState, str], None]) -> None:
        self._folder = folder
        self._steps = steps
        self._tell = tell
        self._seen: dict[int, ProfileRequest] = {}
        self._waiting: dict[int, Waiting] = {}

    @property
    def has_any(self) -> bool:
        """Whether any request waits."""
        return bool(self._waiting)

    def forget(self) -> None:
        """Drop all waiting requests, in a forked child, since its parent answers them."""
        self._waiting = {}

    def take_up(self) -> list[ProfileRequest]:
        """Read the folder; return requests that were cancelled since the last call. Raises: OSError."""
        news = [request for request in read_requests(self._folder) if self._seen.get(request.number) != request]
        for request in news:
            is_new = request.number not in self._seen
            self._seen[request.number] = request
            if request.is_cancelled:
                self._cancel(request.number)
            elif is_new and not (request.give_up_at and time.time() > request.give_up_at):
                files = RankFiles(self._folder, request.number, own_rank())
                ahead_s = time.monotonic() - time.time()
                give_up_s = request.give_up_at + ahead_s if request.give_up_at else math.inf
                self._waiting[request.number] = Waiting(request, files, request.start_at + ahead_s, give_up_s)
        return [request for request in news if request.is_cancelled]

    def take_due(self) -> Waiting | None:
        """Remove and return a request whose window must begin now, at the end of a step, or None."""
        for number, waiting in sorted(self._waiting.items()):
            if self._is_due(waiting) and (waiting.files.profile or self._claim(number)):
                return self._waiting.pop(number)
        return None

    def take_late(self) -> Waiting | None:
        """Remove and return a claimed request that has waited long enough for the program's first step, or None."""
        if self._steps.num_steps == 0:
            for number, waiting in list(self._waiting.items()):
                if waiting.files.profile is not None and _is_late(waiting):
                    return self._waiting.pop(number)
        return None

    def answer(self) -> None:
        """Claim open requests, and fail requests whose window did not begin in time."""
        for number, waiting in list(self._waiting.items()):
            if waiting.files.profile is None and not self._claim(number):
                continue
            waiting = self._waiting[number]
            if time.monotonic() > waiting.give_up_s:
                del self._waiting[number]
                self._tell(waiting.files, RankState.FAILED, "no step began in time: does the program still train?")

    def _cancel(self, number: int) -> None:
        """Drop a waiting request, and report the cancellation if this process answers for its rank."""
        waiting = self._waiting.get(number)
        if waiting is not None and (waiting.files.profile is not None or self._claim(number, is_due=may_be_rank())):
            self._tell(self._waiting[number].files, RankState.FAILED, "cancelled before it began")
        self._waiting.pop(number, None)

    def _is_due(self, waiting: Waiting) -> bool:
        start_step = waiting.request.start_step
        if start_step is not None and self._steps.num_steps < start_step:
            return False
        return time.monotonic() >= waiting.start_s

    def _claim(self, number: int, *, is_due: bool = False) -> bool:
        """Claim a request if this process is one of its ranks; return whether the request still waits and is claimed.

        Args:
            is_due: whether to claim even without a step of this process, and before the wait for a first step has
                ended.
        """
        waiting = self._waiting[number]
        request = waiting.request
        is_training = self._steps.num_steps > 0
        if not is_training and not is_due and not (_is_late(waiting) and may_be_rank()):
            return False
        rank = own_rank()  # the process group may have been made after the request
        files = RankFiles(self._folder, number, rank)
        if (request.ranks and rank not in request.ranks) or not files.claim():
            del self._waiting[number]
            return False
        self._waiting[number] = waiting._replace(files=files)
        self._tell(files, RankState.WAITING, "")
        return True


def _is_late(waiting: Waiting) -> bool:
    """Return whether a request has waited long enough for steps; a request that names a step waits without limit."""
    wait_s = NO_STEPS_S if waiting.request.num_steps else NO_STEPS_TIMED_S
    return waiting.request.start_step is None and time.monotonic() > waiting.start_s + wait_s
