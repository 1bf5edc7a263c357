"""Moves a thread and its children into another process's network namespace, to reach a service there.

Where: tests/cluster and benchmarks/machines, whose services run on the head of a simulated cluster. Needs root.

Source: setns(2).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from clary.control.engines.local.network import namespaces


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Run this thread and its children in the network of a process, until the block ends."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.setns(other, namespaces.CLONE_NEWNET)
        yield
    finally:
        namespaces.setns(own, namespaces.CLONE_NEWNET)
        os.close(own)
        os.close(other)
