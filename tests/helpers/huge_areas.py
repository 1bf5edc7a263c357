"""A process whose command line or environment, as the kernel shows it, is as large as the test wants.

The process maps zero pages that take no memory and points its arguments or its variables at them, which needs no right.
Source: prctl(2), PR_SET_MM_MAP; Linux, include/uapi/linux/prctl.h (`struct prctl_mm_map`).
"""

import contextlib
import subprocess
import sys
import time
import tracemalloc

import pytest

MIB = 1024**2
SIZE_BYTES = 256 * MIB
MOST_PEAK_BYTES, MOST_S = 32 * MIB, 5.0
# Arguments of the program: which area, its bytes, whether the true content stands at its beginning.
_PROGRAM = r"""
import ctypes, os, sys
area, size, keeps = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "keeps"
NAMES = ("start_code end_code start_data end_data start_brk brk start_stack arg_start arg_end env_start env_end auxv")
class Map(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint64) for name in NAMES.split()),
                ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.sbrk.restype = ctypes.c_void_p, ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
own = open(f"/proc/self/{area}", "rb").read()
PRIVATE, ANONYMOUS, NORESERVE, FIXED, READ, WRITE = 2, 0x20, 0x4000, 0x10, 1, 2
start = libc.mmap(None, size, READ, PRIVATE | ANONYMOUS | NORESERVE, -1, 0)
if keeps:
    head = -(-len(own) // 4096) * 4096
    libc.mmap(start, head, READ | WRITE, PRIVATE | ANONYMOUS | FIXED, -1, 0)
    ctypes.memmove(start, own, len(own))
fields = [int(text) for text in open("/proc/self/stat").read().rpartition(")")[2].split()[1:]]
of = lambda number: fields[number - 4]  # numbers as in proc(5)
areas = {"cmdline": (of(48), of(49)), "environ": (of(50), of(51)), area: (start, start + size)}
wanted = Map(of(26), of(27), of(45), of(46), of(47), libc.sbrk(0), of(28), *areas["cmdline"], *areas["environ"],
             0, 0, 0xFFFFFFFF)
PR_SET_MM, PR_SET_MM_MAP = 35, 14
done = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(wanted), ctypes.c_ulong(ctypes.sizeof(wanted)), 0)
print(os.strerror(ctypes.get_errno()) if done else "ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def huge(area, *, size_bytes=SIZE_BYTES, env=None, keeps=False, cwd=None, words=()):
    """Yield a process whose /proc/PID/`area` (cmdline or environ) has `size_bytes`.

    The area has zeros alone, or, with `keeps`, its true content and then zeros. Where the kernel refuses, the test is
    skipped.
    """
    command = [sys.executable, "-S", "-c", _PROGRAM, area, str(size_bytes), "keeps" if keeps else "zeros", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=cwd, text=True
    ) as process:
        try:
            said = process.stdout.readline().strip()
            if said != "ready":
                pytest.skip(f"this kernel lets no process place its arguments and variables: prctl says {said!r}")
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def small_and_fast():
    """Fail if the block takes much memory of this process, or long."""
    tracemalloc.start()
    began_s = time.monotonic()
    try:
        yield
        took_s, peak_bytes = time.monotonic() - began_s, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MOST_PEAK_BYTES
    assert took_s < MOST_S
