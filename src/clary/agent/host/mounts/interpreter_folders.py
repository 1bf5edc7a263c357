"""The machine's folders of a program's interpreter, and the check for program files that a host does not show.

Where: `wiring` binds the folders into the host and checks the program before its start.
Source: `home` of pyvenv.cfg (PEP 405) names the folder of the base interpreter's program; lines of .pth files other
than imports are folders (documentation of `site`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from clary.agent.host.mounts.mount_table import is_within
from clary.agent.host.mounts.shown_folders import is_shown, shown_folders
from clary.agent.host.sandbox import Bind, ProcessSpec, Sandbox
from clary.contract.ml_tree import OPT_ML

# Folders of which every host has its own (`agent.host.mounts.machine_view`).
PRIVATE_TOPS = ("/tmp", "/var/tmp", "/run", "/dev", "/proc", "/sys")  # noqa: S108 - looked at, not written to
_INTERPRETERS = ("python", "sh", "bash", "dash", "perl", "torchrun", "node", "Rscript", "julia")
_MAX_PATH_FILES = 200


def interpreter_binds(environment_folder: Path, python: str, *, hidden: Path | None = None) -> tuple[Bind, ...]:
    """Return the binds for the parts of an environment that lie outside its folder.

    These folders belong to the user who made the environment, and may contain a project (`pip install -e`) and files
    that not all users may read; so they keep their owners.

    Args:
        environment_folder: the environment's own folder.
        python: the environment's interpreter.
        hidden: a folder that hosts hide, even within a shown folder.
    """
    wanted = [*_base_folders(environment_folder), *_linked_prefix(environment_folder, python)]
    wanted += _path_folders(environment_folder)
    folders = [
        folder for folder in dict.fromkeys(wanted) if not is_within(str(folder.resolve()), str(environment_folder))
    ]
    return tuple(
        Bind(source=str(folder.resolve()), target=str(folder), read_only=True, keeps_owners=True)
        for folder in folders
        if folder.is_dir() and not _is_shown_anyway(folder, hidden)
    )


def needs_overlay(environment_folder: Path, *, hidden: Path | None = None) -> bool:
    """Whether the environment's folder must be bound; the system's own interpreter is always shown."""
    return (environment_folder / "pyvenv.cfg").exists() or not _is_shown_anyway(environment_folder, hidden)


def why_not_visible(processes: Sequence[ProcessSpec], sandbox: Sandbox) -> str:
    """Return a sentence about a program's command or script that exists on this machine but not in the host.

    Return "" if there is none. A file that exists nowhere is reported by the host, which knows more.
    """
    programs = dict.fromkeys(path for process in processes for path in _programs_of(process))
    doubtful = [path for path in programs if not _has_own(path) and os.path.exists(path)]
    if not doubtful:
        return ""
    shown = shown_folders(sandbox.visible_folders, is_whole=sandbox.shows_whole_machine)
    bound = [os.path.realpath(bind.target) for bind in sandbox.binds]
    for path in doubtful:
        real = os.path.realpath(path)
        if not any(is_within(real, folder) for folder in bound) and not is_shown(real, shown):
            return (
                f"programs cannot see {path} of this machine: hosts show system folders, software "
                "below /opt and the interpreter. Name its folder in setting visible_folders, put it "
                "below /opt, or bring it as code or as a channel"
            )
    return ""


def _programs_of(process: ProcessSpec) -> Iterable[str]:
    """Return the command of a process and, if the command is an interpreter, the script."""
    command, *arguments = process.argv
    script = next((argument for argument in arguments if not argument.startswith("-")), "")
    if not os.path.basename(command).startswith(_INTERPRETERS):
        script = ""  # other commands interpret their arguments themselves
    return [path for path in (command, script) if path.startswith("/")]


def _has_own(path: str) -> bool:
    """Whether a host has a folder of its own at this path, with other files than the machine's."""
    return any(is_within(path, top) for top in (*PRIVATE_TOPS, str(OPT_ML)))


def _base_folders(environment_folder: Path) -> list[Path]:
    """Return the folder of a virtual environment's base interpreter."""
    try:
        lines = (environment_folder / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return []
    homes = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "home"]
    return [prefix for home in homes for prefix in (Path(home).parent, Path(home).resolve().parent)]


def _linked_prefix(environment_folder: Path, python: str) -> list[Path]:
    """Return the folders of the interpreter to which the environment's link leads."""
    if not Path(python).is_symlink() or (environment_folder / "pyvenv.cfg").exists():
        return []
    return [Path(python).resolve().parent.parent]


def _path_folders(environment_folder: Path) -> list[Path]:
    """Return the folders outside the environment that its .pth files name."""
    found: list[Path] = []
    files = sorted(environment_folder.glob("lib/python3*/site-packages/*.pth"))[:_MAX_PATH_FILES]
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        found += [Path(line.strip()) for line in lines if line.startswith("/")]
    return found


def _is_shown_anyway(folder: Path, hidden: Path | None) -> bool:
    real = os.path.realpath(folder)
    if hidden is not None and is_within(real, os.path.realpath(hidden)):
        return False
    return is_shown(real, shown_folders(())) and not any(is_within(real, top) for top in PRIVATE_TOPS)
