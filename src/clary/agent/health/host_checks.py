"""Measurements of a single host: disk, memory, clock, GPUs; each with a time limit.

Where: `supervisor.host_health` runs all checks when the host is prepared, and the cheap checks while the program runs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import urlsplit

from clary.agent.health.gpu_checks import check_gpus
from clary.agent.health.host_verdicts import DiskReading, clock_finding, disk_finding, memory_finding
from clary.contract.health import Check, FindingState, HealthFinding
from clary.contract.launch_plan import HostPlan, LaunchPlan

_WRITE_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_WRITE_S = 0.2  # time limit of the writes, without the fsync that follows
_CHECK_S = 3.0  # for each check but that of the GPUs, even if a disk hangs
_CLOCK_S = 1.0  # timeout of one answer of the service
_CLOCK_TRIES = 3
_MAX_ANSWER_BYTES = 64 * 1024
_GPU_S = 60.0  # includes the start of a driver and the import of torch
_PROBE_FILE = "health-probe"

HOST_CHECKS = (Check.DISK, Check.MEMORY, Check.CLOCK, Check.GPU)

logger = logging.getLogger(__name__)


UnderWay = dict[Check, threading.Thread]  # checks that have begun and may still run


def check_host(
    plan: LaunchPlan,
    host: HostPlan,
    under_way: UnderWay,
    *,
    writes: bool,
    computes: bool,
    wanted: Collection[Check] = HOST_CHECKS,
) -> tuple[HealthFinding, ...]:
    """Return the findings on a single host; all checks run at once.

    Args:
        plan: of the attempt, with the service's URL and the work folder.
        host: this host.
        under_way: threads of earlier calls; a check that still hangs is not started again. Updated by the call.
        writes: whether to measure the speed of the disk.
        computes: whether to multiply matrices on GPUs.
        wanted: checks to run.
    """
    folder = Path(plan.work_folder) / host.name
    checks: list[tuple[Check, Callable[[], HealthFinding], float]] = [
        (Check.DISK, lambda: disk_finding(host.name, read_disk(folder, writes=writes)), _CHECK_S),
        (Check.MEMORY, lambda: memory_finding(host.name, available_memory(), host.resources.memory_bytes), _CHECK_S),
        (Check.CLOCK, lambda: clock_finding(host.name, *clock_offset(plan.service_url)), _CHECK_S),
    ]
    if host.resources.gpu_indices:
        checks.append((Check.GPU, lambda: check_gpus(plan, host, computes=computes), _GPU_S))
    began_s = time.monotonic()
    answers = [(check, _begin(check, act, under_way), limit_s) for check, act, limit_s in checks if check in wanted]
    found = []
    for check, answer, limit_s in answers:
        try:
            outcome = answer.get(timeout=max(0.0, began_s + limit_s - time.monotonic())) if answer is not None else None
            words = f"the check broke: {outcome!r}" if answer is not None else "the check of before has not ended yet"
        except queue.Empty:
            outcome, words = None, f"the check did not end within {limit_s:g} s"
        if not isinstance(outcome, HealthFinding):
            outcome = HealthFinding(check=check, state=FindingState.WARN, host=host.name, words=words)
        found.append(outcome)
    if Check.GPU in wanted and not host.resources.gpu_indices:
        words = "the host has no GPU"
        found.append(HealthFinding(check=Check.GPU, state=FindingState.SKIPPED, host=host.name, words=words))
    return tuple(found)


def read_disk(folder: Path, *, writes: bool) -> DiskReading:
    """Return a reading of the disk below a folder; with `writes` a few MiB are written there and removed.

    An error is part of the reading.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if not writes or free < 2 * _WRITE_BYTES:
            return DiskReading(folder=str(folder), free_bytes=free)
        written, seconds = _write(folder / _PROBE_FILE)
    except OSError as error:
        return DiskReading(folder=str(folder), free_bytes=0, error=error.strerror or str(error))
    return DiskReading(folder=str(folder), free_bytes=free, written_bytes=written, write_s=seconds)


def available_memory() -> int | None:
    """Return the machine's available memory in bytes, or None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def clock_offset(service_url: str) -> tuple[float | None, str]:
    """Return the seconds by which this clock is ahead of the service's clock and "", or None and the reason.

    The service's time is assumed to be from the middle of the exchange. The shortest of a few exchanges counts, and an
    offset within half its duration counts as 0.
    """
    url = urlsplit(service_url)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=_CLOCK_S)
    try:
        took_s, ahead_s = min(_ahead(connection) for _ in range(_CLOCK_TRIES))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return None, f"the service at {service_url} did not say its time: {error!r}"
    finally:
        connection.close()
    return (ahead_s if abs(ahead_s) > took_s / 2 else 0.0), ""


def _ahead(connection: http.client.HTTPConnection) -> tuple[float, float]:
    """Get the service's time; return the duration of the request and this clock's lead in seconds."""
    began_s = time.monotonic()
    connection.request("GET", "/clary/v1/health")
    theirs_s = float(json.loads(connection.getresponse().read(_MAX_ANSWER_BYTES))["now_s"])
    took_s = time.monotonic() - began_s
    return took_s, time.time() - took_s / 2 - theirs_s


def _write(path: Path) -> tuple[int, float]:
    written = 0
    began_s = time.monotonic()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        while written < _WRITE_BYTES and time.monotonic() - began_s < _WRITE_S:
            written += os.write(descriptor, bytes(_CHUNK_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
    return written, time.monotonic() - began_s


def _begin(
    check: Check, act: Callable[[], HealthFinding], under_way: UnderWay
) -> queue.SimpleQueue[HealthFinding | Exception] | None:
    """Run a check on a thread of its own, which may hang on a disk; return None if an earlier one still hangs."""
    former = under_way.get(check)
    if former is not None and former.is_alive():
        return None
    answer: queue.SimpleQueue[HealthFinding | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer.put(act())
        except Exception as error:  # error boundary: a failed check is reported as failed
            logger.exception("the check of %s broke", check)
            answer.put(error)

    under_way[check] = threading.Thread(target=run, name="health-check", daemon=True)
    under_way[check].start()
    return answer
