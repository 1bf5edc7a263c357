"""Brings a script's folder out of a checkout, as it was at a commit, byte for byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.public_scripts.table import Script

GIT_TIMEOUT_S = 300
_SYMBOLIC_LINK = "120000"
_FORMS = ("{owner}+{name}/repo", "{owner}+{name}", "{owner}/{name}", "{name}")


class NotThere(LookupError):
    """A repository, a commit or a path is missing from the checkouts; the message names it and the way to get it."""


def git_directory(checkouts: Path, repository: str) -> Path:
    """Return the git directory of a repository among the checkouts: bare, or of a work tree.

    Raises: NotThere.
    """
    owner, _, name = repository.partition("/")
    for form in _FORMS:
        folder = checkouts / form.format(owner=owner, name=name)
        for place in (folder / ".git", folder):
            if (place / "HEAD").is_file():
                return place
    raise NotThere(f"{checkouts} has no {repository}: clone it there, with its history")


def bring(checkouts: Path, script: Script, target: Path) -> list[str]:
    """Write the script's folder at its commit to `target`, without the files that its table leaves out.

    Returns: files that the checkout lacks, such as large ones of a partial clone; none of them is Python.
    Raises: NotThere.
    """
    git = ["git", f"--git-dir={git_directory(checkouts, script.repository)}"]
    tree = f"{script.commit}:{script.source}"
    listed = _git([*git, "ls-tree", "-r", "-z", tree])
    if listed is None:
        raise NotThere(f"{script.repository} has no {tree}: fetch its history")
    lacking = []
    for entry in filter(None, listed.decode().split("\0")):
        facts, _, name = entry.partition("\t")
        mode, kind, identity = facts.split()
        if kind != "blob" or mode == _SYMBOLIC_LINK or _is_left_out(name, script.without):
            continue
        content = _git([*git, "cat-file", "blob", identity])
        if content is None and name.endswith(".py"):
            raise NotThere(f"{script.repository} lacks {name} of {tree}: fetch it whole")
        if content is None:
            lacking.append(name)
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    if not (target / script.entry).is_file():
        raise NotThere(f"{script.repository} has no {script.path} at {script.commit}")
    return lacking


def _git(command: list[str]) -> bytes | None:
    done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    return None if done.returncode else done.stdout


def _is_left_out(name: str, without: list[str]) -> bool:
    return any(name == one or name.startswith(f"{one}/") for one in without)
