"""Command that asks another environment's interpreter about its packages without running hooks that these planted.

Where: the service and agents ask interpreters that jobs use, with their own rights and outside every host. Python runs
hooks of an environment at its start: lines of .pth files that begin with `import`, sitecustomize and usercustomize. So
whoever can write one file into the environment's folder of packages would have these rights. Programs cannot write
there (`agent.host.mounts`), except in plain processes; this is the second barrier. It does not hold against a replaced
interpreter or standard library. A file `NAME._pth` beside an interpreter NAME replaces its standard library whatever
its options are, so such an interpreter is not asked.

Packages that only such hooks make importable (some editable installs) are not found; folders named in .pth files are.
Source: documentation of `site`; the order of its steps is that of `site.main` in Python 3.8 to 3.14. `getpath.py` of
Python 3.11 and later reads the files `._pth`.
"""

from __future__ import annotations

import errno
import os

PATH_FILE_ENDING = "._pth"
_MAX_LINKS = 40  # the kernel's own limit

# Runs with -S, so `site` has done nothing yet. `site.main` finds the environment's folders by the functions replaced.
_START = """
import os, site, sys

def _add_folders(folder, name, known):
    try:
        with open(os.path.join(folder, name), errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return known
    for line in map(str.strip, lines):
        if line and not line.startswith(("#", "import ", "import\\t")):
            path = os.path.abspath(os.path.join(folder, line))
            if path not in sys.path and os.path.exists(path):
                sys.path.append(path)
    return known

sys.path[:] = filter(None, sys.path)  # without the current folder
site.addpackage = _add_folders
site.execsitecustomize = site.execusercustomize = lambda: None
site.main()
"""


def hookless_command(python: str, code: str, *arguments: str, isolated: bool = True) -> list[str]:
    """Return the command that runs `code` in an environment without its hooks.

    Args:
        python: the environment's interpreter, Python 3.8 or later.
        code: text of the program.
        arguments: its `sys.argv[1:]`.
        isolated: whether to ignore PYTHON* variables, the current folder and the user's own packages.
    Raises: PermissionError if a file beside the interpreter could replace its standard library.
    """
    found = _path_file(python)
    if found:
        raise PermissionError(
            errno.EPERM, f"it is not asked, because {found} can replace its standard library; remove this file", python
        )
    return [python, *(("-I",) if isolated else ()), "-S", "-c", _START + code, *arguments]


def _path_file(python: str) -> str:
    """Return the path of a file `._pth` beside an interpreter, or beside a link that leads to it; "" without one."""
    path = os.path.abspath(python)
    for _ in range(_MAX_LINKS):
        folder = os.path.dirname(path)
        try:
            names = os.listdir(folder)
        except OSError:  # the interpreter cannot be started either, or its folder is closed to this user
            names = []
        for name in sorted(names):
            if name.endswith(PATH_FILE_ENDING):
                return f"{folder}/{name}"
        if not os.path.islink(path):
            break
        path = os.path.join(folder, os.readlink(path))
    return ""
