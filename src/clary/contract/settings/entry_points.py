"""Entry points that `sagemaker_program` may name: a Python script, a Python package or a command.

Where: the service checks the name when a job is created, agents check the file after unpacking the code, and launchers
turn it into a command line.
Source: sagemaker-training 5.1.4, `_entry_point_type.get`.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.base.string_enum import StrEnum


class EntryKind(StrEnum):
    """Way in which an entry point is started."""

    SCRIPT = "script"  # python train.py
    PACKAGE = "package"  # python -m train; the code folder holds setup.py
    COMMAND = "command"  # ./train.sh


@dataclass(frozen=True, kw_only=True)
class EntryPoint:
    """The user's program, relative to the code folder."""

    name: str
    kind: EntryKind

    @property
    def module(self) -> str:
        """Name after `python -m`, for packages."""
        return self.name.removesuffix(".py").replace("/", ".")


def entry_kind(name: str, *, has_setup: bool) -> EntryKind:
    """Return how `name` is started; `has_setup` tells whether the code folder has a setup.py at its top."""
    if name.endswith(".sh"):
        return EntryKind.COMMAND
    if has_setup:
        return EntryKind.PACKAGE
    return EntryKind.SCRIPT if name.endswith(".py") else EntryKind.COMMAND


def name_problem(name: str) -> str | None:
    """Return why `name` cannot be a path inside the code folder; None if it can."""
    if not name:
        return "the entry point's name is empty"
    if "\0" in name:
        return f"the entry point {name!r} holds a NUL character"
    if name.startswith("/"):
        return f"the entry point {name!r} is an absolute path; give it relative to the source folder, as train.py"
    if name.startswith("-"):
        return f"the entry point {name!r} begins with '-', which programs read as an option; rename the file"
    if ".." in name.split("/"):
        return f"the entry point {name!r} leaves the source folder through '..'; give a path inside it"
    return None
