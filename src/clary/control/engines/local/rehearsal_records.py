"""What programs of a rehearsal wrote down, kept beyond their hosts.

Where: the engine keeps the files when it takes an attempt's hosts away; a page of the service reads them. They lie
where the program could put anything in their place: no link is followed, nothing but plain files is touched, and
nothing is believed of them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clary.contract.rehearsals import RECORD_PREFIX, RECORD_SUFFIX, RECORDS_PARTS

MAX_FILES = 512  # of one host
MAX_FILE_BYTES = 17 * 1024 * 1024  # a little more than a program writes into one
MAX_PAGE_BYTES = 64 * 1024 * 1024
_CUT = b'\n{"e": "full"}\n'  # what a program says itself whose record ends before it does
_ML_FOLDER = "ml"  # below a host's folder, as agents build it


def keep(host_folder: Path) -> None:
    """Put the records of a host beside its logs, where they stay until the job is deleted; never raises."""
    with contextlib.suppress(OSError), _opened(host_folder / _ML_FOLDER, RECORDS_PARTS) as folder:
        for name in sorted(os.listdir(folder))[:MAX_FILES]:
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode) and name.endswith(RECORD_SUFFIX):
                os.rename(name, host_folder / f"{RECORD_PREFIX}{name}", src_dir_fd=folder)


def read(attempt_folder: Path) -> list[dict[str, Any]]:
    """Return the records of an attempt's hosts: host, name of the file, text. Blocks."""
    records, left = [], MAX_PAGE_BYTES
    for path in sorted(attempt_folder.glob(f"*/{RECORD_PREFIX}*{RECORD_SUFFIX}")):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    continue
                data = file.read(max(0, min(left, MAX_FILE_BYTES)))
                if file.read(1):
                    data += _CUT
            left -= len(data)
            name = path.name.removeprefix(RECORD_PREFIX)
            records.append({"host": path.parent.name, "name": name, "text": data.decode(errors="replace")})
    return records


@contextlib.contextmanager
def _opened(top: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a folder of the program's, following no link on the way."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(top, flags)
    try:
        for part in parts:
            inner = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)
