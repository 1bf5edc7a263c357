"""One process set: takes requests from any thread, agrees with the other ranks on the ready requests, and runs them.

All ranks take part in *rounds*. A round is one small all-reduce of ballots (`ballots`), messages if ranks have
different news, the decision (`readiness`), and the operations that are ready (`operations`). A rank enters a round once
it has submitted a request. An idle rank enters one every `IDLE_ROUND_S`, so that no rank waits longer for it. A thread
that waits for a result drives the rounds itself if no other thread does, which saves two thread switches.
Otherwise a thread of the engine drives them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clary.train._native.errors import CollectiveError
from clary.train._native.interface import Dtype, ReduceOp
from clary.train.collective.communicator import Communicator
from clary.train.horovod import fusion
from clary.train.horovod.ballots import News, Outcome, decode_news, encode_news, read_ballot, write_ballot
from clary.train.horovod.errors import HorovodInternalError
from clary.train.horovod.operations import Operations
from clary.train.horovod.readiness import Readiness, Ready, Verdict
from clary.train.horovod.requests import Description, Handle, Request, Verb
from clary.train.horovod.settings import HorovodSettings
from clary.train.horovod.timeline import Timeline

IDLE_ROUND_S = 2.0  # interval at which an idle rank joins a round
_MAX_PAUSE_S = 0.02  # longest pause between rounds in which no tensor was ready
_SINGLE_HOST_BYTES = 32 << 10  # larger tensors are not fused if ranks share memory: the copy costs more than it saves
_SEVERAL_HOSTS_BYTES = 4 << 20
_CLOSE_LIMIT_S = 10.0
_MAX_NEWS_BYTES = 64 << 20  # news of one rank in one round; a new tensor takes some 100 bytes
_TURN_S = 0.05  # interval of checks whether another thread drives
_SPECIAL_VERBS = (Verb.ADD_PROCESS_SET, Verb.REMOVE_PROCESS_SET)
_LOG = logging.getLogger("horovod")


@dataclass(slots=True)
class _Entry:
    """A request under way."""

    request: Request
    since: float
    is_announced: bool = False  # whether this rank has announced it


class Engine:
    """The requests of one process set on one of its ranks.

    Args:
        group: group of the set's ranks; the engine owns it from here on.
        ranks: global ranks, in the order of `group`.
        is_single_host: whether all ranks share a host.
        on_special: runs the verbs that add or remove process sets, on all ranks at once.
        starts_thread: False in tests that drive rounds themselves.
    """

    def __init__(
        self,
        group: Communicator,
        *,
        ranks: Sequence[int],
        settings: HorovodSettings,
        is_single_host: bool = True,
        on_special: Callable[[Description], None] | None = None,
        starts_thread: bool = True,
    ) -> None:
        self.group = group
        self.ranks = tuple(ranks)
        self.timeline: Timeline | None = None
        self._settings = settings
        self._single_bytes = _SINGLE_HOST_BYTES if is_single_host else _SEVERAL_HOSTS_BYTES
        self._on_special = on_special
        self._readiness = Readiness(group.size, settings.cache_capacity)
        self._operations = Operations(group)
        self._entries: dict[str, _Entry] = {}
        self._num_waiting = 0  # threads in `wait`
        self._num_nameless: dict[str, int] = {}
        self._joining: Handle | None = None
        self._has_told_join = False
        self._last_joined = -1
        self._changed = threading.Condition()
        self._driving = threading.Lock()
        self._pause_s = settings.cycle_s
        self._round_at_s = time.monotonic()  # end of the last round
        self._warned_at = 0.0
        self._cause: Exception | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if starts_thread:
            self._thread = threading.Thread(target=self._run, name="horovod", daemon=True)
            self._thread.start()

    # Requests

    def make_name(self, verb: str) -> str:
        """Return a name for a nameless operation: all ranks call nameless operations in the same order."""
        with self._changed:
            number = self._num_nameless[verb] = self._num_nameless.get(verb, -1) + 1
        return f"{verb}.noname.{number}"

    def submit(self, requests: Sequence[Request], *, wakes_thread: bool = True) -> None:
        """Add requests; one round announces all requests of a call.

        Args:
            wakes_thread: False if the caller waits for the requests at once, and so drives the rounds itself.

        Raises:
            ValueError: a request of the same name is under way or in the call; no request of the call is added.
            HorovodInternalError: the engine has ended; the text names the cause.
        """
        now = time.monotonic()
        with self._changed:
            self._check_alive()
            added: dict[str, _Entry] = {}
            for request in requests:
                if request.name in self._entries:
                    raise ValueError(
                        f"duplicate tensor name {request.name!r}: an operation of this name is under way on rank "
                        f"{self.group.rank}; wait for it, or give each tensor a name of its own"
                    )
                if request.name in added:
                    raise ValueError(
                        f"duplicate tensor name {request.name!r}: one call gives it to two tensors on rank "
                        f"{self.group.rank}; give each tensor a name of its own"
                    )
                added[request.name] = _Entry(request, now)
            self._entries.update(added)
            if wakes_thread:
                self._changed.notify_all()

    def join(self) -> int:
        """Take part in the all-reduces of the other ranks with zeros until all ranks have joined.

        Returns: the rank that joined last.
        Raises: HorovodInternalError; ValueError while another thread of this rank waits in `join`.
        """
        handle = Handle()
        with self._changed:
            self._check_alive()
            if self._joining is not None:
                raise ValueError("join is under way in another thread of this rank")
            self._joining, self._has_told_join = handle, False
        self.wait([handle])
        return self.ranks[self._last_joined]

    def wait(self, handles: Sequence[Handle]) -> None:
        """Wait until all requests have ended; drive rounds if no other thread does.

        Raises: HorovodInternalError, the error of the first failed request.
        """
        with self._changed:
            self._num_waiting += 1
        try:
            self._await(handles)
        finally:
            with self._changed:
                self._num_waiting -= 1
                # the engine's thread left the entries to the waiting threads
                if self._entries and not self._num_waiting:
                    self._changed.notify_all()
        for handle in handles:
            if handle.error is not None:
                raise handle.error

    def _await(self, handles: Sequence[Handle]) -> None:
        while not all(handle.is_done for handle in handles):
            if self._driving.acquire(blocking=False):
                try:
                    self._drive(lambda: all(handle.is_done for handle in handles))
                finally:
                    self._driving.release()
                with self._changed:
                    if self._entries:
                        self._changed.notify_all()
                continue
            with self._changed:
                if not all(handle.is_done for handle in handles):
                    self._changed.wait(_TURN_S)

    def close(self, reason: str) -> None:
        """Leave the group; requests under way fail with `reason`. A second call does nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        if self._entries or self._joining:  # ends a round that waits for peers, which would last until its timeout
            self.group.abort(reason)
        has_turn = self._driving.acquire(timeout=_CLOSE_LIMIT_S)
        try:
            self.group.close()
        finally:
            if has_turn:
                self._driving.release()
        self._fail_all(HorovodInternalError(reason))
        timeline = self.timeline
        if timeline is not None:
            timeline.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_LIMIT_S)

    # Rounds

    def _run(self) -> None:
        """Drive rounds for requests without a waiting thread, until the engine is closed or the group has failed.

        It pauses before each round, so that requests submitted shortly after each other share a round.
        """
        while True:
            with self._changed:
                if (self._num_waiting or not self._has_work()) and self._is_alive():
                    self._changed.wait(max(_TURN_S, self._idle_round_in_s()))
                if not self._is_alive():
                    return
                has_work = self._has_work()
            if has_work:
                time.sleep(self._settings.cycle_s)
            if self._num_waiting or has_work != self._has_work():  # a waiting thread drives the rounds
                continue
            if not has_work and self._idle_round_in_s() > 0:  # woken without work: a round now would only delay peers
                continue
            with self._driving:
                self._drive(lambda: True, at_least_once=True)
            with self._changed:
                self._changed.notify_all()

    def _idle_round_in_s(self) -> float:
        return self._round_at_s + IDLE_ROUND_S - time.monotonic()

    def _is_alive(self) -> bool:
        return not self._is_closed and self._cause is None

    def _has_work(self) -> bool:
        return bool(self._entries) or self._joining is not None

    def _drive(self, is_over: Callable[[], bool], *, at_least_once: bool = False) -> None:
        """Run rounds until `is_over`, with a pause after each round without progress. The caller holds `_driving`."""
        while (at_least_once or not is_over()) and not self._is_closed and self._cause is None:
            at_least_once = False
            try:
                has_happened = self._round()
            except CollectiveError as error:
                self._end(HorovodInternalError(f"rank {self.group.rank}: {error}"))
            except Exception as error:  # noqa: BLE001 - reaches everyone who waits, and ends the group for the others
                self.group.abort(f"rank {self.group.rank} failed: {error!r}")
                self._end(HorovodInternalError(f"rank {self.group.rank}: {error!r}"))
            else:
                self._pause_s = self._settings.cycle_s if has_happened else min(self._pause_s * 2, _MAX_PAUSE_S)
                if not has_happened and not is_over():
                    with self._changed:
                        self._changed.wait(self._pause_s)

    def _round(self) -> bool:
        """Take part in one round; return whether any tensor was ready or any rank had news."""
        timeline = self.timeline  # read once, since another thread may stop it at any time
        if timeline is not None:
            timeline.round_begins()
        news, mask = self._own_news()
        message = encode_news(news) if news else b""
        ballot = write_ballot(message, mask, self._readiness.num_indices)
        self.group.all_reduce(ballot, op=ReduceOp.BAND, dtype=Dtype.UINT8, timeout_s=self._settings.timeout_s)
        outcome = read_ballot(ballot)
        verdict = self._readiness.decide(self._all_news(outcome, news, message), outcome.ready_mask)
        self._tell_overdue(verdict)
        for batch in fusion.plan(
            verdict.ready, max_bytes=self._settings.fusion_bytes, max_single_bytes=self._single_bytes
        ):
            self._run_batch(batch)
        if verdict.last_joined is not None:
            self._end_join(verdict.last_joined)
        self._round_at_s = time.monotonic()
        return bool(verdict.ready) or outcome.has_news

    def _own_news(self) -> tuple[News, int]:
        """Return this rank's news, and the bits of the known tensors that it has submitted: all bits after `join`."""
        announced, mask, overdue = [], 0, []
        now = time.monotonic()
        is_time_to_warn = now - self._warned_at > self._settings.stall_warning_s
        with self._changed:
            for name, entry in self._entries.items():
                index = self._readiness.index_of(name, entry.request.description)
                if index is not None:
                    mask |= 1 << index
                elif not entry.is_announced:
                    announced.append((name, entry.request.is_nameless, entry.request.description))
                    entry.is_announced = True
                if is_time_to_warn and now - entry.since > self._settings.stall_warning_s:
                    overdue.append(name)
                if now - entry.since > self._settings.stall_limit_s:
                    raise HorovodInternalError(
                        f"tensor {name!r} has waited for {now - entry.since:.0f} s, more than "
                        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS allows"
                    )
            tells_join = self._joining is not None and not self._has_told_join
            if self._joining is not None and self._has_told_join:
                mask = (1 << self._readiness.num_indices) - 1  # it contributes zeros to every tensor
            self._has_told_join = self._joining is not None
        if overdue:
            self._warned_at = now
        return News(tells_join, tuple(announced), tuple(overdue)), mask

    def _all_news(self, outcome: Outcome, news: News, message: bytes) -> list[News]:
        """Return the news of all ranks; exchange messages only if they differ."""
        if not outcome.has_news:
            return []
        if outcome.is_same:
            return [news] * self.group.size
        lengths = memoryview(bytearray(8 * self.group.size)).cast("q")
        self.group.all_gather(memoryview(bytearray(len(message).to_bytes(8, "little"))).cast("q"), lengths)
        for rank, length in enumerate(lengths):
            if not 0 <= length <= _MAX_NEWS_BYTES:
                raise HorovodInternalError(
                    f"rank {self.ranks[rank]} announces news of {length} bytes, at most {_MAX_NEWS_BYTES} are allowed: "
                    f"do all ranks run the same version of Clary?"
                )
        longest = max(lengths)
        padded = bytearray(message.ljust(longest, b" "))
        everything = bytearray(longest * self.group.size)
        self.group.all_gather(padded, everything)
        parts = [bytes(everything[rank * longest : rank * longest + lengths[rank]]) for rank in range(self.group.size)]
        return [self._news_of(rank, part) if part else News() for rank, part in enumerate(parts)]

    def _news_of(self, rank: int, message: bytes) -> News:
        try:
            return decode_news(message)
        except (ValueError, TypeError, RecursionError) as error:
            raise HorovodInternalError(
                f"rank {self.ranks[rank]} sent {len(message)} bytes that are not news of its tensors: {error}. Do all "
                f"ranks run the same version of Clary?"
            ) from error

    def _run_batch(self, batch: Sequence[Ready]) -> None:
        """Run a batch, and wake the threads that wait for it."""
        entries = [self._entries.get(one.name) for one in batch]
        timeline = self.timeline  # read once, since another thread may stop it at any time
        for one, entry in zip(batch, entries, strict=True):
            if timeline is not None and entry is not None:
                timeline.negotiated(one.name, one.description.verb, entry.since)
        begun = time.monotonic()
        error: Exception | None = None
        requests = [None if entry is None else entry.request for entry in entries]
        if batch[0].refusal:
            error = HorovodInternalError(f"tensor {batch[0].name!r}: {batch[0].refusal}")
        elif batch[0].description.verb in _SPECIAL_VERBS and self._on_special is not None:
            self._on_special(batch[0].description)
        else:
            self._operations.run(batch, requests)
        if timeline is not None:
            for one in batch:
                timeline.ran(one.name, one.description.verb, begun)
        with self._changed:
            for one, request in zip(batch, requests, strict=True):
                if request is not None:
                    del self._entries[one.name]
                    request.handle.error = error
                    request.handle.is_done = True
            self._changed.notify_all()

    def _end_join(self, last: int) -> None:
        with self._changed:
            handle, self._joining, self._last_joined = self._joining, None, last
            if handle is not None:
                handle.is_done = True
            self._changed.notify_all()

    def _tell_overdue(self, verdict: Verdict) -> None:
        """Log overdue tensors on the first rank of the set alone, since all ranks have the same verdict."""
        if not verdict.overdue or self.group.rank != 0:
            return
        for name, missing in verdict.overdue.items():
            who = ", ".join(str(self.ranks[rank]) for rank in missing) or "none"
            _LOG.warning(
                "tensor %r has waited for more than %g s: ranks that have not submitted it: %s. Have all ranks "
                "submit the same tensors, or call join where one has no more data",
                name,
                self._settings.stall_warning_s,
                who,
            )

    # Ends

    def _check_alive(self) -> None:
        if self._cause is not None:
            raise HorovodInternalError(str(self._cause)) from self._cause
        if self._is_closed:
            raise HorovodInternalError("Horovod has been shut down: call init first")

    def _end(self, error: Exception) -> None:
        """Keep `error` as the cause unless there is an earlier cause; all requests under way fail with `error`."""
        with self._changed:
            self._cause = self._cause or error
        self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            handles = [entry.request.handle for entry in self._entries.values()]
            handles += [self._joining] if self._joining is not None else []
            self._entries.clear()
            self._joining = None
            for handle in handles:
                handle.error = handle.error or error
                handle.is_done = True
            self._changed.notify_all()
