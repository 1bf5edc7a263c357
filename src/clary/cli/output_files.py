"""Checks the places that a command writes to at its end before the command begins its work.

Where: `rehearse --certificate` and `profile --output`, whose work takes minutes or days.
"""

from __future__ import annotations

import os
from pathlib import Path

from clary.base.errors import ClaryError, Fault

EXIT_UNWRITTEN = 73  # EX_CANTCREAT of sysexits.h: the work is done and printed, but its file could not be written


def check_file(path: Path, option: str) -> None:
    """Check that a file can be written; leave an existing file as it is, and make no new one.

    Raises: ClaryError (fault USER) naming the option and the reason.
    """
    is_new = not path.exists()
    if not is_new and not path.is_file() and not path.is_dir():
        return  # a pipe or a device: opening it can have effects of its own
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise _refusal(path, option, error, "name a file in a folder that exists") from error


def make_folder(path: Path, option: str) -> None:
    """Make a folder, with its parents, that files can be written to. Raises: as `check_file`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise _refusal(path, option, error, "name a folder of your own") from error


def write_file(path: Path, text: str) -> str:
    """Write a file; return why that failed, or an empty text. No part of a file stays after a failure."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if path.is_file():
            path.unlink(missing_ok=True)
        return error.strerror or str(error)
    return ""


def _refusal(path: Path, option: str, error: OSError, advice: str) -> ClaryError:
    return ClaryError(f"{option} {path}: cannot be written: {error.strerror or error}; {advice}", fault=Fault.USER)
