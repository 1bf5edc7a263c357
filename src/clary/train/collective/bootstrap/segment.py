"""Memory that the ranks of one host share: its first rank creates it without a name and sends its descriptor.

Where: `group.connect_group` calls these functions once the side streams are connected. The kernel frees the memory when
the last process that holds it ends, however it ends, so no cleanup is needed. Source: memfd_create(2), fcntl(2) on
seals.
"""

from __future__ import annotations

import fcntl
import os
import sys

from clary.train._native.errors import BootstrapError

_HEADER_BYTES = 65536  # header of the segment
_RANK_BYTES = 4096  # per rank: its counter and its state
_SLOTS_OF_RANK = 3  # two for staging, one for results
_ROUNDING_BYTES = 2 << 20  # a large page


def segment_bytes(ranks_on_host: int, slot_bytes: int) -> int:
    """Return the size of a host's segment, as the core computes it (`clary_segment_bytes`)."""
    needed = _HEADER_BYTES + ranks_on_host * (_RANK_BYTES + _SLOTS_OF_RANK * slot_bytes)
    return -(-needed // _ROUNDING_BYTES) * _ROUNDING_BYTES


def create_segment(num_bytes: int) -> int:
    """Return a descriptor of zeroed memory, sealed against changes of its size.

    A peer that could shrink the memory would kill all other ranks with SIGBUS.
    Raises: OSError.
    """
    assert sys.platform == "linux", "only there do ranks share a host (hosts.HAS_SHARED_MEMORY)"
    descriptor = os.memfd_create("clary-collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_segment(descriptor: int, num_bytes: int, *, leader: int) -> None:
    """Refuse a descriptor that has another size or is not sealed against shrinking.

    Args:
        descriptor: descriptor from the leader, which is not trusted.
        num_bytes: required size of the memory.
        leader: rank that sent it.
    Raises: BootstrapError naming the sender; the descriptor stays open.
    """
    assert sys.platform == "linux", "only there do ranks share a host (hosts.HAS_SHARED_MEMORY)"
    try:
        size = os.fstat(descriptor).st_size
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise BootstrapError(f"rank {leader} handed over no shared memory: {error.strerror}", culprit=leader) from error
    if size != num_bytes or not seals & fcntl.F_SEAL_SHRINK:
        raise BootstrapError(
            f"rank {leader} handed over {size} bytes of memory with seals {seals:#x}; expected {num_bytes} bytes "
            f"sealed against shrinking. Do all ranks run the same version of Clary?",
            culprit=leader,
        )
