"""Horovod settings, which programs and launchers set as environment variables.

Each variable HOROVOD_... is read here or in `places`, serves a launcher alone, or has no effect; one exception is
HOROVOD_ELASTIC, which `horovod.tensorflow.gradients` reads. Rank 0 logs at the start which variables are set without
being read anywhere or set by launchers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

_MIB = 1 << 20
_MS = 1000  # per second
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
_PREFIX = "HOROVOD_"
_READ = frozenset(
    {
        "HOROVOD_FUSION_THRESHOLD",
        "HOROVOD_CYCLE_TIME",
        "HOROVOD_CACHE_CAPACITY",
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "HOROVOD_STALL_CHECK_DISABLE",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "HOROVOD_GLOO_IFACE",
        "HOROVOD_LOG_LEVEL",
        "HOROVOD_TIMELINE",
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        "HOROVOD_ELASTIC",
    }
)
# Variables that `places` reads or that launchers set for their ranks; users do not set these by hand.
_OF_LAUNCHERS = frozenset(
    {
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_HOSTNAME",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
    }
)
_LOG_LEVELS: Mapping[str, int] = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


@dataclass(frozen=True, kw_only=True)
class HorovodSettings:
    """Horovod settings, each from the environment variable that its description names.

    Args:
        fusion_bytes: HOROVOD_FUSION_THRESHOLD, limit of one fused all-reduce; 0 fuses no tensors.
        cycle_s: HOROVOD_CYCLE_TIME (milliseconds there): pause of the engine's thread before a round, and first pause
            after a round in which nothing was ready.
        cache_capacity: HOROVOD_CACHE_CAPACITY, maximum number of known tensors, each of which one bit announces.
        stall_warning_s: HOROVOD_STALL_CHECK_TIME_SECONDS; infinite for 0 and with HOROVOD_STALL_CHECK_DISABLE=1.
        stall_limit_s: HOROVOD_STALL_SHUTDOWN_TIME_SECONDS; infinite for 0.
        timeout_s: HOROVOD_GLOO_TIMEOUT_SECONDS: the longest wait for other ranks in a round or an operation.
        timeline: HOROVOD_TIMELINE, path of a file; "" for none.
        marks_cycles: HOROVOD_TIMELINE_MARK_CYCLES: whether the timeline marks each round.
        has_dynamic_sets: HOROVOD_DYNAMIC_PROCESS_SETS: whether process sets may be added later.
        interface: HOROVOD_GLOO_IFACE, network interface, used if CLARY_COLLECTIVE_INTERFACE is not set.
        log_level: HOROVOD_LOG_LEVEL, as logging numbers it.
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
    interface: str = ""
    log_level: int = logging.WARNING

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
            interface=environ.get("HOROVOD_GLOO_IFACE", "").strip(),
            log_level=_log_level(environ),
        )


def without_effect(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence on each variable HOROVOD_... that is set and has no effect here."""
    names = sorted(name for name in environ if name.startswith(_PREFIX) and name not in _READ | _OF_LAUNCHERS)
    found = (name for name in names if environ[name].strip() not in ("", "0"))
    return tuple(f"{name} has no effect: {WITHOUT_EFFECT.get(name, 'nothing here reads it')}" for name in found)


def _log_level(environ: Mapping[str, str]) -> int:
    text = environ.get("HOROVOD_LOG_LEVEL", "").strip().lower() or "warning"
    if text not in _LOG_LEVELS:
        raise ValueError(f"HOROVOD_LOG_LEVEL is {text!r}; expected one of {', '.join(_LOG_LEVELS)}")
    return _LOG_LEVELS[text]


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
