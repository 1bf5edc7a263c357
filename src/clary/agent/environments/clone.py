"""Copy of a Python environment that shares its files with the original.

Where: `requirements` installs into such copies, so that the original stays unchanged and its packages are not fetched
again. Files are hard links where the file system allows it: a gigabyte of torch takes a second and no space. A write
into a linked file of the copy changes the original, so hosts must never write to such a copy: they get an overlay over
it (`requirements`), or a copy that shares no file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from clary.agent.environments.interpreter import InterpreterFacts
from clary.base.errors import AgentError
from clary.base.limited_runs import RunTooLong, run_limited

_VENV_TIMEOUT_S = 120.0
_MAX_SHEBANG_BYTES = 4096  # length of a script's head, which is searched for the interpreter's path
# Files that `venv` writes for the copy itself.
_OWN_PROGRAMS = ("python", "activate", "Activate.ps1", "deactivate")
_OWN_ENTRIES = frozenset({"pyvenv.cfg", "lib64", "bin"})


def clone_environment(facts: InterpreterFacts, folder: Path, *, shares_files: bool = True) -> Path:
    """Build a copy of an environment in `folder` and return its interpreter.

    `folder` must be the final location of the copy: its programs name their interpreter by path.

    Args:
        shares_files: whether files are hard links; else their content is copied.
    State after failure: `folder` has an incomplete copy and must be deleted.
    Raises: AgentError if venv fails; OSError, for example for a full disk.
    """
    _make_venv(facts, folder)
    library = folder / facts.library_folder
    if facts.is_virtual:
        _link_tree(Path(facts.prefix), folder, skip=_OWN_ENTRIES, shares=shares_files)
    for site_folder in facts.site_folders:  # of a base interpreter, also through --system-site-packages
        if not (facts.is_virtual and Path(site_folder).is_relative_to(facts.prefix)):
            _link_tree(Path(site_folder), library, skip=frozenset(), shares=shares_files)
    _copy_programs(facts, folder / "bin", shares=shares_files)
    return folder / "bin" / "python"


def _make_venv(facts: InterpreterFacts, folder: Path) -> None:
    command = [facts.base_python, "-I", "-m", "venv", "--without-pip", str(folder)]
    try:
        done = run_limited(command, limit_s=_VENV_TIMEOUT_S)
    except (OSError, RunTooLong) as error:
        raise AgentError(f"{' '.join(command)} failed: {error}") from error
    if done.code:
        reason = (done.errors or done.output)[-500:].strip()
        raise AgentError(f"{' '.join(command)} failed with {done.code}: {reason}")


def _link_tree(source: Path, target: Path, *, skip: frozenset[str], shares: bool) -> None:
    """Link every file below `source` into `target`; existing names in `target` are kept."""
    target.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            place = target / entry.name
            if entry.name in skip:
                continue
            if entry.is_dir(follow_symlinks=False):
                _link_tree(Path(entry.path), place, skip=frozenset(), shares=shares)
            elif not os.path.lexists(place):
                _link_entry(Path(entry.path), place, shares=shares)


def _link_entry(source: Path, place: Path, *, shares: bool) -> None:
    if source.is_symlink():
        place.symlink_to(os.readlink(source))
        return
    if shares:
        with contextlib.suppress(OSError):  # another file system, a foreign owner (protected_hardlinks), too many links
            os.link(source, place)
            return
    if source.is_file():
        shutil.copy2(source, place)


def _copy_programs(facts: InterpreterFacts, target: Path, *, shares: bool) -> None:
    """Copy the programs that packages installed, with the copy's interpreter in their first lines."""
    source = Path(facts.scripts_folder)
    names = source.iterdir() if facts.is_virtual else map(Path, facts.script_files)
    for path in names:
        place = target / path.name
        is_own: Callable[[str], bool] = path.name.startswith
        if any(map(is_own, _OWN_PROGRAMS)) or os.path.lexists(place) or not path.is_file():
            continue
        rewritten = _with_interpreter(path, source, target)
        if rewritten is None:
            _link_entry(path, place, shares=shares)
        else:
            place.write_bytes(rewritten)
            shutil.copymode(path, place)


def _with_interpreter(script: Path, old_folder: Path, new_folder: Path) -> bytes | None:
    """Return the script with the new interpreter's path in its head; None if it names no file of the old folder.

    Two forms exist: `#!/path/bin/python`, and for long paths `#!/bin/sh` with the path in the second line.
    """
    with script.open("rb") as file:
        head = file.read(_MAX_SHEBANG_BYTES)
        if not head.startswith(b"#!"):
            return None
        rest = file.read()
    lines = head.split(b"\n", 2)
    old, new = os.fsencode(f"{old_folder}/"), os.fsencode(f"{new_folder}/")
    if not any(old in line for line in lines[:2]):
        return None
    lines[:2] = [line.replace(old, new, 1) for line in lines[:2]]
    return b"\n".join(lines) + rest
