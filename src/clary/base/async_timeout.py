"""`asyncio.timeout` for every Python that imports this package.

Where: the agent runs on machines whose Python may be 3.10; `asyncio.timeout` came with 3.11.
"""

from __future__ import annotations

import sys

__all__ = ["timeout"]

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    import asyncio
    from types import TracebackType

    class timeout:
        """The part of `asyncio.timeout` that Clary uses: raises TimeoutError if its block runs longer than `delay`.

        Args:
            delay: seconds.
        """

        def __init__(self, delay: float) -> None:
            self._delay = delay
            self._is_expired = False

        async def __aenter__(self) -> timeout:  # noqa: PYI034 - nobody derives from it
            """Start the timer."""
            self._task = asyncio.current_task()
            self._handle = asyncio.get_running_loop().call_later(self._delay, self._expire)
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            """Stop the timer. Raises: TimeoutError if the block was cancelled because of the timeout."""
            self._handle.cancel()
            if self._is_expired and kind is asyncio.CancelledError:
                raise TimeoutError from error

        def _expire(self) -> None:
            self._is_expired = True
            if self._task is not None:
                self._task.cancel()
