"""Last signs of life of hosts whose agents have ended, from the files that they wrote.

Where: the engine reports them for dead hosts. A service that finds hosts dead when it starts learns from them how long
they outlived the service before it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from clary.contract.launch_plan import LaunchPlan

MOST_FILES = 2000  # of a host that are looked at
DEPTH = 3  # folders below a host's own: its agent's files, and the folders that its program sees


def last_signs(plan: LaunchPlan, hosts: Iterable[str]) -> dict[str, datetime]:
    """Return host -> time of the newest change of its files, at most the present; hosts without files are omitted.

    Args:
        plan: plan of the attempt that the hosts served.
        hosts: names of hosts.
    """
    now_s = datetime.now(UTC).timestamp()
    signs = {}
    for host in hosts:
        times_s = [
            time_s for folder in _folders(plan) for time_s in _changes(Path(folder) / host) if 0 <= time_s <= now_s
        ]
        if times_s:
            signs[host] = datetime.fromtimestamp(max(times_s), UTC)
    return signs


def _folders(plan: LaunchPlan) -> list[str]:
    return [folder for folder in dict.fromkeys((plan.pool_folder, plan.work_folder)) if folder]


def _changes(folder: Path) -> Iterator[float]:
    """Yield the times at which files and folders were changed; links are not followed."""
    left = MOST_FILES
    waiting = [(folder, 0)]
    while waiting and left > 0:
        place, depth = waiting.pop()
        try:
            with os.scandir(place) as entries:
                seen = list(itertools.islice(entries, left))  # a program may have made millions
        except OSError:
            continue
        left -= len(seen)
        for entry in seen:
            try:
                yield entry.stat(follow_symlinks=False).st_mtime
                if depth < DEPTH and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
            except OSError:
                continue
