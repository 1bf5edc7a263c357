"""Activity of one rank, read from its stack, its state and its counters while watched. Pure.

Where: `autopsy` calls it and compares ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import StrEnum

from clary.contract.stack_dumps import MAX_FRAMES, CollectiveCall, Frame, ProcessDump, ThreadStack

# Files that contain the innermost call while a thread waits for other ranks. Other files of torch.distributed are on
# the stacks of programs that compute: elastic's `record`, FSDP, tensor parallelism, checkpoints.
_COLLECTIVE_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/rendezvous.py",
    "clary/train/collective/",
    "clary/train/_native/",
    "smdistributed/",
    "horovod/",
)
_COLLECTIVE_CODE = ("c10d::", "gloo::")  # in names of native functions
# Calls that return only after a GPU has done its earlier work: waits, copies to the host (`.item()`), frees of memory,
# and any call while the GPU's queue is full, which soon happens when a collective hangs.
_GPU_CODE = (
    "StreamSynchronize",
    "EventSynchronize",
    "DeviceSynchronize",
    "CtxSynchronize",
    "cudaMemcpy",
    "cudaLaunch",
    "cuLaunch",
)
_GPU_LIBRARIES = ("libcudart", "libcuda.so", "libamdhip64")
# Beginnings of names of the NVIDIA driver's kernel functions, in which a process waits for a driver in trouble.
_GPU_WAITS = ("nvidia_", "uvm_", "os_acquire_", "rm_ioctl", "_nv")
_ENGINE_CODE = "torch::autograd::"  # in names of native functions of a thread that computes a backward pass
_ENGINE_RESTS = "ReadyQueue::pop"  # in such a thread while it has no work
_THREAD_STARTER = "_bootstrap"  # outermost call of threads that Python has started
_BETWEEN = ("threading.py", "selectors.py", "socket.py", "queue.py")  # files of the innermost calls of waits
_BACKWARD = "_engine_run_backward"  # torch/autograd/graph.py; its callees are native
_WRAPPERS = frozenset({"wrapper", "inner", "_wrap", "wait", "synchronize"})  # functions that only call another
_LOADER_FILES = ("torch/utils/data/",)
_LOADER_WAITS = ("torch/utils/data/", "multiprocessing/connection.py", "multiprocessing/queues.py", *_BETWEEN)
# Parts of names of kernel functions: pipes and FIFOs, pages of files, network file systems, FUSE, flushes, journals.
_FILE_WAITS = (
    "pipe_read",
    "wait_for_partner",
    "folio_wait",
    "io_schedule",
    "nfs",
    "rpc_wait",
    "fuse_",
    "fsync",
    "jbd2",
)
_UNINTERRUPTIBLE = "D"
FEW_WAITS = 3  # a main thread with fewer waits while it is watched is blocked: it wakes only now and then to check
_SOME_CPU = 0.2  # processor time as a share of the time in which the process was watched
# share of that time in which its busiest thread ran or waited for a processor; a mostly blocked thread waits less for a
# processor, even on a busy machine
_MOSTLY = 0.6
_SOME_BYTES = 64 * 1024  # bytes moved while it was watched
_HELD_S = 0.5  # records are read before stacks: a rank that has just entered may have left by then


class Doing(StrEnum):
    """Observed activity of a rank's main thread."""

    WAITS_FOR_RANKS = "waits for other ranks"
    WAITS_FOR_GPU = "waits for its GPU, perhaps for other ranks"
    WAITS_FOR_DATA = "waits for its data loader"
    READS = "is held up by a file or disk"
    STOPPED = "is stopped by a signal"
    TRACED = "is held by a debugger or tracer"
    OTHER = "does something else"
    UNKNOWN = "could not be looked at"


class Activity(StrEnum):
    """Observed activity of a process and its descendants while watched."""

    COMPUTES = "computes"
    MOVES_DATA = "reads or writes"
    TRIES = "waits for one thing after another"
    NONE = "does nothing"


def activity_of(process: ProcessDump, watched_s: float) -> Activity:
    """Return the observed activity of a process and its descendants."""
    if process.bytes_moved >= _SOME_BYTES:
        return Activity.MOVES_DATA
    if process.cpu_used_s >= _SOME_CPU * watched_s or process.runnable_s >= _MOSTLY * watched_s:
        return Activity.COMPUTES
    return Activity.TRIES if process.num_waits >= FEW_WAITS else Activity.NONE


def doing_of(process: ProcessDump) -> Doing:
    """Return the activity of a process's main thread."""
    if process.state == "T":
        return Doing.STOPPED
    if process.state == "t":
        return Doing.TRACED
    frames = standing_calls(process)
    if not frames:
        return Doing.WAITS_FOR_RANKS if held_call(process) else Doing.UNKNOWN
    if _waits_in_collective(frames) or _sleeps_in_backward(process, frames):
        return Doing.WAITS_FOR_RANKS
    if any(map(_waits_for_gpu, _native(frames))) or process.wait_channel.startswith(_GPU_WAITS):
        return Doing.WAITS_FOR_GPU
    # In a loader that works in the process itself, calls of the user's data set are innermost, and are shown instead.
    waits = itertools.takewhile(lambda frame: frame.file.startswith(_LOADER_WAITS), python_calls(frames))
    if any(frame.file.startswith(_LOADER_FILES) for frame in waits):
        return Doing.WAITS_FOR_DATA
    if process.state == _UNINTERRUPTIBLE or any(word in process.wait_channel for word in _FILE_WAITS):
        return Doing.READS
    # A script's `wait` on an operation's handle is native code, which some stacks do not show.
    return Doing.WAITS_FOR_RANKS if held_call(process) else Doing.OTHER


def place_of(process: ProcessDump) -> str:
    """Return the position of a process in the user's own code: `step (train.py:31)`."""
    frames = python_calls(standing_calls(process))
    script = next((frame.file for frame in frames if frame.function == "<module>"), "")
    frame = next((frame for frame in frames if frame.file == script), frames[0] if frames else None)
    return f"{frame.function} ({frame.file}:{frame.line})" if frame is not None else "an unknown place"


def operation_of(process: ProcessDump) -> str:
    """Return the name of the collective operation in which a process waits, or an empty text."""
    frames = standing_calls(process)
    if doing_of(process) is not Doing.WAITS_FOR_RANKS:
        return ""
    held = held_call(process)
    if not frames or frames[0].function == _BACKWARD:
        return "backward" if frames else held.operation if held else ""
    waits = itertools.takewhile(lambda frame: frame.file.startswith((*_COLLECTIVE_FILES, *_BETWEEN)), _between(frames))
    named = [frame.function for frame in waits if frame.file.startswith(_COLLECTIVE_FILES)]
    public = [function.rpartition(".")[2] for function in named]
    public = [name for name in public if name not in _WRAPPERS and not name.startswith("_")]
    if held is not None and not public:
        return held.operation
    return public[-1] if public else (named or ["a collective"])[-1].rpartition(".")[2]


def held_call(process: ProcessDump) -> CollectiveCall | None:
    """Return the newest recorded operation in which a process has waited for `_HELD_S`; None without one."""
    calls = (call for group in process.collectives for call in group.calls)
    held = [call for call in calls if call.is_held and call.age_s >= _HELD_S]
    return min(held, key=lambda call: call.age_s, default=None)


def _between(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the Python calls without wrappers of other calls, from the innermost outwards."""
    return tuple(frame for frame in python_calls(frames) if frame.file != "torch/distributed/c10d_logger.py")


def _waits_in_collective(frames: Sequence[Frame]) -> bool:
    if any(code in frame.function for frame in _native(frames) for code in _COLLECTIVE_CODE):
        return True
    inner = next((frame for frame in _between(frames) if not frame.file.startswith(_BETWEEN)), None)
    return inner is not None and inner.file.startswith(_COLLECTIVE_FILES)


def _sleeps_in_backward(process: ProcessDump, frames: Sequence[Frame]) -> bool:
    """Whether a rank's backward pass sleeps, which means a wait for the reduction of gradients."""
    return frames[0].function == _BACKWARD and process.state == "S" and process.num_waits < FEW_WAITS


def main_thread(process: ProcessDump) -> ThreadStack:
    """Return a process's main thread; a thread without calls if its stack could not be read."""
    empty = ThreadStack(thread=0, name="", is_main=True, frames=())
    return next((thread for thread in process.threads if thread.is_main), empty)


def standing_calls(process: ProcessDump) -> tuple[Frame, ...]:
    """Return the calls that show a process's position: its main thread's calls, and inside them its backward pass.

    A thread of torch computes a backward pass on a GPU while the main thread sleeps; nodes and hooks of the backward
    pass may be in Python, such as the recomputation of activation checkpoints.
    """
    frames = main_thread(process).frames
    inner = next(iter(python_calls(frames)), None)
    if inner is None or inner.function != _BACKWARD:
        return frames
    engine = (thread.frames for thread in process.threads if not thread.is_main and _computes_backward(thread.frames))
    return (*next(engine, ()), *frames)


def _computes_backward(frames: Sequence[Frame]) -> bool:
    """Whether a thread of torch computes backward passes, and has work."""
    calls = python_calls(frames)
    if any(_ENGINE_RESTS in frame.function for frame in _native(frames)):
        return False
    if any(_ENGINE_CODE in frame.function for frame in frames):
        return True
    # From Python 3.11 on the name is Thread._bootstrap.
    outermost = calls[-1].function.rpartition(".")[2] if calls else _THREAD_STARTER
    return len(frames) < MAX_FRAMES and outermost != _THREAD_STARTER


def _waits_for_gpu(frame: Frame) -> bool:
    return frame.file.startswith(_GPU_LIBRARIES) or any(code in frame.function for code in _GPU_CODE)


def python_calls(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the Python calls of a stack."""
    return tuple(filter(_is_python, frames))


def _native(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the native calls inside the innermost Python call."""
    return tuple(itertools.takewhile(lambda frame: not _is_python(frame), frames))


def _is_python(frame: Frame) -> bool:
    return frame.file.endswith(".py") or frame.file.startswith("<")
