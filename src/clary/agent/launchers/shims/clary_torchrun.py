"""torchrun, with every rank started through `clary_rank`.

Where: `bin/torchrun` comes first in PATH of a job, so that launchers that call torchrun by name (SDK v3's driver, AWS's
toolkit, users' scripts) get ranks that end cleanly; see the note in `clary_rank`. Torch's own parser parses the command
line. If it fails, the real torchrun runs with the unchanged command line. After the notice of a stop, ranks are not
signalled: they have already received SIGTERM, and torchrun would send a second SIGTERM and kill them after 30 s. If a
scheduler signals every process itself, the notice appears moments after the signal. It runs in the user's environment:
Python 3.8 or later, with the standard library and torch, without clary.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable

NOTICE_VARIABLE = "CLARY_STOP_NOTICE"  # variable with the path of a file that exists once a stop was ordered
_POLL_S = 0.02
_NOTICE_WAIT_S = 1.0  # from a scheduler's SIGTERM to the agent's notice
_SIGNAL_BASE = 128  # added to a signal's number, as in a shell's exit code
_FOLDER = os.path.dirname(os.path.realpath(__file__))
_NOT_FOUND_CODE = 127


def main() -> None:
    """Run torchrun with this process's command line; never return if the real torchrun replaces this process."""
    arguments = sys.argv[1:]
    try:
        run = importlib.import_module("torch.distributed.run")
        rewritten = rewrite(arguments, run)
    except (Exception, SystemExit):  # noqa: BLE001 - any trouble, --help included, is the real torchrun's to tell
        _run_real(arguments)
        return
    sys.argv = [os.path.join(_FOLDER, "bin", "torchrun"), *rewritten]
    leave_ranks_alone_at_stop()
    try:
        run.main(rewritten)
    except Exception as error:  # a kind of failure that only torch can describe
        if stop_deadline_s() is None or type(error).__name__ != "SignalException":
            raise
        sys.exit(_SIGNAL_BASE + error.sigval)  # type: ignore[attr-defined]


def leave_ranks_alone_at_stop() -> None:
    """Patch torchrun: during a stop it waits for its ranks to end by themselves before it ends them.

    Source: `PContext.close` of torch.distributed.elastic, which every version calls to end its ranks.
    """
    try:
        context = importlib.import_module("torch.distributed.elastic.multiprocessing.api").PContext
        close = context.close
    except (ImportError, AttributeError):
        return  # a torch version that ends its ranks in another way is left unchanged

    def close_after_ranks(self: object, *arguments: object, **options: object) -> object:
        if type(sys.exc_info()[1]).__name__ == "SignalException":
            wait_for_notice()
        wait_for_ranks(self.pids().values())  # type: ignore[attr-defined]
        return close(self, *arguments, **options)

    context.close = close_after_ranks


def wait_for_notice() -> None:
    """Wait a moment for the notice of a stop, after torchrun was signalled."""
    until_s = time.monotonic() + _NOTICE_WAIT_S
    while os.environ.get(NOTICE_VARIABLE) and stop_deadline_s() is None and time.monotonic() < until_s:
        time.sleep(_POLL_S)


def wait_for_ranks(pids: Iterable[int]) -> None:
    """Wait until these children have ended or the agent kills them; return at once if no stop was ordered."""
    deadline_s = stop_deadline_s()
    left = list(pids)
    while left and deadline_s is not None and time.monotonic() < deadline_s:
        left = [pid for pid in left if _is_running(pid)]
        if left:
            time.sleep(_POLL_S)


def stop_deadline_s() -> float | None:
    """Return the monotonic time of the agent's kill, or None without a stop order."""
    try:
        with open(os.environ[NOTICE_VARIABLE], encoding="utf-8") as file:
            return float(json.load(file)["deadline_monotonic_s"])
    except (KeyError, OSError, ValueError):
        return None


def _is_running(pid: int) -> bool:
    """Whether a child still runs; do not reap it, which is left to the code that started it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def rewrite(arguments: list[str], run: object) -> list[str]:
    """Return torchrun's arguments with the program run through `clary_rank`.

    Programs that are not Python (--no-python) or that runpy runs (--run-path) are left unchanged.
    Raises: ValueError if options and program cannot be distinguished.
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
    """Parse without printing errors: the real torchrun prints them."""
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
