"""Signals and pipes of the processes of a program, read from /proc.

Where: the keeper reads them when it stops a program. A process whose descriptors cannot be read, because it is another
user's, counts as a process without pipes; an ended process is left out.
Source: proc(5): SigBlk, SigIgn, SigCgt of /proc/PID/status; the mode of a link in /proc/PID/fd shows how the file was
opened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Mapping

from clary.agent.host.stopping.stop_policy import ProcessView
from clary.base.processes import ProcessEntry

_PIPE = "pipe:["
_OUTPUTS = ("1", "2")  # standard output and standard error
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


def read_views(entries: Mapping[int, ProcessEntry]) -> list[ProcessView]:
    """Return a view of each process, except processes that have ended meanwhile."""
    views = []
    for pid, entry in entries.items():
        with contextlib.suppress(OSError):
            name, dies_of_sigterm = _read_status(pid)
            reads, prints_to = _read_pipes(pid)
            views.append(
                ProcessView(
                    pid=pid,
                    parent=entry.parent,
                    name=name,
                    dies_of_sigterm=dies_of_sigterm,
                    reads=reads,
                    prints_to=prints_to,
                )
            )
    return views


def _read_status(pid: int) -> tuple[str, bool]:
    """Return the command name and whether SIGTERM ends the process."""
    name, cared_for = "", 0
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == "Name":
                name = value.strip()
            elif key in ("SigBlk", "SigIgn", "SigCgt"):
                cared_for |= int(value, 16)
    return name, not cared_for & _SIGTERM_BIT


def _read_pipes(pid: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return the inodes of pipes that the process only reads, and of pipes to which it prints."""
    reads: set[int] = set()
    writes: set[int] = set()
    prints_to: set[int] = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed meanwhile
                path = f"{folder}/{name}"
                target = os.readlink(path)
                if not target.startswith(_PIPE):
                    continue
                inode, mode = int(target[len(_PIPE) : -1]), os.lstat(path).st_mode
                if mode & stat.S_IRUSR:
                    reads.add(inode)
                if mode & stat.S_IWUSR:
                    writes.add(inode)
                    if name in _OUTPUTS:
                        prints_to.add(inode)
    return frozenset(reads - writes), frozenset(prints_to)
