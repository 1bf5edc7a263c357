"""Hyperparameters with the platform's prefix that no launcher reads, and the names that were probably meant.

Where: the service warns of these keys when a job is created. Every `sagemaker_*` key is hidden from the program's
arguments, so that a misspelt key has no effect and causes no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from clary.contract.settings import distribution
from clary.contract.settings.hyperparameters import (
    COMPILER_DEBUG_MODE,
    COMPILER_ENABLED,
    CUDA_ON_CPU,
    HOST_SHARE,
    MIXED_PRECISION,
    PLATFORM_PREFIX,
    TOOLKIT_KEYS,
    is_enabled,
    parse_value,
)

LAUNCHER_KEYS = frozenset(
    {
        distribution.MPI_ENABLED,
        distribution.MPI_PROCESSES_PER_HOST,
        distribution.MPI_CUSTOM_OPTIONS,
        distribution.PYTORCH_DDP_ENABLED,
        distribution.TORCH_DISTRIBUTED_ENABLED,
        distribution.DATAPARALLEL_ENABLED,
        distribution.DATAPARALLEL_CUSTOM_OPTIONS,
        distribution.XLA_ENABLED,
        distribution.PARAMETER_SERVER_ENABLED,
        distribution.MULTI_WORKER_MIRRORED_ENABLED,
        distribution.INSTANCE_GROUPS,
        COMPILER_ENABLED,
        COMPILER_DEBUG_MODE,
        MIXED_PRECISION,
        CUDA_ON_CPU,
        HOST_SHARE,
    }
)
# SDKs send these keys by themselves; no launcher needs them.
SENT_BY_SDKS = frozenset(
    {
        "sagemaker_instance_type",
        "sagemaker_estimator_module",
        "sagemaker_estimator_class_name",
    }
)
KNOWN_KEYS = LAUNCHER_KEYS | TOOLKIT_KEYS
# Switches of the launchers; the first switch that is on determines the launcher.
LAUNCHERS = tuple(name for name, _ in distribution.LAUNCH_ORDER)
SWITCHES = (*LAUNCHERS, COMPILER_ENABLED, COMPILER_DEBUG_MODE, MIXED_PRECISION, CUDA_ON_CPU)
NEARNESS = 0.8  # cutoff of difflib: one or two letters of a name may differ
# Without the prefix, which would make 'sagemaker_use_mpi' similar to 'sagemaker_amp'.
_ENDS_OF_NAMES = sorted(name.removeprefix(PLATFORM_PREFIX) for name in KNOWN_KEYS if name.startswith(PLATFORM_PREFIX))


def warnings(hyperparameters: Mapping[str, str], *, has_command: bool) -> tuple[str, ...]:
    """Return a sentence on each platform key that no launcher reads, and on each switch that has no effect.

    Args:
        hyperparameters: as the request gave them.
        has_command: whether ContainerEntrypoint names the program: then only keys that are similar to a known key are
            reported, because the program may read keys of its own from hyperparameters.json.
    """
    found = []
    for name in hyperparameters:
        if not name.startswith(PLATFORM_PREFIX) or name in KNOWN_KEYS or name in SENT_BY_SDKS:
            continue
        near = get_close_matches(name.removeprefix(PLATFORM_PREFIX), _ENDS_OF_NAMES, n=1, cutoff=NEARNESS)
        if near:
            meant = PLATFORM_PREFIX + near[0]
            found.append(f"hyperparameter {name!r} has no effect: nothing reads it; did you mean {meant!r}?")
        elif not has_command:
            found.append(
                f"hyperparameter {name!r} has no effect: names that begin with {PLATFORM_PREFIX} are the platform's, "
                "and no launcher reads this one"
            )
    return (*found, *([] if has_command else _switch_warnings(hyperparameters)))


def _switch_warnings(hyperparameters: Mapping[str, str]) -> list[str]:
    """Return a sentence on each switch that is neither true nor false, and on each launcher that another overrides."""
    found = []
    for name in SWITCHES:
        value = parse_value(hyperparameters.get(name, "null"))
        if isinstance(value, str) and value.strip().lower() not in ("", "true", "false"):
            found.append(f"hyperparameter {name!r} counts as false: expected true or false, got {value[:40]!r}")
    first, *others = [name for name in LAUNCHERS if is_enabled(hyperparameters, name)] or [""]
    found += [
        f"hyperparameter {name!r} has no effect beside {first!r}, which chooses the launcher"
        for name in others
        if name != distribution.DATAPARALLEL_ENABLED  # the library works with every launcher
    ]
    return found
