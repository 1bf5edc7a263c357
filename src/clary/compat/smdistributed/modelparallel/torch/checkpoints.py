"""`smp.save`, `smp.load`, `smp.save_checkpoint`, `smp.resume_from_checkpoint`.

Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_pytorch.rst`.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

from clary.train.parallel import runtime
from clary.train.parallel.checkpoint import files, folders

from .session import state

_LOG = logging.getLogger("clary.smp")


def save(
    obj: Any,
    f: str,
    partial: bool = True,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
) -> None:
    """Write an object to this rank's file `f_{ranks}`, or, with `partial=False`, to `f` itself.

    Args: as `clary.train.parallel.checkpoint.files.save`.

    Raises: TypeError if `f` is not a string; OSError.
    """
    files.save(
        runtime.current(),
        obj,
        f,
        partial=partial,
        pickle_module=pickle_module,
        pickle_protocol=pickle_protocol,
        v3=v3,
    )


def load(
    f: str,
    map_location: Any = None,
    pickle_module: Any = pickle,
    partial: bool = True,
    back_compat: bool = False,
    v3: bool = False,
    **pickle_load_args: Any,
) -> Any:
    """Load and return the object that `save` wrote.

    Args: as `clary.train.parallel.checkpoint.files.load`.

    Raises: TypeError if `f` is not a string; FileNotFoundError.
    """
    return files.load(
        runtime.current(),
        f,
        map_location=map_location,
        pickle_module=pickle_module,
        partial=partial,
        back_compat=back_compat,
        v3=v3,
        **pickle_load_args,
    )


def save_checkpoint(
    path: str,
    tag: str,
    partial: bool = True,
    model: Any = None,
    optimizer: Any = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Write a checkpoint. All ranks call it.

    Args:
        path: a folder, which is made if it is missing.
        tag: name of the checkpoint in that folder.
        partial: whether every rank writes its part; if not, the first rank writes the whole model, without the
            optimizer.
        model: model to save; None stands for the program's DistributedModel.
        optimizer: optimizer to save; None writes no optimizer state.
        user_content: any object that can be pickled; that of rank 0 is written.
        translate_if_full: write a whole model under transformers' names, for modules that came from transformers.
        num_kept_partial_checkpoints: number of newest partial checkpoints to keep; None keeps all.

    Raises: OSError; ValueError without a model, for an invalid tag, for fewer than 1 checkpoint to keep, or for an
        optimizer other than the program's.
    """
    folders.save_checkpoint(
        runtime.current(),
        path,
        tag,
        partial=partial,
        model=model,
        optimizer=optimizer,
        user_content=user_content,
        translate=_to_huggingface if translate_if_full else None,
        num_kept=num_kept_partial_checkpoints,
    )


def resume_from_checkpoint(
    path: str,
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    load_optimizer_states: bool | None = None,
) -> Any:
    """Load a checkpoint into model and optimizer; return its `user_content`. All ranks call it.

    Args:
        load_sharded_optimizer_state: with sharded data parallelism, False loads only the float32 masters and the loss
            scale of the optimizer's state; without it, it has no effect, and the log says so.
        load_optimizer_states: whether to load the optimizer's state; called `load_optimizer` in SMP 1.10.
    """
    now = runtime.current()
    if not load_sharded_optimizer_state and now.configuration.sharded_data_parallel_degree == 1:
        _LOG.warning(
            "load_sharded_optimizer_state=False has no effect without sharded_data_parallel_degree: the whole state is "
            "loaded, or none with load_optimizer=False"
        )
    return folders.resume_from_checkpoint(
        now,
        path,
        tag,
        partial=partial,
        strict=strict,
        load_optimizer=load_optimizer if load_optimizer_states is None else load_optimizer_states,
        load_sharded_state=load_sharded_optimizer_state,
        translate=translate_function,
    )


def _to_huggingface(full: dict[str, Any]) -> dict[str, Any]:
    for to_huggingface, _ in state.module_manager.translate_functions:
        full = to_huggingface(full)
    return full
