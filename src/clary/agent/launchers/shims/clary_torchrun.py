"""torchrun, with every rank started through `clary_rank`.

Where: `bin/torchrun` stands first in PATH of a job, so that launchers which call torchrun by name (SDK v3's driver,
AWS's toolkit, users' scripts) get ranks that end cleanly; see the note in `clary_rank`. The command line is read by
torch's own parser. Whatever cannot be read stays as it is: the real torchrun then runs, unchanged.
It runs in the user's environment: Python 3.8 or later, the standard library and torch, nothing of clary.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys

_FOLDER = os.path.dirname(os.path.realpath(__file__))
_NOT_FOUND_CODE = 127


def main() -> None:
    """Run torchrun with the command line of this process; never returns where the real one takes over."""
    arguments = sys.argv[1:]
    try:
        run = importlib.import_module("torch.distributed.run")
        rewritten = rewrite(arguments, run)
    except (Exception, SystemExit):  # noqa: BLE001 - any trouble, --help included, is the real torchrun's to tell
        _run_real(arguments)
        return
    sys.argv = [os.path.join(_FOLDER, "bin", "torchrun"), *rewritten]
    run.main(rewritten)


def rewrite(arguments: list[str], run: object) -> list[str]:
    """Return torchrun's arguments with the program behind `clary_rank`.

    Programs that are no Python programs (--no-python) or run by runpy already (--run-path) stay as they are.
    Raises: ValueError where options and program cannot be told apart.
    """
    parsed = _parse_quietly(arguments, run)
    if parsed.no_python or getattr(parsed, "run_path", False):  # type: ignore[attr-defined]
        return arguments
    program = [parsed.training_script, *parsed.training_script_args]  # type: ignore[attr-defined]
    options = arguments[: len(arguments) - len(program)]
    if arguments[len(options) :] != program:
        raise ValueError("options and program cannot be told apart")
    if parsed.module:  # type: ignore[attr-defined]
        without = [option for option in options if option not in ("-m", "--module")]
        if len(without) == len(options):
            raise ValueError("--module is written in a form that is not known")
        options, program = without, ["-m", *program]
    return [*options, os.path.join(_FOLDER, "clary_rank.py"), *program]


def _parse_quietly(arguments: list[str], run: object) -> object:
    """Parse without a word: errors are told by the real torchrun, once."""
    stdout, stderr = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nothing:
        sys.stdout = sys.stderr = nothing
        try:
            return run.parse_args(arguments)  # type: ignore[attr-defined]
        finally:
            sys.stdout, sys.stderr = stdout, stderr


def _run_real(arguments: list[str]) -> None:
    own = os.path.join(_FOLDER, "bin")
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.realpath(folder) != own]
    real = shutil.which("torchrun", path=os.pathsep.join(folders))
    command = [real] if real is not None else [sys.executable, "-m", "torch.distributed.run"]
    if real is None and importlib.util.find_spec("torch") is None:
        print(f"torchrun: not found: torch is not installed for {sys.executable}", file=sys.stderr)
        sys.exit(_NOT_FOUND_CODE)
    os.execv(command[0], [*command, *arguments])  # noqa: S606 - takes this process's place


if __name__ == "__main__":
    main()
