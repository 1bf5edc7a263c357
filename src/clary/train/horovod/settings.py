"""Settings of Horovod that programs and launchers put into the environment.

Each variable of Horovod is read, or named in `WITHOUT_EFFECT`; a log line says so at the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_MIB = 1 << 20
_MS = 1000  # a second
WITHOUT_EFFECT: Mapping[str, str] = {
    "HOROVOD_AUTOTUNE": "the cost model of the collectives chooses",
    "HOROVOD_AUTOTUNE_LOG": "the cost model of the collectives chooses",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "ranks of one host always reduce among themselves first",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "ranks of one host always share memory",
    "HOROVOD_CPU_OPERATIONS": "one core runs all operations",
    "HOROVOD_CONTROLLER": "one core runs all operations",
    "HOROVOD_GPU_OPERATIONS": "tensors of a GPU travel through memory of the host",
    "HOROVOD_NUM_NCCL_STREAMS": "NCCL is not used",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI is not used",
    "HOROVOD_THREAD_AFFINITY": "the operating system places threads",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "MPI is not used",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "tensors of a GPU travel through memory of the host",
}


@dataclass(frozen=True, kw_only=True)
class HorovodSettings:
    """Settings of Horovod, each from a variable of its name.

    Args:
        fusion_bytes: HOROVOD_FUSION_THRESHOLD, of one common all-reduce; 0 for none.
        cycle_s: HOROVOD_CYCLE_TIME (milliseconds there): pause after a round in which nothing was ready.
        cache_capacity: HOROVOD_CACHE_CAPACITY, tensors that are known by one bit.
        stall_warning_s: HOROVOD_STALL_CHECK_TIME_SECONDS; infinite with HOROVOD_STALL_CHECK_DISABLE=1.
        stall_limit_s: HOROVOD_STALL_SHUTDOWN_TIME_SECONDS; infinite for 0.
        timeout_s: HOROVOD_GLOO_TIMEOUT_SECONDS: what a rank's thread may take to come to a round.
        timeline: HOROVOD_TIMELINE, path of a file; "" for none.
        marks_cycles: HOROVOD_TIMELINE_MARK_CYCLES.
        has_dynamic_sets: HOROVOD_DYNAMIC_PROCESS_SETS.
    """

    fusion_bytes: int = 128 * _MIB
    cycle_s: float = 0.001
    cache_capacity: int = 1024
    stall_warning_s: float = 60.0
    stall_limit_s: float = math.inf
    timeout_s: float = 300.0
    timeline: str = ""
    marks_cycles: bool = False
    has_dynamic_sets: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> HorovodSettings:
        """Read the variables. Raises: ValueError naming the variable, its value and the expected form."""
        limit_s = _number(environ, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0)
        is_unwatched = _is_set(environ, "HOROVOD_STALL_CHECK_DISABLE")
        warning_s = _number(environ, "HOROVOD_STALL_CHECK_TIME_SECONDS", cls.stall_warning_s)
        return cls(
            fusion_bytes=int(_number(environ, "HOROVOD_FUSION_THRESHOLD", cls.fusion_bytes)),
            cycle_s=_number(environ, "HOROVOD_CYCLE_TIME", cls.cycle_s * _MS) / _MS,
            cache_capacity=int(_number(environ, "HOROVOD_CACHE_CAPACITY", cls.cache_capacity)),
            stall_warning_s=math.inf if is_unwatched or not warning_s else warning_s,
            stall_limit_s=limit_s or math.inf,
            timeout_s=_number(environ, "HOROVOD_GLOO_TIMEOUT_SECONDS", cls.timeout_s) or cls.timeout_s,
            timeline=environ.get("HOROVOD_TIMELINE", "").strip(),
            marks_cycles=_is_set(environ, "HOROVOD_TIMELINE_MARK_CYCLES"),
            has_dynamic_sets=_is_set(environ, "HOROVOD_DYNAMIC_PROCESS_SETS"),
        )


def without_effect(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence on each variable that is set and has no effect here."""
    found = (name for name in WITHOUT_EFFECT if environ.get(name, "").strip() not in ("", "0"))
    return tuple(f"{name} has no effect: {WITHOUT_EFFECT[name]}" for name in found)


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() not in ("", "0", "false")


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {text!r}; expected a number, 0 or more")
    return value
