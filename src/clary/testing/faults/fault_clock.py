"""A time of day that jumps for the service and its agents only.

A small library is loaded before the C library (LD_PRELOAD). It reads an offset from a shared file and adds it to the
machine's time of day; monotonic time is unchanged, as when an administrator or NTP sets a clock. The library is
compiled on demand. The existing libfaketime is not used, since it breaks `time.sleep` of Python 3.11 (its
clock_nanosleep refuses absolute monotonic times). Without a C compiler clocks do not jump.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

FILE_VARIABLE = "FAULT_CLOCK_FILE"
COMPILE_TIMEOUT_S = 60.0
_NS_PER_S = 1_000_000_000

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long none, *offset_ns = &none;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("FAULT_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *place = mmap(0, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (place != MAP_FAILED) offset_ns = place;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + *offset_ns;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}
"""


def find_compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


class FaultClock:
    """The clock of one run.

    Args:
        folder: folder of the library and the offset file.
        compiler: path of a C compiler.
    """

    def __init__(self, folder: Path, compiler: str) -> None:
        self._file = folder / "clock-offset"
        self._library = folder / "fault_clock.so"
        self._file.write_bytes(bytes(mmap.PAGESIZE))
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), "-x", "c", "-"]
        subprocess.run(command, input=_SOURCE.encode(), timeout=COMPILE_TIMEOUT_S, check=True)

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that uses this clock; its children inherit them."""
        return {"LD_PRELOAD": str(self._library), FILE_VARIABLE: str(self._file)}

    def set_offset_of_new(self, offset_s: float) -> None:
        """Set the offset of processes that start from now on; running processes keep their present offset for good."""
        draft = self._file.with_suffix(".new")
        draft.write_bytes(struct.pack("=q", round(offset_s * _NS_PER_S)).ljust(mmap.PAGESIZE, b"\0"))
        draft.replace(self._file)

    def set_offset(self, offset_s: float) -> None:
        """Set the offset from the machine's time of day, at once."""
        with open(self._file, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
            shared[:8] = struct.pack("=q", round(offset_s * _NS_PER_S))
