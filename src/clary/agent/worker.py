"""The background thread of the agent: rounds, one after the other, until it is stopped or aborted.

Where: most background threads of the agent are a `Worker`; the methods have the same meaning in every subclass.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_JOIN_S = 5.0
_VAIN_LOOK_S = 0.2

logger = logging.getLogger(__name__)


def never() -> bool:
    """Return False: waiting is never useless."""
    return False


class Worker:
    """A named daemon thread that calls `_round` until it returns None.

    Args:
        name: name of the thread.
        failure: logged, with the traceback, when a round raises; the thread ends then.
        act: does a round on behalf of the object that owns the Worker; subclasses override `_round` instead.
        first_pause_s: before the first round.

    Attributes:
        is_stopping: whether `stop` was called: rounds continue until the remaining work is done.
        is_aborted: whether `abort` was called: no further round begins.
        has_ended: whether the thread has ended.
    """

    def __init__(
        self, name: str, *, failure: str, act: Callable[[], float | None] | None = None, first_pause_s: float = 0.0
    ) -> None:
        self._failure = failure
        self._act = act
        self._first_pause_s = first_pause_s
        self._changed = threading.Condition()
        self._is_woken = False
        self.is_stopping = self.is_aborted = self.has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; may be called only once."""
        self._thread.start()

    def flush(self) -> None:
        """Begin the next round now; returns at once."""
        self._wake()

    def stop(self) -> None:
        """Begin the next round now and end after the rounds that finish the work; return at once."""
        self.is_stopping = True
        self._wake()

    def abort(self) -> None:
        """Begin no further round; return at once, harmless when repeated."""
        self.is_aborted = True
        self._wake()

    def join(self, timeout_s: float = _JOIN_S, *, is_vain: Callable[[], bool] = never) -> bool:
        """Wait for the thread; return whether it has ended, or was never started.

        Args:
            timeout_s: longest wait; abort a hanging call before `join`.
            is_vain: polled several times per second; returns whether to stop waiting.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.is_running and (left_s := deadline_s - time.monotonic()) > 0 and not is_vain():
            self._thread.join(left_s if is_vain is never else min(left_s, _VAIN_LOOK_S))
        return not self.is_running

    def close(self, timeout_s: float = _JOIN_S) -> bool:
        """Abort and join; return whether the thread has ended. In the thread itself, only abort and return True."""
        self.abort()
        return threading.current_thread() is self._thread or self.join(timeout_s)

    def finish(self, limit_s: float) -> bool:
        """Stop and join; abort after `limit_s`. Return whether it ended by itself."""
        self.stop()
        has_ended = self.join(limit_s)
        if not has_ended:
            self.abort()
        return has_ended

    @property
    def is_running(self) -> bool:
        """Whether the thread has begun and not ended."""
        return self._thread.is_alive()

    def pause(self, seconds: float) -> bool:
        """Wait `seconds` within a round, or less after a `flush`, `stop` or `abort`; False after `abort`.

        The next round still begins at once after such a call: only the wait before a round uses it up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken, seconds)
            return not self.is_aborted

    def _round(self) -> float | None:
        """Do one round; return the seconds until the next one, None to end."""
        assert self._act is not None
        return self._act()

    def _on_failure(self, error: Exception) -> None:
        """React to an error that ends the rounds; called from the thread. Does nothing unless overridden."""

    def _on_end(self) -> None:
        """Free the resources of the rounds; the thread calls it last."""

    def _rest(self, seconds: float) -> bool:
        """Wait `seconds` before a round, or less after a `flush`, `stop` or `abort` since the last such wait."""
        with self._changed:
            may_go_on = self.pause(seconds)
            self._is_woken = self.is_aborted
            return may_go_on

    def _wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _run(self) -> None:
        pause_s: float | None = self._first_pause_s
        try:
            while pause_s is not None and self._rest(pause_s):
                pause_s = self._round()
        except Exception as error:  # boundary: background threads; their errors must not end the program or the host
            logger.exception("%s", self._failure)
            self._on_failure(error)
        finally:
            try:
                self._on_end()
            except Exception:  # boundary: as above
                logger.exception("%s", self._failure)
            with self._changed:
                self.has_ended = True
                self._changed.notify_all()
