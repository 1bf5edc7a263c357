"""The preparation of a host: the tree, then channels and checkpoints in parallel with code and environment.

Where: the supervisor starts it after it has received its assignment, and aborts it if a stop comes before its end. Each
part is timed; the first failed part ends the preparation. A part that fetches is repeated while the object store does
not answer, for `FETCH_PATIENCE_S`: a restarted store does not end a job.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clary.agent.supervisor.steps import Steps
from clary.base.errors import ObjectStoreError

FETCH_PATIENCE_S = 120.0  # from a part's first failure until its last repetition
_PAUSE_S = 2.0  # between repetitions, each of which has tried every request for about half a minute

_Done = Callable[[Exception | None], None]
_JOIN_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    name: str  # name of the part in timings
    act: Callable[[], None]
    fetches: bool = False  # whether the part reads the object store and can be repeated


class Preparation:
    """Runs the steps of the preparation on threads of its own.

    Args:
        steps: the steps to run.
        on_timing: called with the name and duration of each successful part; from any thread.
        on_done: called once, from another thread, with None when the host is prepared, else with the first error.
            Not called after `abort`.
        on_wait: called with a sentence when the object store does not answer, once for each part; from any thread.
        beside: name -> further part, run in parallel with the channels.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        on_timing: Callable[[str, float], None],
        on_done: _Done,
        on_wait: Callable[[str], None] = lambda sentence: None,
        beside: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        self._steps = steps
        self._beside = [_Part(name, act) for name, act in (beside or {}).items()]
        self._on_timing = on_timing
        self._on_done = on_done
        self._on_wait = on_wait
        self._is_given_up = threading.Event()
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._run, name="preparation", daemon=True)

    def start(self) -> None:
        """Start the preparation."""
        self._thread.start()

    def abort(self) -> None:
        """Abort running parts without a report and without waiting."""
        self._is_given_up.set()
        self._steps.abort()

    def join(self, timeout_s: float = _JOIN_S) -> bool:
        """Wait for the threads to end; return whether they have."""
        deadline_s = time.monotonic() + timeout_s
        for thread in (self._thread, *self._threads):
            if thread.ident is not None:
                thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in (self._thread, *self._threads))

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self._prepare()
        except Exception as caught:  # noqa: BLE001 - boundary: agent supervisor; it tells what was raised
            error = caught
        if self._is_given_up.is_set():
            return
        if error is not None:
            self.abort()  # the other parts are no longer needed
        self._on_done(error)

    def _prepare(self) -> None:
        self._timed(_Part("tree", self._steps.build_tree))
        channels = {name: self._channel(name) for name in self._steps.channel_names}
        code = _Part("code", self._steps.fetch_code, fetches=True)
        program = [code, _Part("environment", self._steps.prepare_environment)]
        code_channel = channels.pop(self._steps.code_channel or "", None)
        if code_channel is not None:
            program.insert(0, code_channel)
        others = list(channels.values())
        if self._steps.checkpoints is not None:
            others.append(_Part("checkpoints", self._steps.restore_checkpoints, fetches=True))
        self._at_once([program, *([part] for part in (*others, *self._beside))])

    def _channel(self, name: str) -> _Part:
        return _Part(f"channel:{name}", lambda: self._steps.fetch_channel(name), fetches=True)

    def _at_once(self, chains: list[list[_Part]]) -> None:
        """Run chains of parts in parallel; raise the first error without waiting for other chains."""
        outcomes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def run(chain: list[_Part]) -> None:
            try:
                for part in chain:
                    if not self._is_given_up.is_set():
                        self._timed(part)
            except Exception as error:  # noqa: BLE001 - boundary: raised again below, in the thread that waits
                outcomes.put(error)
            else:
                outcomes.put(None)

        for chain in chains:
            thread = threading.Thread(target=run, args=(chain,), name=f"prepare-{chain[0].name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in chains:
            error = outcomes.get()  # no deadline here: each part has its own deadline, and a stop aborts all parts
            if error is not None:
                raise error

    def _timed(self, part: _Part) -> None:
        started_s = time.monotonic()
        if part.fetches:
            self._repeated(part)
        else:
            part.act()
        self._on_timing(part.name, time.monotonic() - started_s)

    def _repeated(self, part: _Part) -> None:
        """Run a part, again while the object store does not answer."""
        first_failed_s: float | None = None
        while True:
            try:
                part.act()
                return
            except ObjectStoreError as error:
                now_s = time.monotonic()
                if first_failed_s is None:
                    first_failed_s = now_s
                    if error.retryable and not self._is_given_up.is_set():
                        how = f"could not be fetched yet, and is fetched again for {FETCH_PATIENCE_S:.0f} s"
                        self._on_wait(f"{part.name} {how}: {error.message}")
                is_over = now_s - first_failed_s >= FETCH_PATIENCE_S
                if not error.retryable or is_over or self._is_given_up.wait(_PAUSE_S):
                    raise
                logger.warning("%s is fetched again: %s", part.name, error)
