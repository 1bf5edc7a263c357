"""The profiler of smdebug: only `utils.str2bool`, which training scripts import; readers of profiles are refused."""

from typing import Any

MISSING = (
    "the readers of profiles are missing: use clary profile-report JOB for findings, and clary metrics JOB --json for "
    "what hosts measured"
)


def refuse(module: str, name: str) -> None:
    """Raise the error of a name that a module lacks.

    Raises: ImportError that says what to use; AttributeError for private names, since tools ask modules for them.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise ImportError(f"{module}.{name}: {MISSING}")


def __getattr__(name: str) -> Any:
    if name == "utils":  # Python looks for an attribute first, and then imports the module
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: import {__name__}.{name}")
    refuse(__name__, name)
