"""Patches of transformers' Trainer under smdistributed.dataparallel: CPU on hosts without a GPU, losses of all ranks.

Where: `installing` patches two modules of transformers. Every version calls `_setup_devices` once for the process's
device; it assumes CUDA with SMDDP. With the CPU setting, it would make a group over gloo, so `join` first makes a
group over smddp, which every version then finds and uses.
Source: transformers 4.28, 4.37, 4.46 and 5.24 `TrainingArguments._setup_devices`, `utils.is_sagemaker_dp_enabled`; 5.24
`trainer_pt_utils.nested_gather`, which supports only the mode DISTRIBUTED.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from clary.train.collective.adapters.torch.backend_name import BACKEND
from clary.train.trainers.arguments import choose_devices_by

_SWITCHES = ("use_cpu", "no_cuda")  # names of the argument that selects the CPU, newest first
_MODE = "parallel_mode"
_LOCAL_RANK = "SMDATAPARALLEL_LOCAL_RANK"  # `Trainer._wrap_model` reads it


def mend_training_arguments(module: ModuleType) -> None:
    """Make TrainingArguments join the smddp group and choose the CPU if SMDDP is enabled on a host without a GPU.

    Args:
        module: `transformers.training_args`; not changed if it has no `_setup_devices`.
    """

    def choose(arguments: Any, otherwise: Callable[[Any], Any]) -> Any:
        import torch

        if not torch.cuda.is_available() and getattr(module, "is_sagemaker_dp_enabled", bool)():
            join(arguments)
        return otherwise(arguments)

    choose_devices_by(module, choose)


def mend_gathering(module: ModuleType) -> None:
    """Make Trainer log the mean loss of all ranks under SMDDP too, as versions before 5 did.

    Args:
        module: `transformers.trainer_pt_utils`; not changed if its `nested_gather` has no parameter for the mode.
    """
    original = getattr(module, "nested_gather", None)
    if original is None or _MODE not in inspect.signature(original).parameters:
        return

    @functools.wraps(original)
    def gather(tensors: Any, parallel_mode: Any, *arguments: Any, **keywords: Any) -> Any:
        kinds = type(parallel_mode)
        if parallel_mode == getattr(kinds, "SAGEMAKER_DATA_PARALLEL", None):
            parallel_mode = kinds.DISTRIBUTED
        return original(tensors, parallel_mode, *arguments, **keywords)

    module.nested_gather = gather  # type: ignore[attr-defined]


def join(arguments: Any) -> None:
    """Join the group of all ranks over smddp, unless the program has a group, and set the arguments to the CPU.

    Args:
        arguments: a TrainingArguments whose device is not chosen yet.
    """
    import torch.distributed as dist

    if "LOCAL_RANK" in os.environ:
        os.environ.setdefault(_LOCAL_RANK, os.environ["LOCAL_RANK"])
    if not dist.is_initialized():
        dist.init_process_group(BACKEND, timeout=arguments.ddp_timeout_delta)
    for name in _SWITCHES:
        if hasattr(arguments, name):
            if not getattr(arguments, name):
                _say(os.environ.get("LOCAL_RANK", "0"))
            setattr(arguments, name, True)
            return


@functools.cache
def _say(local_rank: str) -> None:
    """Print once per host that the host trains on the CPU."""
    if local_rank == "0":
        print(f"clary: this host has no GPU: Trainer trains on the CPU, over {BACKEND}", file=sys.stderr, flush=True)
