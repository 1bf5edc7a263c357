"""Errors of a host's GPUs that NVIDIA's driver has written into the kernel's log (Xids).

Where: `metrics.host_metrics` creates one for hosts with GPUs in their plan. `gpu_source` reads it for each row, and the
supervisor reads it again when a program has failed, so that the driver's errors are known before the failure is
reported. Root can read the log, other users only if `kernel.dmesg_restrict` is 0; without access no error is found. An
Xid identifies its GPU by the bus: the driver lists buses below /proc in its own order, and nvidia-smi prints them too.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from clary.agent.metrics.gpu_texts import bus_of, parse_xid
from clary.base.clock import Clock
from clary.contract.agent_protocol import GpuError

_READ_BYTES = 64 * 1024
_MAX_RECORDS = 500  # number of lines of the kernel's log after which a look stops reading
_MAX_CODES = 16  # different codes kept per GPU

logger = logging.getLogger(__name__)


class XidLog:
    """Reads new records of the kernel's log; thread-safe.

    Args:
        indices: of the host's GPUs, in the driver's order.
        clock: source of the errors' times.
        kernel_log: file with the Xids.
        gpus_folder: has one entry per GPU of the machine, named by its bus.
    """

    def __init__(
        self,
        indices: Sequence[int],
        *,
        clock: Clock,
        kernel_log: str = "/dev/kmsg",
        gpus_folder: str = "/proc/driver/nvidia/gpus",
    ) -> None:
        self._indices = tuple(indices)
        self._clock = clock
        self._lock = threading.Lock()  # guards all attributes below
        self._looked_at = clock.now()
        self._buses = dict(enumerate(_listed_buses(gpus_folder)))  # index in the driver's order -> bus
        self._codes: dict[str, dict[int, tuple[datetime, datetime]]] = {}  # bus -> code -> (earliest, noticed)
        self._last: dict[str, int] = {}  # bus -> the latest code
        self._keeps = False  # whether times of known errors are frozen
        self._log = _open_at_end(kernel_log)

    @property
    def is_open(self) -> bool:
        """Whether the log can be read."""
        return self._log is not None

    def name_gpu(self, index: int, bus: str) -> None:
        """Record the bus of a GPU, in the form of `bus_of`."""
        with self._lock:
            self._buses[index] = bus

    def look(self) -> None:
        """Read new records without waiting."""
        with self._lock:
            now = self._clock.now()
            for record in self._new_records():
                found = parse_xid(record)
                if found is None:
                    continue
                bus, code = found
                codes = self._codes.setdefault(bus, {})
                is_known = code in codes
                if (is_known and not self._keeps) or (not is_known and len(codes) < _MAX_CODES):
                    codes[code] = (min(self._looked_at, now), now)
                self._last[bus] = code
            self._looked_at = now

    def keep(self) -> None:
        """Read new records and freeze the times of all errors: a later error does not explain the failure."""
        self.look()
        with self._lock:
            self._keeps = True

    def last_code(self, index: int) -> int:
        """Return the latest Xid of the GPU with an index in the driver's order, or 0."""
        with self._lock:
            return self._last.get(self._buses.get(index, ""), 0)

    def errors(self) -> tuple[GpuError, ...]:
        """Return the newest error of each kind and GPU of this host, oldest first."""
        with self._lock:
            found = [
                GpuError(gpu=place, xid=code, not_before=not_before, at=at)
                for place, index in enumerate(self._indices)
                for code, (not_before, at) in self._codes.get(self._buses.get(index, ""), {}).items()
            ]
        return tuple(sorted(found, key=lambda error: (error.at, error.gpu, error.xid)))

    def close(self) -> None:
        """Stop reading; errors found so far stay available. A second call does nothing."""
        with self._lock:
            self._close()

    def _new_records(self) -> list[str]:
        records: list[str] = []
        while self._log is not None and len(records) < _MAX_RECORDS:
            try:
                record = os.read(self._log, _READ_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError as error:
                logger.warning("errors of GPUs are not seen any more: the kernel's log: %s", error)
                self._close()
                break
            if not record:
                break
            records += record.decode("utf-8", "replace").splitlines()
        return records

    def _close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            os.close(log)


def _listed_buses(folder: str) -> list[str]:
    """Return the buses of the machine's GPUs in the driver's order; empty without a driver."""
    try:
        names = [entry.name for entry in Path(folder).iterdir()]
    except OSError:
        return []
    return [bus_of(name) for name in sorted(names)]


def _open_at_end(path: str) -> int | None:
    """Open the kernel's log after its last record; None without access."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
