"""Profiles of a host's ranks: requests are written to a folder that ranks poll; the ranks' files are read and sent.

Where: `supervisor` forwards the requests in receipts, `program_companions` passes the program. Each request has its own
thread, until every requested rank has answered, has ended or is late. The program owns the folder: links that replace
files are not followed (`small_files`), and only files of ranks that were started on this host are read. If a program
starts its ranks itself, they are not known here, and at most `MAX_UNKNOWN_RANKS` of them may answer. A rank's trace is
sent once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from clary.agent.companion import Companion, WatchedProgram
from clary.agent.sender import send_until_taken
from clary.agent.service_client import AttemptOver, ServiceRefused
from clary.agent.small_files import names_in, open_regular, read_start, remove, write_whole
from clary.base.errors import ContractError
from clary.base.plain import from_plain, to_plain
from clary.contract.deep_profiles import (
    MAX_TIMED_STEPS,
    MAX_TRACE_BYTES,
    MAX_WAIT_S,
    MAX_WINDOW_S,
    OUT_FOLDER,
    PIECE_BYTES,
    HostProfile,
    ProfileRequest,
    RankProfile,
    RankState,
    Window,
)

FOLDER = (".clary", "profiles")  # below the host's /opt/ml
MAX_UNKNOWN_RANKS = 256  # of a program that starts its ranks itself; machines have fewer processors for ranks
_MAX_BOUNDS = 2 * MAX_TIMED_STEPS  # of a window: its beginning, its steps, and steps before it could end
_RANK_FILE = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.json")
_POLL_S = 0.25
_SETTLE_S = 3.0  # time without a new rank after which no more ranks are expected, if the number of ranks is unknown
_WRITE_S = 120.0  # for the write of a trace, after the longest window
_ANSWER_S = 5.0  # for a rank's confirmation, after the request's `give_up_at`
_SEND_S = 30.0  # for retries while the service is unreachable
_MAX_STATE_BYTES = 64 * 1024
_LAST_TRACES_S = 10.0  # for traces of an ended program
_JOIN_S = 2.0

logger = logging.getLogger(__name__)


class ProfileReceiver(Protocol):
    """Receiver of profiles; outside of tests a `ServiceClient`, whose errors its methods raise."""

    def send_profile(self, profile: HostProfile) -> None:
        """Send the current state of a profile."""

    def send_trace(self, piece: bytes, *, number: int, rank: int, offset: int, is_last: bool) -> None:
        """Send a part of a rank's trace.

        Args:
            piece: part of the compressed file, `PIECE_BYTES` at most.
            number: of the profile's request.
            rank: global rank.
            offset: of the piece in the file, in bytes.
            is_last: whether the file ends with this piece.
        """


class ProfileWindows(Companion):
    """The profiles of one host.

    Args:
        host: its name.
        attempt: number of the attempt, also used as number of the profile requested by the job's own settings.
        window: of that profile; None if there is none.
        ml_folder: returns the host's `/opt/ml` on this machine.
        receiver: the service.
    """

    def __init__(
        self,
        host: str,
        *,
        attempt: int,
        window: Window | None,
        ml_folder: Callable[[], Path],
        receiver: ProfileReceiver,
    ) -> None:
        self._host = host
        self._attempt = attempt
        self._window = window
        self._ml_folder = ml_folder
        self._receiver = receiver
        self._ranks: Callable[[], Mapping[int, int]] = dict
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # all profiles are sent over one connection
        self._asked: dict[int, ProfileRequest] = {}
        self._threads: list[threading.Thread] = []
        self._program_is_over = threading.Event()
        self._ending = threading.Event()

    def prepare(self, ml_folder: Path) -> None:
        """Write the request of the job's own settings before its program starts."""
        if self._window is not None:
            window = self._window
            self.ask(
                ProfileRequest(
                    number=self._attempt,
                    num_steps=window.num_steps,
                    start_step=window.start_step,
                    start_at=window.start_at,
                    duration_s=window.duration_s,
                )
            )

    def begin(self, program: WatchedProgram, ml_folder: Path) -> None:
        """Start to follow the ranks of this program."""
        self._ranks = program.ranks_by_pid

    def ask(self, request: ProfileRequest) -> None:
        """Forward each request once and its cancellation once; return at once."""
        with self._lock:
            known = self._asked.get(request.number)
            if known == request or self._ending.is_set() or (known is None and request.is_cancelled):
                return
            self._asked[request.number] = request
            error = self._leave(request)
            if known is None:
                thread = threading.Thread(target=self._run, args=(request, error), name="profile", daemon=True)
                self._threads = [other for other in self._threads if other.is_alive()] + [thread]
                thread.start()

    def ended(self) -> None:
        """Send the traces that the program has left, within `_LAST_TRACES_S`; return at once if no request is open."""
        self._program_is_over.set()
        self._join(_LAST_TRACES_S)

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """Stop following and sending, and wait for the profiles being sent; return True.

        Args:
            timeout_s: longest wait; `_JOIN_S` at most.
        """
        self._ending.set()
        self._program_is_over.set()
        self._join(min(timeout_s, _JOIN_S))
        return True

    def _join(self, limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def _leave(self, request: ProfileRequest) -> str:
        """Write the request; return "", or the reason of the failure."""
        try:
            document = json.dumps(to_plain(request)).encode("ascii")
            write_whole(self._ml_folder(), (*FOLDER, f"request-{request.number}.json"), document)
        except OSError as error:
            return f"the request could not be left for the ranks of {self._host}: {error}"
        return ""

    def _run(self, request: ProfileRequest, error: str) -> None:
        try:
            if error:
                self._tell(request, {}, is_final=True, error=error)
            else:
                self._follow(request)
        except (AttemptOver, ServiceRefused) as refusal:
            logger.warning("profile %d could not be sent: %s", request.number, refusal)
        except Exception as defect:  # error boundary: a profile must not end the program
            logger.exception("profile %d could not be followed", request.number)
            error = f"the agent of {self._host} has failed: {type(defect).__name__}: {defect}"
            self._tell(request, {}, is_final=True, error=error)

    def _follow(self, request: ProfileRequest) -> None:
        """Send the states and traces of ranks until all ranks have answered, have ended or are late."""
        told: dict[int, RankProfile] = {}
        expected: set[int] = set()
        heard: set[int] = set()  # ranks that have answered, if the host's ranks are unknown
        shipped: dict[int, RankProfile] = {}
        are_known = False
        settled_s = time.monotonic()
        # Both times are monotonic from here on, because the time of day may change during the wait.
        end_s = _deadline_s(request)
        answer_by_s = _monotonic_s(request.give_up_at) + _ANSWER_S if request.give_up_at else None
        while not self._ending.is_set():
            is_over = self._program_is_over.is_set()
            live = frozenset(self._ranks().values())
            expected |= _asked_of(request, live)
            are_known = are_known or bool(live)
            if not are_known:
                heard = self._heard(request, heard)
            found = self._read(request, expected if are_known else heard)
            if not told.keys() >= found.keys():
                settled_s = time.monotonic()
            found = self._with_lost(found, expected=expected, live=live, is_over=is_over)
            for rank, profile in found.items():
                if profile.state is RankState.DONE:
                    if rank not in shipped:
                        shipped[rank] = self._ship(request, profile)
                    found[rank] = shipped[rank]
            is_late = end_s is not None and time.monotonic() > end_s
            if is_late:
                found = {rank: profile if profile.state.is_over else _late(profile) for rank, profile in found.items()}
            if answer_by_s is not None and time.monotonic() > answer_by_s:
                found |= {rank: _silent(rank) for rank in expected - found.keys()}
                is_late = is_late or not found
            has_all = bool(found) and all(profile.state.is_over for profile in found.values())
            is_known = bool(expected) and found.keys() >= expected
            is_elsewhere = bool(live) and not expected
            is_settled = has_all and (is_known or time.monotonic() - settled_s > _SETTLE_S)
            if is_over or is_late or is_elsewhere or is_settled:
                error = "" if found or is_elsewhere else f"no rank of {self._host} has answered: {_WHY_NOT}"
                self._tell(request, found, is_final=True, error=error)
                for rank in found:  # removed, because they would fill the program's disk
                    remove(self._ml_folder(), self._trace(request, rank))
                return
            if found != told:
                self._tell(request, found, is_final=False)
                told = found
            self._program_is_over.wait(_POLL_S)

    def _heard(self, request: ProfileRequest, before: AbstractSet[int]) -> set[int]:
        """Return the ranks heard before and other requested ranks that have a file, `MAX_UNKNOWN_RANKS` at most."""
        names = names_in(self._ml_folder(), (*FOLDER, OUT_FOLDER, str(request.number)))
        ranks = sorted(int(match[1]) for match in map(_RANK_FILE.fullmatch, names) if match)
        fresh = [rank for rank in ranks if rank not in before and (not request.ranks or rank in request.ranks)]
        return {*before, *fresh[: MAX_UNKNOWN_RANKS - len(before)]}

    def _read(self, request: ProfileRequest, ranks: AbstractSet[int]) -> dict[int, RankProfile]:
        """Return rank -> profile written by the rank, for those of `ranks` that have written one."""
        parts = (*FOLDER, OUT_FOLDER, str(request.number))
        found = {}
        for rank in sorted(ranks):
            text = read_start(self._ml_folder(), (*parts, f"rank-{rank}.json"), max_bytes=_MAX_STATE_BYTES)
            try:
                profile = from_plain(RankProfile, json.loads(text or b""))
            except (ValueError, RecursionError, ContractError):
                continue  # the program may write any content
            if profile.rank == rank and len(profile.bounds_ns) <= _MAX_BOUNDS:
                found[rank] = profile
        return found

    def _with_lost(
        self, found: Mapping[int, RankProfile], *, expected: AbstractSet[int], live: AbstractSet[int], is_over: bool
    ) -> dict[int, RankProfile]:
        """Add the ranks that have ended before their trace was complete."""
        whole = dict(found)
        for rank in sorted({*expected, *found}):
            profile = whole.get(rank) or RankProfile(rank=rank, state=RankState.WAITING)
            if not profile.state.is_over and (is_over or (rank in expected and rank not in live)):
                words = f"rank {rank} ended before its trace was whole ({profile.state.value})"
                whole[rank] = replace(profile, state=RankState.LOST, words=words)
        return whole

    @staticmethod
    def _trace(request: ProfileRequest, rank: int) -> tuple[str, ...]:
        return (*FOLDER, OUT_FOLDER, str(request.number), f"rank-{rank}.trace.json.gz")

    def _ship(self, request: ProfileRequest, profile: RankProfile) -> RankProfile:
        """Send a trace; return the profile with the outcome."""
        descriptor = open_regular(self._ml_folder(), self._trace(request, profile.rank))
        if descriptor is None:
            return replace(profile, state=RankState.FAILED, words="its trace is not there")
        with open(descriptor, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_TRACE_BYTES:
                words = f"its trace has {size} bytes, and {MAX_TRACE_BYTES} at most are taken: ask for fewer steps"
                return replace(profile, state=RankState.FAILED, words=words)
            offset = 0
            while not self._ending.is_set():
                piece = file.read(PIECE_BYTES)
                is_last = offset + len(piece) >= size or not piece
                number, rank, send = request.number, profile.rank, self._receiver.send_trace
                try:
                    self._send(partial(send, piece, number=number, rank=rank, offset=offset, is_last=is_last))
                except ServiceRefused as refusal:
                    return replace(profile, state=RankState.FAILED, words=f"its trace was not taken: {refusal.message}")
                offset += len(piece)
                if is_last:
                    break
        return profile

    def _tell(
        self, request: ProfileRequest, found: Mapping[int, RankProfile], *, is_final: bool, error: str = ""
    ) -> None:
        profile = HostProfile(
            number=request.number, host=self._host, is_final=is_final, ranks=tuple(found.values()), error=error
        )
        self._send(partial(self._receiver.send_profile, profile))

    def _send(self, message: Callable[[], None]) -> None:
        """Send, and retry while the service is unreachable. Raises: AttemptOver, ServiceRefused."""
        is_taken = send_until_taken(message, limit_s=_SEND_S, ending=self._ending, lock=self._sending)
        if not is_taken and not self._ending.is_set():
            logger.warning("a profile is not delivered within %g s", _SEND_S)


_WHY_NOT = (
    "profiles need torch 2.5 or later in Python 3.10 or later, imported by the program, with the PYTHONPATH that the "
    "job began with"
)


def _asked_of(request: ProfileRequest, ranks: AbstractSet[int]) -> set[int]:
    return set(ranks) if not request.ranks else set(ranks) & set(request.ranks)


def _deadline_s(request: ProfileRequest) -> float | None:
    """Return the monotonic deadline of a profile; None for a window that may begin at any time."""
    if not request.give_up_at:
        return None
    now_s = time.monotonic()
    wait_s = min(max(0.0, _monotonic_s(request.give_up_at) - now_s), MAX_WAIT_S)
    return now_s + wait_s + MAX_WINDOW_S + _WRITE_S


def _monotonic_s(moment: float) -> float:
    """Convert a Unix time to monotonic time, by the current difference of the two clocks."""
    return time.monotonic() + moment - time.time()


def _silent(rank: int) -> RankProfile:
    return RankProfile(rank=rank, state=RankState.FAILED, words=f"rank {rank} has not answered: {_WHY_NOT}")


def _late(profile: RankProfile) -> RankProfile:
    words = f"rank {profile.rank} did not end its window ({profile.state.value})"
    return replace(profile, state=RankState.FAILED, words=words)
