"""Errors with a remedy if a host lacks a requirement of DeepSpeed's offload to NVMe.

Where: `installing` patches `deepspeed.ops.op_builder.builder` in ranks. Behaviour of DeepSpeed itself if a host lacks

    libaio            cannot compile its extension, and the error ends with "hardware/software issue. None"
    lockable memory   ends the process by an assertion
    unaligned reads   reads past the page cache into the middle of a buffer; a disk that accepts only block-aligned
                      addresses refuses the read, but the read counts as done, and gradients stay zero

Source: DeepSpeed 0.19.8: `OpBuilder.jit_load`; `AsyncIOBuilder.is_compatible`, which tests whether a small program
links against libaio; `csrc/pin_memory`, which calls mlock(2); `swap_in_tensors`, called with parts of a group's buffer.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import resource
import shutil
import sysconfig
from types import ModuleType
from typing import Any

_PART = "async_io"
_LIBAIO = (
    "libaio and its header are not there: `apt-get install libaio-dev` (Debian, Ubuntu) or `dnf install libaio-devel` "
    "on each machine brings them; where they lie in a folder of their own, name it in CPATH, LIBRARY_PATH and "
    "LD_LIBRARY_PATH of the job's Environment"
)
_COMPILER = "there is no C compiler: `apt-get install g++ libaio-dev` (Debian, Ubuntu) on each machine brings all of it"
_STATUS = "/proc/self/status"
_CAP_IPC_LOCK = 14  # linux/capability.h: exempts from the limit of locked memory
_KIB = 1024
_BLOCK = 512  # bytes; addresses at multiples of it count as accepted by every disk
_PAST_THE_CACHE = os.O_DIRECT


def mend_builder(module: ModuleType) -> None:
    """Patch DeepSpeed's builder: an error names a missing libaio, and the NVMe extension is patched when it loads.

    Args:
        module: `deepspeed.ops.op_builder.builder`; not changed if it has no `OpBuilder.jit_load`.
    """
    builder = getattr(module, "OpBuilder", None)
    original = getattr(builder, "jit_load", None)
    if original is None:
        return

    @functools.wraps(original)
    def jit_load(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if getattr(self, "name", "") != _PART:
            return original(self, *arguments, **keywords)
        try:
            part = original(self, *arguments, **keywords)
        except RuntimeError as error:
            if self.is_compatible(verbose=False):
                raise
            raise RuntimeError(_words_on_libaio()) from error
        _mend_handle(getattr(part, "aio_handle", None))
        return part

    builder.jit_load = jit_load  # type: ignore[union-attr]


def _words_on_libaio() -> str:
    compiler = (os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")).split()[0]
    why = _LIBAIO if shutil.which(compiler) else _COMPILER
    return f"DeepSpeed on {_host()}: offload to nvme needs libaio: {why}; or offload to the cpu"


def _mend_handle(handle: Any) -> None:
    """Patch a class of handles to refuse buffers and reads that would fail."""
    lock, read = getattr(handle, "new_cpu_locked_tensor", None), getattr(handle, "async_pread", None)
    if lock is None or read is None:
        return

    def new_cpu_locked_tensor(self: Any, count: int, example: Any) -> Any:
        refuse_locking(count * example.element_size())
        return lock(self, count, example)

    def async_pread(self: Any, buffer: Any, path: str, *place: int) -> Any:
        refuse_address(buffer.data_ptr(), path)
        return read(self, buffer, path, *place)

    handle.new_cpu_locked_tensor, handle.async_pread = new_cpu_locked_tensor, async_pread


def refuse_locking(num_bytes: int) -> None:
    """Raise RuntimeError if this process may not lock `num_bytes` more of memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with open(_STATUS, encoding="ascii", errors="replace") as file:
        status = dict(line.split(":", 1) for line in file if ":" in line)
    may_lock_all = int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1
    locked = int(status.get("VmLck", "0 kB").split()[0]) * _KIB
    if limit == resource.RLIM_INFINITY or may_lock_all or locked + num_bytes <= limit:
        return
    raise RuntimeError(
        f"DeepSpeed on {_host()}: offload to nvme locks {num_bytes:,} bytes of buffers in memory; a "
        f"process of this host may lock {limit:,} bytes, and {locked:,} bytes are locked already: "
        "start the service (or the machine's daemon) where `ulimit -l` is unlimited "
        "(LimitMEMLOCK=infinity of a systemd unit), or make buffer_size and buffer_count smaller"
    )


def refuse_address(address: int, path: str) -> None:
    """Raise RuntimeError if the disk that holds a file cannot read into this memory address."""
    start = address % mmap.PAGESIZE
    if start % _BLOCK and not _takes(start, path):
        raise RuntimeError(
            f"DeepSpeed on {_host()}: offload to nvme reads {path} into a memory address that its disk refuses (it is "
            f"not a multiple of {_BLOCK}), and would train on zeros instead of the data: make each tensor a group of "
            f'its own, with "sub_group_size": 1 in zero_optimization'
        )


@functools.cache
def _takes(start: int, path: str) -> bool:
    """Return whether a direct read of a file into memory works at this offset within a page."""
    try:
        file = os.open(path, os.O_RDONLY | _PAST_THE_CACHE)
    except OSError:
        return True  # DeepSpeed reports the error itself
    try:
        with (
            mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory,
            memoryview(memory) as view,
            view[start : start + mmap.PAGESIZE] as part,
        ):
            os.preadv(file, [part], 0)
    except OSError as error:
        return error.errno != errno.EINVAL
    finally:
        os.close(file)
    return True


def _host() -> str:
    return os.environ.get("SM_CURRENT_HOST", "this host")
