"""Records of the programs of a rehearsal, which are kept after their hosts are removed.

Where: the engine keeps the files when it removes an attempt's hosts; a page of the service reads them. The program
could have replaced them by any file or link: no link is followed, only plain files are touched, and their content is
not trusted.
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Any

from clary.base.beneath import Folder
from clary.contract.rehearsals import RECORD_PREFIX, RECORD_SUFFIX, RECORDS_PARTS

MAX_FILES = 512  # of one host
MAX_FILE_BYTES = 17 * 1024 * 1024  # a little more than a program writes into one record
MAX_PAGE_BYTES = 64 * 1024 * 1024
_CUT = b'\n{"e": "full"}\n'  # the line that a program itself writes when its record is full
_ML_FOLDER = "ml"  # below a host's folder, as agents build it


def keep(host_folder: Path) -> None:
    """Move the records of a host next to its log, where they stay until the job is deleted; ignores errors of files."""
    records = "/".join((_ML_FOLDER, *RECORDS_PARTS))
    with contextlib.suppress(OSError), Folder.at(host_folder) as host:
        for name in sorted(host.names(records))[:MAX_FILES]:
            if stat.S_ISREG(host.status(f"{records}/{name}").st_mode) and name.endswith(RECORD_SUFFIX):
                host.rename(f"{records}/{name}", f"{RECORD_PREFIX}{name}")


def read(attempt_folder: Path) -> list[dict[str, Any]]:
    """Return the records of an attempt's hosts: host, name of the file, text. Blocks."""
    records, left = [], MAX_PAGE_BYTES
    for path in sorted(attempt_folder.glob(f"*/{RECORD_PREFIX}*{RECORD_SUFFIX}")):
        with contextlib.suppress(OSError):
            with Folder.at(path.parent) as host, open(host.open_file(path.name), "rb") as file:
                data = file.read(max(0, min(left, MAX_FILE_BYTES)))
                if file.read(1):
                    data += _CUT
            left -= len(data)
            name = path.name.removeprefix(RECORD_PREFIX)
            records.append({"host": path.parent.name, "name": name, "text": data.decode(errors="replace")})
    return records
