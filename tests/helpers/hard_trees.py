"""Trees as killed hosts leave them, which `shutil.rmtree` does not remove, and a user without rights over others'."""

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

DEPTH = 1500  # more than a function may recurse
_PLAIN_USER = 65534


def grow_hard_to_remove(folder):
    """Make folders deeper than a function may recurse, one that denies its owner access, and one that is read-only."""
    closed = folder / "work" / "work"
    (closed / "inner").mkdir(parents=True)
    (closed / "inner" / "file").touch()
    (closed / "inner").chmod(0)
    closed.chmod(0)
    (folder / "readonly" / "inner").mkdir(parents=True)
    (folder / "readonly" / "file").touch()
    (folder / "readonly").chmod(0o500)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@contextlib.contextmanager
def plain_user_folder():
    """Yield a new folder in which this process has the rights of a user without privileges until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="clary-hard-trees-"))
    try:
        if os.geteuid() != 0:
            yield folder
            return
        os.chown(folder, _PLAIN_USER, _PLAIN_USER)
        os.seteuid(_PLAIN_USER)
        try:
            yield folder
        finally:
            os.seteuid(0)
    finally:
        subprocess.run(["/bin/rm", "-rf", str(folder)], check=False)
