"""Run one rank of a training program as `__main__`, and exit without the interpreter's own teardown.

    python clary_rank.py train.py ARGUMENTS...
    python clary_rank.py -m package.module ARGUMENTS...

Where: launchers start a job's Python script or package through this file, and the shims of torchrun and deepspeed start
every rank through it. A command of the request and the image's `train` run without it. It runs in the user's
environment: Python 3.8 or later, with the standard library only, without clary.

[Note: why the teardown is skipped]
A thread of torch's gloo acquires the interpreter's lock while `Py_FinalizeEx` runs; Python ends the thread by a forced
unwind through C++ code that must not throw, which turns a finished training into an abort (exit -6, "terminate called
without an active exception"; torch 2.13 on Python 3.11, a few per cent of runs with several process groups). So if
torch is loaded, this file performs the steps at a program's end in Python's own order (traceback, non-daemon threads,
atexit, process group, MPI, buffers) and exits by `os._exit`. Programs without torch end as usual. An abort before these
steps is the program's own and is left unchanged. This code can be removed when torch joins those threads. A program of
jax or MXNet that fails while it is connected to its peers exits in the same way: see `_would_wait_for_peers`.
"""

from __future__ import annotations

import atexit
import builtins
import importlib
import os
import sys
import time
import types
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False  # as in `typing`; see `clary_imports`
if TYPE_CHECKING:
    from collections.abc import Callable

ERRORS_VARIABLE = "CLARY_ERRORS_FOLDER"  # record of a rank's fatal error, by which the agent finds the first cause
MAX_ERROR_CHARACTERS = 800
DESTROY_TIMEOUT_S = 10.0  # for the process group, because peers may have ended and never answer
# Advice on "operator torchvision::nms does not exist", which is an error of the installation, not of nms.
_TORCHVISION = (
    "torchvision's compiled part does not load beside this torch: their versions differ, or one is built for GPUs and "
    "the other for CPUs; install both from one index, on a machine without a GPU by: pip install torch torchvision "
    "--index-url https://download.pytorch.org/whl/cpu"
)
_OF_MPIRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_CANNOT_OPEN_CODE = 2  # exit code of `python missing.py`
_INTERRUPTED_CODE = 130  # 128 and SIGINT
_FLUSH_FAILED_CODE = 120  # exit code of Python when it cannot write its remaining output
_OWN_FILES = (__file__, os.path.join(os.path.dirname(os.__file__), "runpy.py"), "<frozen runpy>")


def main() -> None:
    """Run the program of the command line; never return if torch is loaded."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + is_module:
        sys.exit("usage: clary_rank.py SCRIPT ARGUMENTS... or clary_rank.py -m MODULE ARGUMENTS...")
    code, is_interrupted = 0, False
    _take_rank_of_mpirun()
    _prepare_libraries()
    try:
        if is_module:
            _run_module(arguments[1], arguments[2:])
        else:
            _run_script(arguments[0], arguments[1:])
    except SystemExit as error:
        code = _exit_code(error)
        if code != 0:
            _leave_word("SystemExit", f"exit code {code}" if isinstance(error.code, int) else str(error.code))
    except KeyboardInterrupt as error:
        code, is_interrupted = _INTERRUPTED_CODE, True
        _show(error)
    except BaseException as error:  # noqa: BLE001 - the program's own, shown as Python shows it
        code = _show(error)
    _leave(code, is_interrupted)


def _take_rank_of_mpirun() -> None:
    """Set torch's variables if mpirun, which sets only its own, has started this rank; MASTER_* are already set."""
    told = {name: os.environ.get(source) for name, source in _OF_MPIRUN.items()}
    if "RANK" in os.environ or None in told.values():
        return
    for name, value in told.items():
        os.environ.setdefault(name, str(value))


def _prepare_libraries() -> None:
    """Prepare jax, NumPy and Keras for the program, which may import them."""
    for name in ("clary_jax", "clary_numpy", "clary_keras"):
        try:
            importlib.import_module(name).install()  # modules in this file's folder, which is on the path
        except ImportError:
            continue  # a copy of this file without its neighbours; then programs must pass arguments to jax


def _would_wait_for_peers() -> bool:
    """Whether this failed process's teardown would wait for peers that wait for it in a collective.

    With parameter servers, an MXNet worker waits for all other workers when its store is destroyed.
    """
    module = sys.modules.get("clary_jax")
    is_jax = module is not None and bool(module.part_from_peers())
    return is_jax or ("mxnet" in sys.modules and os.environ.get("DMLC_ROLE") == "worker")


def _new_main() -> types.ModuleType:
    """Replace `__main__` by an empty module, which stays so that threads and atexit find their globals."""
    program = types.ModuleType("__main__")
    program.__builtins__ = builtins  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):
        program.__annotations__ = {}
    sys.modules["__main__"] = program
    return program


def _run_script(script: str, arguments: list[str]) -> None:
    path = os.path.abspath(script)
    sys.argv = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # with this option Python does not prepend the script's folder
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    if os.path.isdir(path):
        import runpy  # imported late, which saves a script 1 ms

        runpy.run_path(script, run_name="__main__")
        return
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(_CANNOT_OPEN_CODE) from None
    program = _new_main()
    program.__file__ = path
    program.__cached__ = None  # type: ignore[attr-defined]
    program.__loader__ = SourceFileLoader("__main__", path)
    exec(compile(source, path, "exec", dont_inherit=True), program.__dict__)  # noqa: S102 - this is what it is for


def _run_module(name: str, arguments: list[str]) -> None:
    import runpy  # imported late, which saves a script 1 ms, but before the working folder is on the path

    sys.argv = ["-m", *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    _new_main()
    run = getattr(runpy, "_run_module_as_main", None)  # the function that `python -m` itself calls
    if run is None:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        run(name)


def _exit_code(error: SystemExit) -> int:
    """Return the exit code for a SystemExit; print a code that is not a number, as Python does."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    _flush(sys.stdout)
    print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> int:
    """Show an uncaught exception through sys.excepthook, without the frames of this file; return the exit code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the program's own class
        message = "(an error whose message cannot be read)"
    advice = _TORCHVISION if message.startswith("operator torchvision::") else ""
    _leave_word(name, f"{message} ({advice})" if advice else message)
    _flush(sys.stdout)
    if advice:
        print(f"clary: {advice}", file=sys.stderr)
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException:  # noqa: BLE001 - a hook that fails must not hide what it was called for
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(*sys.exc_info())
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    return 1


def _leave_word(name: str, message: str) -> None:
    """Write the record of the error that ended this rank, with its time.

    Peers fail within milliseconds, and logs do not show which rank failed first.
    """
    folder = os.environ.get(ERRORS_VARIABLE)
    if not folder:
        return
    rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or ""
    text = (f"{name}: {message}" if message else name)[:MAX_ERROR_CHARACTERS]
    number = int(rank) if rank.isdecimal() else "null"
    record = f'{{"rank": {number}, "at": {time.time()!r}, "text": {_quoted(text)}}}'
    path = os.path.join(folder, f"{rank if rank.isdecimal() else 'program'}-{os.getpid()}.json")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path + ".part", "w", encoding="ascii") as file:
            file.write(record)
        os.replace(path + ".part", path)
    except OSError:
        pass  # for example a full disk: then only the log has the traceback


def _quoted(text: str) -> str:
    """Return `text` as a JSON string in ASCII.

    The import of json would cost every rank 12 ms, and a late import could run a file json.py of the program.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2])
    plain = frozenset(range(ord(" "), ord("~") + 1)) - frozenset(b'"\\')
    return (
        '"' + "".join(chr(low) if not high and low in plain else f"\\u{high:02x}{low:02x}" for high, low in pairs) + '"'
    )


def _leave(code: int, is_interrupted: bool) -> None:
    """End the process with `code`, or with SIGINT as Python does after an uncaught KeyboardInterrupt."""
    has_torch = "torch" in sys.modules
    if code != 0:
        _abort_mpi(code)
    would_wait = code != 0 and _would_wait_for_peers()
    if not has_torch and not would_wait and not is_interrupted:
        sys.exit(code)
    if "threading" in sys.modules:  # joins non-daemon threads; no public name
        _finish(sys.modules["threading"]._shutdown)
    _finish(atexit._run_exitfuncs)
    if has_torch and code == 0:
        _destroy_process_group()
        _finalize_mpi()
    if not (_flush(sys.stdout) and _flush(sys.stderr)) and code == 0:
        code = _FLUSH_FAILED_CODE
    _flush_c()
    if is_interrupted:
        import _signal  # type: ignore[import-not-found]  # loaded already; `signal` takes 8 ms, and the program may have a file of that name

        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    os._exit(code)


def _finish(act: Callable[[], object]) -> None:
    try:
        act()
    except BaseException:  # noqa: BLE001 - as Python: shown, and the end goes on
        sys.__excepthook__(*sys.exc_info())


def _destroy_process_group() -> None:
    """Let torch notify its peers that this rank leaves, for `DESTROY_TIMEOUT_S` at most."""
    import threading  # loaded already, with torch

    distributed = sys.modules.get("torch.distributed")

    def destroy() -> None:
        try:
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                distributed.destroy_process_group()
        except Exception:  # noqa: BLE001, S110 - best effort: the training is over, peers notice by themselves
            pass

    thread = threading.Thread(target=destroy, name="clary-destroy", daemon=True)
    thread.start()
    thread.join(DESTROY_TIMEOUT_S)


def _mpi() -> types.ModuleType | None:
    """Return mpi4py's MPI module if it is loaded, initialised and not yet finalised."""
    module = sys.modules.get("mpi4py.MPI")
    try:
        is_running = module is not None and module.Is_initialized() and not module.Is_finalized()
    except Exception:  # noqa: BLE001 - a module that only looks like it
        return None
    return module if is_running else None


def _abort_mpi(code: int) -> None:
    """Abort all ranks, as `python -m mpi4py` does, because they would wait for this rank for ever."""
    module = _mpi()
    if module is not None and module.COMM_WORLD.Get_size() > 1:
        _flush(sys.stdout)
        _flush(sys.stderr)
        module.COMM_WORLD.Abort(code)


def _finalize_mpi() -> None:
    """Finalize MPI, as the skipped teardown would; without this mpirun treats the rank as failed."""
    module = _mpi()
    if module is not None:
        _finish(module.Finalize)


def _flush(stream: object) -> bool:
    """Flush a stream; return whether no output was lost."""
    if stream is None or getattr(stream, "closed", False):
        return True
    try:
        stream.flush()  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - whatever stands in sys.stdout's place
        return False
    return True


def _flush_c() -> None:
    """Flush the C library's buffers, which extensions may have filled."""
    try:
        import ctypes

        ctypes.CDLL(None).fflush(None)
    except (ImportError, OSError, AttributeError):
        pass


if __name__ == "__main__":
    main()
