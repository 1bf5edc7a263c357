"""Detection of SIGTERM from outside of a host, by its first process.

Where: the keeper polls it while a program runs. A scheduler that ends a step, or an init system that ends a unit,
signals each process: the agent, the first process, and the program. So a signal to the first process implies that the
program has received one too. A signal that the program sends to the first process does not count; the kernel reports
the sender of a signal. A signal whose sender could be invented, as by sigqueue(3), counts as the program's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from clary.agent.host import kernel


class OutsideSignals:
    """Receives SIGTERM for this process, so that the signal no longer ends the process.

    Args:
        may_be_program: whether the process with this pid, in this process's namespace, may belong to the program.
    Raises: OSError: signals cannot be read; then SIGTERM is ignored, as before.
    """

    def __init__(self, may_be_program: Callable[[int], bool]) -> None:
        self._may_be_program = may_be_program
        self._descriptor = kernel.open_signals(signal.SIGTERM)
        # From here on signals stay pending until they are read. Spawned processes unblock them.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal is pending."""
        return self._descriptor

    def close(self) -> None:
        """Stop listening; signals stay pending."""
        os.close(self._descriptor)

    def take(self) -> bool:
        """Read all pending signals; return whether one of them came from outside."""
        return any(sender != kernel.UNKNOWN_SENDER and not self._may_be_program(sender) for sender in self._senders())

    def _senders(self) -> list[int]:
        senders = []
        while (sender := kernel.read_sender(self._descriptor)) is not None:
            senders.append(sender)
        return senders
