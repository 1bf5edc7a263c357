"""Stacks of one process, by py-spy: calls of Python and, where the process may be paused, of native code.

Where: `host_dump`, for each process of a program. py-spy reads another process's memory; nothing runs in that process.
It also opens files that the process names: for programs of hosts with namespaces it runs in a room (`spy_room`).
Source: `py-spy dump --help`; its JSON holds a list of threads with frames from the innermost outwards.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from clary.agent.autopsy.process_state import thread_states
from clary.agent.autopsy.spy_room import is_apart, room_command
from clary.base.limited_runs import OutputTooLong, RunTooLong, run_limited
from clary.base.processes import read_entry
from clary.contract.stack_dumps import MAX_FRAMES, MAX_THREADS, Frame, ThreadStack

_NOT_TO_BE_PAUSED = "TtD"  # stopped, traced, or in an uninterruptible system call: a pause would not end
_NO_PYTHON = "Failed to find python version from target process"  # part of py-spy's message
_MAX_CHARACTERS = 300  # of a name
MAX_OUTPUT_BYTES = 8 * 1024 * 1024  # that py-spy may print of a process: 128 threads of 100 calls take a third of it
# A process may have hundreds of threads with thousands of calls, and names of 4,000 characters: py-spy holds all of
# them before it prints, in memory that counts for no host. Files that it maps do not count.
_MEMORY_BYTES = 1024 * 1024 * 1024
_OUT_OF_MEMORY = "memory allocation of"  # part of the message of a program in Rust
_TOO_LARGE = "its stacks are too large"
_INTERPRETER = ("libpython", "python3")  # files whose calls add nothing to the calls of Python
_STARTERS = ("clary_rank.py", "<frozen runpy>", "runpy.py")  # outermost frames of a rank's script, not reported
_OURS = "/clary/train/"  # in the folder that jobs get; the path before this part is left out
_MEASURING = ("clary/train/steps/", "clary/train/profiling/")  # wrappers around torch's calls


def find_py_spy() -> str | None:
    """Return the path of py-spy: of this Python environment, else of PATH; None if it is not installed."""
    own = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(own) if own.is_file() else shutil.which("py-spy")


def read_stacks(
    pid: int, *, program: str | None, limit_s: float, started_at: int | None = None
) -> tuple[tuple[ThreadStack, ...], str]:
    """Return the stacks of a process's threads and "", or no stacks and the reason.

    Unwinding native code does not work in every process; where it fails, the calls of Python alone are read. A process
    with a thread that cannot be paused is not paused at all: py-spy would hold its other threads until that thread
    returns from the kernel.

    Args:
        pid: of the process, on the machine.
        program: path of py-spy; None if it is not installed.
        limit_s: timeout of one run of py-spy; there are at most three runs.
        started_at: start time of the process, as in `ProcessEntry`; None: that of the process with this pid now.
    """
    if program is None:
        return (), "py-spy is not installed beside the agent: pip install py-spy"
    if started_at is None:
        now = read_entry(pid)
        started_at = None if now is None else now.started_at
    ways = [["--native"], [], ["--nonblocking"]]
    why = ""
    while ways:
        if any(state in _NOT_TO_BE_PAUSED for state in thread_states(pid)):
            ways = ways[-1:]
        options = ways.pop(0)
        entry = read_entry(pid)
        if entry is None or started_at is None or entry.started_at != started_at:
            return (), "it has ended"
        try:
            command = [program, "dump", "--json", *options, "--pid", str(pid)]
            if is_apart(pid):
                command = room_command(command, pid=pid, started_at=started_at)
            ended = run_limited(
                command,
                limit_s=limit_s,
                most_bytes=MAX_OUTPUT_BYTES,
                memory_bytes=_MEMORY_BYTES,
            )
        except RunTooLong:
            why = f"py-spy did not come back within {limit_s:g} s"
            ways = ways[-1:]  # the next run does not pause the process
            continue
        except OutputTooLong:
            why = f"{_TOO_LARGE}: py-spy printed more than {MAX_OUTPUT_BYTES} bytes"
            ways = [way for way in ways if not way]  # calls of Python alone are fewer; a pause changes nothing
            continue
        except OSError as error:
            return (), f"py-spy could not be run: {error}"
        if ended.code == 0:
            try:
                return parse_stacks(ended.output, pid=pid), ""
            except ValueError as error:
                why = f"what py-spy printed cannot be read: {error}"
        elif _OUT_OF_MEMORY in ended.errors:
            why = f"{_TOO_LARGE}: py-spy needs more than {_MEMORY_BYTES} bytes of memory"
            ways = [way for way in ways if not way]
        else:
            why = why_not(ended.errors)
    return (), why


def parse_stacks(text: str | bytes, *, pid: int) -> tuple[ThreadStack, ...]:
    """Read py-spy's JSON. Pure.

    Raises: ValueError for any other text.
    """
    document = json.loads(text)
    if not isinstance(document, list):
        raise ValueError("expected a list of threads")
    try:
        return tuple(_thread(item, pid) for item in document[:MAX_THREADS])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def why_not(words: str) -> str:
    """Extract the innermost cause from py-spy's standard error. Pure."""
    lines = [line.strip() for line in words.partition("Stack backtrace:")[0].splitlines() if line.strip()]
    if _NO_PYTHON in words:
        return "no Python runs in it"
    return f"py-spy: {lines[-1][:_MAX_CHARACTERS]}" if lines else "py-spy failed without a message"


def _thread(item: dict[str, Any], pid: int) -> ThreadStack:
    name = str(item.get("thread_name") or "")
    frames = [frame for frame in map(_frame, item["frames"]) if _says_something(frame)]
    while frames and frames[-1].file in _STARTERS:
        frames.pop()
    return ThreadStack(
        thread=int(item.get("os_thread_id") or 0),
        name=name[:_MAX_CHARACTERS],
        # The main thread's id is its process's pid, which inside a host differs from the pid on the machine.
        is_main=name == "MainThread" or item.get("os_thread_id") == pid,
        frames=tuple(frames[:MAX_FRAMES]),
    )


def _says_something(frame: Frame) -> bool:
    if frame.function.startswith("0x"):  # frames without names
        return False
    return not frame.file.startswith((*_INTERPRETER, *_MEASURING))


def _frame(item: dict[str, Any]) -> Frame:
    whole = str(item.get("filename") or "")
    _, is_ours, rest = whole.partition(_OURS)
    file = _OURS.lstrip("/") + rest if is_ours else str(item.get("short_filename") or whole)
    return Frame(function=str(item["name"])[:_MAX_CHARACTERS], file=file[:_MAX_CHARACTERS], line=int(item["line"] or 0))
