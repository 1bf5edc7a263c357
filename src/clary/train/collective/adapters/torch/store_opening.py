"""Has ranks wait until the store of rank 0 listens, before torch connects to it.

Where: `registration.autoload` installs it at the end of `import torch`. A client of torch's TCPStore that finds no
listener tries again half a second later. Ranks that are forked at the same moment arrive within milliseconds of each
other, so that the first collective of such a job came half a second late.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import time
from datetime import timedelta
from typing import Any

LIMIT_S = 30.0  # afterwards torch tries by itself, with its own limit and its own error
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_CONNECT_LIMIT_S = 1.0
_MODULE = "torch.distributed.rendezvous"
_FUNCTION = "_create_c10d_store"  # (hostname, port, rank, world_size, timeout, ...), torch 2.0 to 2.13


def install() -> None:
    """Wrap torch's function that makes stores for `init_process_group`; a torch without it stays as it is."""
    module = sys.modules.get(_MODULE)
    create = getattr(module, _FUNCTION, None)
    if create is None or hasattr(create, "clary_waits"):
        return

    @functools.wraps(create)
    def create_once_open(hostname: str, port: int, rank: int, *rest: Any, **named: Any) -> Any:
        if rank != 0:
            limits = [one.total_seconds() for one in (*rest, *named.values()) if isinstance(one, timedelta)]
            wait_until_open(hostname, port, limit_s=min(LIMIT_S, *limits))
        return create(hostname, port, rank, *rest, **named)

    create_once_open.clary_waits = True  # type: ignore[attr-defined]
    setattr(module, _FUNCTION, create_once_open)


def wait_until_open(hostname: str, port: int, *, limit_s: float = LIMIT_S) -> bool:
    """Wait until something listens at an address; return whether it does.

    Args:
        hostname: name or address of the host.
        port: its TCP port; port 0 cannot be connected to, and is tried only once.
        limit_s: seconds after which no further attempt begins.
    """
    deadline_s = time.monotonic() + limit_s
    pause_s = _FIRST_PAUSE_S
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((hostname, port), timeout=_CONNECT_LIMIT_S).close()
            return True
        if not port or time.monotonic() + pause_s > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
