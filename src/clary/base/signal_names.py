"""Names of signals in messages.

Where: agents report processes that a signal ended; the service names them in FailureReason.
"""

from __future__ import annotations

import signal


def signal_name(signum: int | None) -> str:
    """Return `signal 9 (SIGKILL)` for 9, and `signal 77` for 77, as for any number without a name on this system."""
    try:
        return f"signal {signum} ({signal.Signals(signum or 0).name})"
    except ValueError:
        return f"signal {signum}"
