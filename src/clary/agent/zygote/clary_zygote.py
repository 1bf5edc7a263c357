"""Imports the modules that most programs import first, waits, and forks the ranks of programs.

    python clary_zygote.py SOCKET OUTPUT LATE_FOLDER RANK_SHIM NUM_AHEAD MODULE...

Where: the first process of a standby host starts it and sends messages over the socket
(`clary.agent.host.zygote_process` lists the messages); OUTPUT is the read end of the pipe that is the zygote's own
standard output; LATE_FOLDER is the folder into which the program's files are written while the zygote waits; NUM_AHEAD
ranks are forked before the order arrives, and each waits for its part of the order. It runs in the user's environment:
Python 3.8 or later, the standard library only, and no other module of clary.

[Note: as a new interpreter] A forked rank has to find the same state as `python clary_rank.py train.py`. The zygote has
no script's folder on `sys.path`, it writes its output to a pipe as a rank does, and a fork inherits no connection,
thread or descriptor: the zygote refuses to fork if a library has opened one. In the rank, state that depends on when
the process started is renewed: environment, arguments, import caches, seeds, time zone. The rank executes a new
interpreter instead if a file of the program would have been imported in place of a loaded module, if code in the
script's folder names a variable that such a module has read or installs packages, if the user's folder of packages is
new, if the job's library is another one, or if anything fails before the program's first line. One difference remains:
all ranks share the seed of `hash()` and the addresses of libraries.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import select
import signal
import site
import socket
import sys
import threading
import time
import types
import warnings

_MAX_MESSAGE_BYTES = 65536
_MAX_DESCRIPTORS = 253  # SCM_MAX_FD
_MAX_WORDS_BYTES = 65536  # limit of the output of imports; a pipe holds no more
_GO = b"g"
# The kernel takes 10 ms of processor time to free an interpreter with torch, while its ranks begin. They come first.
_LAST_NICENESS = 10
_ABANDONED_EXIT_CODE = 70  # no process reads this exit code
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_NUM_MAP_WORDS = 13  # struct prctl_mm_map: eleven addresses, the auxiliary vector, its size and a descriptor
_BREAK_WORD = 5
_NO_FILE = 0xFFFFFFFF  # -1
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
_LOADED: set[str] = set()  # names of packages and modules imported before the order
_KEPT: list[object] = []  # keeps alive the memory that /proc shows as command line and environment
_HAS_FOLDER_ON_PATH = not getattr(sys.flags, "safe_path", False)
_ENTRY_POINT_GROUP = "torch.backends"
_SUFFIXES = (".py", ".pyc", ".so")
# Modules of the job's library that torch's entry points import when a job uses every feature.
_LIBRARY_MODULES = (
    "clary_autoload",
    "clary_cuda_on_cpu",
    "clary_rehearsal",
    "clary.train.steps.torch_hooks",
    "clary.train.profiling.recorder",
    "clary.train.collective.adapters.torch.registration",
    "clary.train.trainers.installing",
)
# The first optimizer of a program imports this module, which takes as long as torch itself (torch 2.13).
_LATER = ("torch._dynamo",)
_PATIENCE_S = 2.0  # pause before the import: a job that follows at once needs the processors
# Modules beside the rank shim that it imports in every rank.
_SHIM_MODULES = ("clary_imports", "clary_jax", "clary_numpy", "clary_keras")
_LIBRARY_ENDING = "/.clary/python"
_LIBRARY_FIRST_VERSION = (3, 10)
# Variables that the imported modules have already read. A program that sets one of them names it in its code.
_READ_AT_IMPORT = re.compile(
    rb"""(?:["']|\b)(?:OMP|KMP|GOMP|MKL|OPENBLAS|NUMEXPR|ATEN|TORCHDYNAMO|TORCHINDUCTOR|"""
    rb"""TORCH_(?:COMPILER?|DYNAMO|INDUCTOR|LOGS|TRACE|FAKE|CACHING|STRICT))(?:_[A-Z0-9_]+)?(?:["']|\s*=(?!=))"""
)
# Code that installs packages: the imported modules are then the old ones. Comments are found to be skipped.
_INSTALLERS = (b"pip", b"conda", b"mamba")
_INSTALLER = re.compile(
    rb"""\#[^\n]*|(?P<imported>\b(?:import|from)\s+pip\b|(?:_module|__import__)\(\s*["']pip["'])"""
    rb"""|(?P<command>\b(?:pip[0-9.]*|conda|mamba)(?=[\s,"']))"""
)
_WORD = re.compile(rb"""[\s,"']+([^\s,"']+)""")
_INSTALL = re.compile(rb"install\b")
_MAX_READ_FILES = 200
_MAX_READ_BYTES = 1 << 20


class _Program:
    """Continuation of a forked rank: code to be executed as `__main__`."""

    def __init__(self, code: types.CodeType, shim: str) -> None:
        self.code = code
        self.main = types.ModuleType("__main__")
        self.main.__file__ = shim
        self.main.__builtins__ = builtins  # type: ignore[attr-defined]


def become_rank() -> _Program:
    """Import, wait and fork; returns in each rank, and never in the zygote itself."""
    keeper = socket.socket(fileno=int(sys.argv[1]))
    output = int(sys.argv[2])
    late_folder, shim, num_ahead, names = sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6:]
    for descriptor in (keeper.fileno(), output):
        os.set_inheritable(descriptor, False)
    own_descriptors = _descriptors()
    with open(shim, "rb") as file:
        code = compile(file.read(), shim, "exec", dont_inherit=True)
    if _HAS_FOLDER_ON_PATH:
        del sys.path[0]  # this file's folder; a rank has its script's folder at this index
    path = list(sys.path)
    # Only the program may import its own modules: they may still be incomplete.
    sys.path[:] = [folder for folder in path if not _is_within(folder, late_folder)]
    reason = _import(("atexit", "runpy", *names))  # also the late imports of the rank shim
    if not reason:
        _import_library(late_folder)
        sys.path.insert(0, os.path.dirname(shim))
        _import(_SHIM_MODULES)
        reason = _why_unfit(own_descriptors)
    sys.path[:] = path
    if reason:
        keeper.send(json.dumps({"kind": "refused", "reason": reason}).encode())
        os._exit(0)
    words = _take_words(output)
    gc.collect()
    gc.freeze()  # otherwise the garbage collector of a rank would write to every page that the ranks share
    keeper.send(json.dumps({"kind": "ready"}).encode())
    reason = _import_later(keeper, own_descriptors, late_folder)
    words += _take_words(output)
    _forget_folders()  # once, since each rank would free the same thousands of names
    _note_loaded()  # before the order, since it takes each rank 1 ms
    ahead: list[tuple[int, socket.socket]] = []
    if not reason and not select.select([keeper], [], [], 0)[0]:
        ahead, own = _fork_ahead(num_ahead)
        if own is not None:
            keeper.close()
            os.close(output)
            with contextlib.suppress(Exception):  # boundary: modules and packages of any kind
                _touch(late_folder)
            _note_loaded()  # the rehearsal has imported modules that a file of the program may hide
            place, order, descriptors = _receive(own)
            own.close()
            return _rank(order, place["place"], descriptors, late_folder, words, _Program(code, shim))
    _, order, descriptors = _receive(keeper)
    if reason:
        keeper.send(json.dumps({"kind": "refused", "reason": reason}).encode())
        os._exit(0)
    if order["lasts"]:
        order, descriptors = _serve(keeper, order, descriptors)
    whole, gate, agent, outputs = descriptors[0], descriptors[1], descriptors[2], descriptors[3:]
    pids = []
    is_parent = False
    for number, write_end in enumerate(outputs):
        pid = _hand_over(ahead, number, (whole, gate, agent, write_end))
        if pid == 0:
            is_parent = True
            pid = _fork()
        if pid == 0:
            keeper.close()
            for descriptor in (output, *(other for other in outputs if other != write_end)):
                os.close(descriptor)
            for _, link in ahead:
                link.close()
            rights = [whole, gate, agent, write_end]
            return _rank(order, number, rights, late_folder, words, _Program(code, shim))
        pids.append(pid)
    if not is_parent:
        with contextlib.suppress(OSError):  # a call filter may forbid it
            os.nice(_LAST_NICENESS)
    keeper.send(json.dumps({"kind": "forked", "pids": pids, "is_parent": is_parent}).encode())
    os._exit(0)


def _note_loaded() -> None:
    """Note the names of the loaded packages and modules for `_shadow`."""
    _LOADED.update(name.partition(".")[0] for name in sys.modules)


def _touch(late_folder: str) -> None:
    """Rehearse the first steps of a rank, without effect, so that the kernel maps and copies their pages now.

    Most of the copied pages hold reference counts; the mapped pages hold code. The rank repeats all these steps.
    """
    variables = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    json.loads(json.dumps(variables))
    _shadow([sys.executable, "", os.path.join(late_folder, "train.py")], late_folder)
    for module in list(sys.modules.values()):
        vars(module).get("__spec__")
    import importlib.metadata

    list(importlib.metadata.distributions(path=[late_folder]))
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        list(importlib.metadata.distribution("torch").entry_points)
    _late_site()
    _other_library()
    _too_late(late_folder)
    _renew_modules()
    for name in ("clary", "smdistributed"):  # `clary_autoload` looks for both
        with contextlib.suppress(ImportError, ValueError):
            importlib.util.find_spec(name)
    _forget_folders()
    show_start(list(getattr(sys, "orig_argv", sys.argv)), variables)


def _fork_ahead(num_ahead: int) -> tuple[list[tuple[int, socket.socket]], socket.socket | None]:
    """Fork ranks before the order arrives, from a child that ends at once: the host's first process is their parent.

    Returns: pid and socket of each rank, and None; in a rank an empty list and its end of the socket. A rank exits when
    the other end of its socket is closed: when the zygote ends, or if the program has fewer ranks. Fewer than
    `num_ahead` ranks may be returned, for example if the limit of processes is reached.
    """
    if num_ahead == 0:
        return [], None
    links = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(num_ahead)]
    told, telling = os.pipe()
    between = _fork()
    if between == 0:
        try:
            for place in range(num_ahead):
                pid = _fork()
                if pid == 0:
                    return [], _keep_own_end(links, place, (told, telling))
                os.write(telling, b"%d\n" % pid)
        except BaseException:  # noqa: BLE001, S110 - this child must not go on as a second zygote
            pass
        os._exit(0)
    os.close(telling)
    with open(told, "rb") as file:
        pids = [int(line) for line in file]
    os.waitpid(between, 0)
    for _, there in links:
        there.close()
    for here, _ in links[len(pids) :]:
        here.close()
    return [(pid, here) for pid, (here, _) in zip(pids, links)], None


def _keep_own_end(
    links: list[tuple[socket.socket, socket.socket]], place: int, others: tuple[int, ...]
) -> socket.socket:
    """Return a rank's end of its socket; close everything else that it has inherited."""
    for descriptor in others:
        os.close(descriptor)
    for number, (here, there) in enumerate(links):
        here.close()
        if number != place:
            there.close()
    return links[place][1]


def _hand_over(ahead: list[tuple[int, socket.socket]], place: int, descriptors: tuple[int, ...]) -> int:
    """Send a rank that was forked ahead its place in the order; return its pid, or 0 if no such rank is left."""
    while ahead:
        pid, link = ahead.pop(0)
        with link:
            try:
                rights = array.array("i", descriptors)
                link.sendmsg([json.dumps({"place": place}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except OSError:
                continue  # the rank has ended: for example, the kernel killed it for its memory
        return pid
    return 0


def _serve(keeper: socket.socket, order: dict, descriptors: list[int]) -> tuple[dict, list[int]]:  # type: ignore[type-arg]
    """Fork one process for each order; the function returns only in that process, which carries the order out.

    That process ends before its ranks begin, so that the first process of the host becomes their parent. Its end is
    reported with the message `over`. Programs run as the same user and must not read this process's memory, or end it
    with a signal to all processes. So it cannot be traced, and blocks all signals that can be blocked. The forked
    process cannot be traced either, and its ranks only from `_announce` on.
    """
    ordinary = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    _set_traceable(False)
    while True:
        pid = _fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, ordinary)
            return order, descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(pid, 0)
        keeper.send(json.dumps({"kind": "over"}).encode())
        _, order, descriptors = _receive(keeper)


def _set_traceable(is_traceable: bool) -> None:
    """Let processes of this user trace this one and read its memory, or forbid it. Raises: OSError."""
    import ctypes

    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(is_traceable), 0, 0, 0):
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


def _import(names: tuple[str, ...]) -> str:
    """Import the modules that the environment has; return the first failure of such a module, or an empty text."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - somebody else's module
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                continue  # the environment lacks it; any other failure leaves a half-imported module
            return f"import {name} failed: {type(error).__name__}: {error}"
    return ""


def _import_library(late_folder: str) -> None:
    """Import the modules that torch's entry points will import, from the package that the job's library links to.

    The modules get the names `clary.train...`, in a namespace package whose folder in the job's library does not exist
    yet. Nothing is imported without the job's library, without torch, before Python 3.10, if the environment has a
    package `clary` of its own, or if these modules do not fit its torch.
    """
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path.endswith(_LIBRARY_ENDING)]
    library = next((path for path in reversed(paths) if _is_within(path, late_folder)), "")
    has_own = importlib.machinery.PathFinder.find_spec("clary") is not None
    if not library or has_own or "torch" not in sys.modules or sys.version_info < _LIBRARY_FIRST_VERSION:
        return
    package = _package()
    spec = importlib.machinery.ModuleSpec("clary", None, is_package=True)
    spec.submodule_search_locations = [package]
    namespace = importlib.util.module_from_spec(spec)
    sys.modules["clary"] = namespace
    compat = os.path.join(package, "compat")
    sys.path.append(compat)
    try:
        for name in _LIBRARY_MODULES:
            importlib.import_module(name)
        if _calls_backends():
            sys.modules["clary.train.steps.torch_hooks"].install()
    except Exception:  # noqa: BLE001 - a torch with other internals: ranks import the modules, and report the error
        own = {name.partition(".")[0] for name in _LIBRARY_MODULES}
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]
    finally:
        sys.path.remove(compat)
    spec.submodule_search_locations[:] = [os.path.join(library, "clary")]


def _calls_backends() -> bool:
    """Whether this torch calls entry points at the end of its import (torch 2.5 and later)."""
    is_enabled = getattr(sys.modules.get("torch"), "_is_device_backend_autoload_enabled", None)
    return is_enabled is not None and is_enabled()


def _package() -> str:
    """Return the folder of the package `clary` that this file belongs to."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def _import_later(keeper: socket.socket, own_descriptors: set[str], late_folder: str) -> str:
    """Import modules that most programs need soon, if no order arrives at once; return why not to fork, or "".

    An order that arrives meanwhile waits for the import, which the program would otherwise do itself.
    """
    if "torch" not in sys.modules or select.select([keeper], [], [], _PATIENCE_S)[0]:
        return ""
    path = list(sys.path)
    sys.path[:] = [folder for folder in path if not _is_within(folder, late_folder)]
    reason = _import(_LATER) or _why_unfit(own_descriptors)
    sys.path[:] = path
    gc.collect()
    gc.freeze()
    return reason


def _why_unfit(own_descriptors: set[str]) -> str:
    """Return why this process cannot be forked into programs after its imports, in words; empty if it can."""
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        return "its modules have started threads: " + names
    opened = sorted(_descriptors() - own_descriptors)
    if opened:
        return "its modules hold open " + ", ".join(opened)
    # Some libraries, such as OpenBLAS, end their threads for a fork and start them again when they need them.
    pid = _fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        return f"its modules have started {num_threads - 1} threads of their own"
    return ""


def _descriptors() -> set[str]:
    """Return the descriptors above 2, each with the name of its file."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                found.add(f"{name} ({os.readlink('/proc/self/fd/' + name)})")
        except OSError:
            pass  # the descriptor with which the folder was read
    return found


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns where the C library counts threads that end at a fork
        return os.fork()


def _take_words(output: int) -> bytes:
    """Return the output of the imports, which a program with the same imports would print, too."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.set_blocking(output, False)
    try:
        return os.read(output, _MAX_WORDS_BYTES)
    except BlockingIOError:
        return b""


def _receive(sender: socket.socket) -> tuple[dict, dict, list[int]]:  # type: ignore[type-arg]
    """Wait for the order; exit if the sender ends first. Return the message, the order, and the message's descriptors.

    The first descriptor is the order's file, which several processes read.
    """
    space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
    try:
        data, ancillary, _, _ = sender.recvmsg(_MAX_MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        data, ancillary = b"", []
    if not data:
        os._exit(0)
    descriptors = array.array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    order = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
    return json.loads(data), json.loads(order), list(descriptors)


# The functions below run in a rank.


def _rank(
    order: dict,  # type: ignore[type-arg]
    place: int,
    descriptors: list[int],
    late_folder: str,
    words: bytes,
    program: _Program,
) -> _Program:
    """Become the process at index `place` of the order; return its program when the gate opens.

    Args:
        order: the order for the whole host.
        place: index in the order's processes.
        descriptors: the order's file, the gate (a pipe), the agent's socket, the rank's output; all are closed here.
        late_folder: folder of the program's files.
        words: output of the imports, for the rank to repeat.
        program: the rank's code.
    """
    whole, gate, agent, write_end = descriptors
    os.close(whole)
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
    os.close(write_end)
    process = order["processes"][place]
    _announce(agent, process["index"], lasts=order["lasts"])
    reason = _make_anew(process, late_folder)
    _take_place(process, reason=reason, gate=gate, parent=order["parent"])
    if words:
        os.write(2, words)
    return program


def _announce(agent: int, index: int, *, lasts: bool) -> None:
    """Announce this process to the agent, and close the agent's socket before any code of the job runs.

    Until then, this process cannot be traced in a host that lasts: another rank could take the socket out of it.
    """
    with socket.socket(fileno=agent) as announcing:
        announcing.send(json.dumps({"kind": "forked", "index": index}).encode())
    if lasts:
        _set_traceable(True)


def _take_place(process: dict, *, reason: str, gate: int, parent: int | None) -> None:  # type: ignore[type-arg]
    """Become the ordered process when the gate opens, or execute a new interpreter if there is a reason to."""
    if os.read(gate, 1) != _GO:
        os._exit(_ABANDONED_EXIT_CODE)
    os.close(gate)
    if parent is not None:
        _die_with(parent)
    if reason:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python itself
            signal.signal(number, signal.SIG_DFL)
        os.execve(process["argv"][0], process["argv"], process["environment"])  # noqa: S606 - no shell wanted


def _make_anew(process: dict, late_folder: str) -> str:  # type: ignore[type-arg]
    """Renew all state that depends on the time of start; return why that is impossible, or an empty text."""
    os.setsid()
    try:
        os.chdir(process["working_folder"])
        return _renew(process["argv"], process["environment"], late_folder)
    except BaseException as error:  # noqa: BLE001 - modules of any kind; a new interpreter has none of this
        return type(error).__name__


def _renew(argv: list[str], environment: dict[str, str], late_folder: str) -> str:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = argv[1:]
    sys.orig_argv = list(argv)
    if _HAS_FOLDER_ON_PATH:
        sys.path.insert(0, os.path.dirname(os.path.realpath(argv[1])))
    _forget_folders()
    reason = _shadow(argv, late_folder) or _late_site() or _other_library() or _too_late(_script_folder(argv))
    if reason:
        return reason
    _renew_modules()
    _call_late_backends()
    show_start(argv, environment)
    return ""


def _forget_folders() -> None:
    """Drop the listings of folders that the import system has cached."""
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def show_start(argv: list[str], environment: dict[str, str]) -> None:
    """Make /proc show the process's own command line and environment, if the kernel permits it (PR_SET_MM_MAP).

    Source: prctl(2); fields of /proc/self/stat in proc(5).
    """
    import ctypes

    texts = [[os.fsencode(argument) for argument in argv]]
    texts.append([os.fsencode(f"{name}={value}") for name, value in environment.items()])
    arguments, variables = (b"".join(text + b"\0" for text in part) for part in texts)
    buffer = ctypes.create_string_buffer(arguments + variables)
    _KEPT.append(buffer)
    begin = ctypes.addressof(buffer)
    border = begin + len(arguments)
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()

    def stat(number: int) -> int:
        return int(fields[number - 3])  # the first two fields are before the bracket

    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    # start_code, end_code, start_data, end_data, start_brk; brk; start_stack; arguments, environment
    places = [
        stat(26),
        stat(27),
        stat(45),
        stat(46),
        stat(47),
        0,
        stat(28),
        begin,
        border,
        border,
        begin + len(buffer) - 1,
    ]
    table = (ctypes.c_uint64 * _NUM_MAP_WORDS)(*places, 0, _NO_FILE << 32)  # no auxiliary vector
    size = ctypes.c_size_t(ctypes.sizeof(table))
    table[_BREAK_WORD] = libc.sbrk(0)
    libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(table), size, ctypes.c_ulong(0))


def _shadow(argv: list[str], late_folder: str) -> str:
    """Return a file of the program that a new interpreter would have imported in place of a loaded module."""
    before = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    names = _LOADED | {"sitecustomize", "usercustomize"}
    for folder in ([_script_folder(argv)] if _HAS_FOLDER_ON_PATH else []) + before:
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        is_late = _is_within(folder, late_folder)
        for entry in entries:
            name = entry.partition(".")[0]
            path = os.path.join(folder, entry)
            if name not in names or not _is_module(path) or _is_same_file(path, sys.modules.get(name)):
                continue
            if is_late or not _is_from(folder, sys.modules.get(name)):
                return path
    return ""


def _script_folder(argv: list[str]) -> str:
    """Return the folder that a new interpreter would put first on the path."""
    return os.getcwd() if argv[2] == "-m" else os.path.dirname(os.path.realpath(argv[2]))


def _is_same_file(path: str, module: types.ModuleType | None) -> bool:
    """Whether a module was read from the file or the package that a path leads to."""
    real = os.path.realpath(path)
    return getattr(module, "__file__", None) in (real, os.path.join(real, "__init__.py"))


def _other_library() -> str:
    """Return the library's folder if it links to another package than the imported modules' own."""
    library = getattr(sys.modules.get("clary"), "__path__", None)
    if library is None:
        return ""
    train = os.path.join(library[0], "train")
    return "" if os.path.realpath(train) == os.path.join(_package(), "train") else train


def _too_late(folder: str) -> str:
    """Return text of the code in a folder that would change modules which are imported already.

    Such text names a variable that an imported module has read, or installs packages.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))[:_MAX_READ_FILES]
    except OSError:
        return ""
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                text = file.read(_MAX_READ_BYTES)
        except OSError:
            continue
        variable = _READ_AT_IMPORT.search(text)
        if variable:
            return variable.group().decode("ascii", "replace")
        installs = _installs(text) if any(word in text for word in _INSTALLERS) else b""
        if installs:
            return installs.decode("ascii", "replace")
    return ""


def _installs(text: bytes) -> bytes:
    """Return the part of a program's text that installs packages, or nothing; the time is linear in the text.

    Between an installer's name and `install` there may be options; each may be followed by one value.
    """
    place = 0  # text up to here has been read as arguments
    for found in _INSTALLER.finditer(text):
        if found["imported"]:
            return found["imported"]
        # An installer's name among the arguments of another one starts nothing that these do not include.
        if not found["command"] or found.start() < place:
            continue
        place = found.end()
        may_be_value = False
        while True:
            word = _WORD.match(text, place)
            if word is None:
                break
            if _INSTALL.match(word[1]):
                return text[found.start() : word.start(1) + len(b"install")]
            is_option = len(word[1]) > 1 and word[1].startswith(b"-")
            if not is_option and not may_be_value:
                break
            may_be_value = is_option
            place = word.end()
    return b""


def _is_from(folder: str, module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and _is_within(file, folder)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_module(path: str) -> bool:
    if os.path.isdir(path):
        return any(name.startswith("__init__.") for name in os.listdir(path))
    return path.endswith(_SUFFIXES)


def _late_site() -> str:
    """Return the user's folder of packages if it was created after this interpreter started."""
    folder = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    return folder if folder and os.path.isdir(folder) and folder not in sys.path else ""


def _renew_modules() -> None:
    """Renew the seeds, authkey, native thread id and folders that loaded modules keep; `random` reseeds itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()  # generator of the CPU; generators of GPUs are made when CUDA is initialised
    note_number = getattr(threading.main_thread(), "_set_native_id", None)
    if note_number is not None:
        note_number()  # before Python 3.13 the thread keeps the id of the parent's thread
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        processes.current_process().authkey = os.urandom(32)
    temporary = sys.modules.get("tempfile")
    if temporary is not None:
        temporary.tempdir = None  # type: ignore[attr-defined]


def _call_late_backends() -> None:
    """Call the entry points of torch's import that have been on PYTHONPATH only since the order."""
    if not _calls_backends():
        return
    import importlib.metadata

    folders = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    found = [
        one for distribution in importlib.metadata.distributions(path=folders) for one in distribution.entry_points
    ]
    for entry_point in found:  # a list first: an entry point may add finders, which would change the search
        if entry_point.group == _ENTRY_POINT_GROUP:
            entry_point.load()()


def _die_with(parent: int) -> None:
    """Make the kernel end this process with its parent."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_ABANDONED_EXIT_CODE)


if __name__ == "__main__":
    program = become_rank()
    sys.modules["__main__"] = program.main
    exec(program.code, program.main.__dict__)  # noqa: S102 - this is what it is for
