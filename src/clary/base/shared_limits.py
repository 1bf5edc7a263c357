"""Limits of the kernel on each user of a machine, of which the programs in a user namespace get a part.

Where: everything that makes the user namespace of a host's programs: `mapped_users`, `agent.host.init` and the anchor.
The kernel counts inotify instances and watches, queued signals and message queues of a namespace for the user who owns
the namespace, too: for root, if the service is root's. So without limits of its own one program could use up what the
kernel gives root: 128 inotify instances, on which udev, systemd and checkpoints of other jobs rely.
Source: user_namespaces(7), inotify(7), getrlimit(2); Linux, kernel/ucount.c (`inc_ucount`, `inc_rlimit_get_ucounts`).
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable

PART = 4  # a namespace gets a quarter of each limit
_LEAST_INSTANCES = 16  # enough for a few programs that watch files
_KINDS = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)
# Limit of the machine -> the limit of this process's user namespace.
_WATCHING = {
    "/proc/sys/fs/inotify/max_user_instances": "/proc/sys/user/max_inotify_instances",
    "/proc/sys/fs/inotify/max_user_watches": "/proc/sys/user/max_inotify_watches",
}


def enter_limited_users(unshare: Callable[[], object]) -> None:
    """Enter a new user namespace that gets a part of its owner's limits; this process's own limits stay.

    Where the kernel or a container refuses to write the limits of inotify (/proc/sys is read-only), they stay as well.

    Args:
        unshare: enters the namespace, with every capability in it.
    Raises: what `unshare` raises.
    """
    before = {kind: resource.getrlimit(kind) for kind in _KINDS}
    try:
        # A new namespace gets the limits of the process that makes it; they bound what its owner has in all.
        for kind, (soft, hard) in before.items():
            if soft != resource.RLIM_INFINITY:
                resource.setrlimit(kind, (soft // PART, hard))
        unshare()
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)
    for machine, own in _WATCHING.items():
        with contextlib.suppress(OSError, ValueError):
            with open(machine, "rb") as file:  # bytes: the codec of a text would be imported in the new namespace
                most = int(file.read())
            with open(own, "wb") as file:
                file.write(str(min(most, max(_LEAST_INSTANCES, most // PART))).encode())
