"""A file of the state folder is deleted, emptied, cut in half or overwritten, as a person or a disk would do it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from clary.testing.faults.fault_plan import Fault, Ruin

WAIT_S = 30.0  # longest time for repairs that a running service must make by itself
POLL_S = 0.05


class BrokenPromise(Exception):
    """The service did not handle damage as promised."""


def ruin(path: Path, fault: Fault) -> bool:
    """Damage a file as the plan says; return whether it existed. Random bytes follow from the fault's number."""
    try:
        size = path.stat().st_size
        if fault.ruin is Ruin.DELETED:
            path.unlink()
            return True
        with path.open("r+b") as file:
            if fault.ruin is Ruin.GARBLED:
                file.write(noise(fault, size))
            else:
                file.truncate(size // 2 if fault.ruin is Ruin.HALVED else 0)
    except FileNotFoundError:
        return False
    return True


def noise(fault: Fault, size: int) -> bytes:
    """Return bytes that are not valid text."""
    return (b"\xff" + random.Random(fault.number).randbytes(max(size - 1, 0)))[:size]


def wait_until(condition: Callable[[], bool], promise: str) -> None:
    """Wait for a condition; after WAIT_S, raise BrokenPromise with the promise."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise BrokenPromise(f"{promise}: not within {WAIT_S:g} s")
        time.sleep(POLL_S)


def put_aside(paths: list[Path], folder: Path) -> Callable[[], None]:
    """Copy the files that exist; return a function that restores them and removes the files that did not exist."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in paths:
        if path.exists():
            shutil.copy2(path, folder / path.name)

    def put_back() -> None:
        for path in paths:
            path.unlink(missing_ok=True)
            if (folder / path.name).exists():
                shutil.copy2(folder / path.name, path)

    return put_back
