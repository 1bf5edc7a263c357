"""Checkpoints of a whole program, which all ranks write and from which all ranks resume.

Where: `smp.save_checkpoint`, `smp.resume_from_checkpoint`.

    path/newest                          the name of the last complete save: {tag}_partial or {tag}
    path/{tag}_partial/model_{ranks}.pt, optimizer_{ranks}.pt, fp16_states_{ranks}.pt, user_content.pt, layout.json
    path/{tag}, path/user_content_{tag}  full: the model alone, from the first rank

`layout.json` holds the degrees, the precision and the places of modules, so that a program of the same degrees and
precision is cut as before. Any other program loads the model from the files of all ranks, or raises an error if it or
the saving program shards parameters or optimizer state. It loads the optimizer's state only if neither program cuts
tensors and the saving program had no half precision, else it raises an error. A partial save is written to a temporary
folder and renamed once all ranks have written. All its files contain the same random mark. If hosts have folders of
their own, files of two saves may be mixed; the marks then differ, and the mixture is refused.
Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_pytorch.rst`,
"smp.save_checkpoint".
"""

from __future__ import annotations

import importlib
import json
import logging
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from clary.train.parallel.checkpoint.files import rank_words, write_whole
from clary.train.parallel.checkpoint.model_state import State, merge_parts
from clary.train.parallel.checkpoint.places import (
    LAYOUT,
    LAYOUT_BEFORE,
    PARTIAL,
    move,
    prune,
    put_in_place,
    write_text,
)
from clary.train.parallel.errors import CheckpointError
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.mistakes.parts import state_of_parts
from clary.train.parallel.runtime import Runtime

_LOG = logging.getLogger("clary.smp")
_NEWEST = "newest"
_CONTENT = "user_content_"  # prefix of a file's name, before the tag of a full checkpoint
_SAFETENSORS = "model.safetensors"
_HALF = ("masters", "loss_scale")  # keys of an optimizer's state that go to fp16_states files
_MARK = "_clary_save"  # key of the mark in all files of one save


def save_checkpoint(
    runtime: Runtime,
    path: str,
    tag: str,
    *,
    partial: bool = True,
    model: Any = None,
    optimizer: Any = None,
    user_content: Any = None,
    translate: Callable[[State], State] | None = None,
    num_kept: int | None = None,
) -> None:
    """Write a checkpoint. All ranks call it.

    Args:
        partial: every rank writes its part; else the first rank writes the whole model, without the optimizer.
        user_content: any object that can be pickled; that of rank 0 is written.
        translate: changes the whole model before it is written.
        num_kept: number of newest partial checkpoints to keep; None keeps all.

    Raises: OSError; ValueError without a model, for a tag that is not a file name, for `num_kept` below 1, or for an
        optimizer other than the program's.
    """
    if optimizer is not None and optimizer is not runtime.optimizer:
        raise ValueError(
            f"save_checkpoint: optimizer is a {type(optimizer).__name__}, and not the DistributedOptimizer that was "
            "made last, into which resume_from_checkpoint loads: pass that"
        )
    if model is None and runtime.model is None:
        raise ValueError("save_checkpoint: pass model=, or make a DistributedModel first")
    if num_kept is not None and num_kept < 1:
        raise ValueError(f"save_checkpoint: {num_kept} checkpoints are to be kept; expected 1 or more")
    if Path(tag).name != tag:
        raise ValueError(f"save_checkpoint: tag {tag!r} is no name of a folder")
    model = model if model is not None else runtime.model
    folder = Path(path)
    has_moved = False
    if partial:
        has_moved = _save_parts(runtime, folder / f"{tag}{PARTIAL}", model, optimizer, user_content)
    else:
        state = model.state_dict()
        if runtime.rank == 0:
            if optimizer is not None:
                _LOG.warning("save_checkpoint: %s holds the model alone; with partial=True the optimizer too", tag)
            write_whole(folder / tag, translate(state) if translate else state)
            if user_content is not None:
                write_whole(folder / f"{_CONTENT}{tag}", user_content)
    runtime.groups.barrier(Along.WORLD)  # all files are written
    if runtime.place.local_rank == 0:
        write_text(folder / _NEWEST, f"{tag}{PARTIAL}" if partial else tag)
    if has_moved and num_kept is not None:
        prune(folder, num_kept)
    runtime.groups.barrier(Along.WORLD)


def resume_from_checkpoint(
    runtime: Runtime,
    path: str,
    tag: str | None = None,
    *,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_state: bool = True,
    translate: Callable[[State], State] | None = None,
) -> Any:
    """Load a checkpoint into the program's model and optimizer, at once or as soon as modules are placed.

    All ranks call it.

    Args:
        tag: None takes the newest.
        partial: as in the save; without a tag, the newest save decides.
        load_sharded_state: with sharded data parallelism, whether the optimizer's state is loaded; if not, only the
            float32 masters, which are the model's shards, and the loss scale are. Without it, this has no effect.
        translate: changes a whole model before it is loaded.

    Returns: the saved `user_content`; None without it. For a full checkpoint without `user_content`, the loaded state.
    Raises: FileNotFoundError; CheckpointError if files do not belong together, or if the degrees differ and the state
        cannot be converted; RuntimeError without a DistributedModel.
    """
    if runtime.model is None:
        raise RuntimeError("resume_from_checkpoint: make the DistributedModel first")
    folder = Path(path)
    if tag is None:
        if not (folder / _NEWEST).exists():
            raise FileNotFoundError(f"{folder} has no {_NEWEST}: no checkpoint was finished there{_saved(folder)}")
        newest = (folder / _NEWEST).read_text(encoding="utf-8").strip()
        tag = newest.removesuffix(PARTIAL)
        partial = newest.endswith(PARTIAL)
    if partial:
        return _resume_parts(
            runtime,
            folder / f"{tag}{PARTIAL}",
            strict=strict,
            load_optimizer=load_optimizer,
            load_sharded_state=load_sharded_state,
        )
    state = _whole(folder / tag, runtime.model.inner)
    if load_optimizer and runtime.optimizer is not None and runtime.rank == 0:
        _LOG.warning("%s holds the model alone: the optimizer begins anew", folder / tag)
    if translate is not None:
        state = translate(state)
    elif set(state) != set(state_of_parts(runtime.model.inner)):  # saved under the names of another library
        for _, to_ours in reversed(runtime.model.translations):
            state = to_ours(state)
    runtime.model.load_state_dict(state, strict=strict)
    content = folder / f"{_CONTENT}{tag}"
    return _read(content) if content.exists() else state


def _whole(file: Path, inner: Any) -> State:
    """Return a whole model from the file or, if it is missing, from the safetensors file beside it.

    transformers 4.35 and newer writes model.safetensors, which holds shared parameters once.
    """
    beside = file.with_name(_SAFETENSORS)
    if not file.exists() and not beside.exists():
        raise FileNotFoundError(f"there is no {file}{_saved(file.parent)}")
    if file.exists():
        whole: State = _read(file)
        return whole
    # safetensors is installed, since it wrote the file
    state: State = importlib.import_module("safetensors.torch").load_file(beside)
    places = state_of_parts(inner, keep_vars=True)
    first = {id(value): name for name, value in reversed(places.items()) if name in state}
    shared = {name: state[first[id(value)]] for name, value in places.items() if id(value) in first}
    return {**shared, **state}


def _saved(folder: Path) -> str:
    """Return a hint for an error: the tags of the checkpoints in a folder, with the `partial` that loads them."""
    parts = [one.parent.name.removesuffix(PARTIAL) for one in folder.glob(f"*{PARTIAL}/{LAYOUT}")]
    files = [one for one in folder.glob("*") if not one.name.startswith((".", _CONTENT)) and zipfile.is_zipfile(one)]
    wholes = [one.name for one in files]
    told = [
        f"{', '.join(sorted(names))} with partial={is_partial}"
        for names, is_partial in ((parts, True), (wholes, False))
        if names
    ]
    return f"; there are tags {' and '.join(told)}" if told else ""


def _save_parts(runtime: Runtime, folder: Path, model: Any, optimizer: Any, user_content: Any) -> bool:
    """Write this rank's files to a temporary folder; after all ranks' writes, one rank of each folder renames it.

    The first rank of every host writes the user content of rank 0, since hosts may share the folder or not.

    After a kill at any moment, the earlier or the new checkpoint exists. If the kill came between two renames, the next
    resume finishes the move.

    Returns: whether this rank renamed it.
    """
    mark = uuid.uuid4().hex
    if runtime.rank == 0:
        runtime.groups.broadcast((mark, user_content), Along.WORLD)
    else:
        mark, user_content = runtime.groups.receive(0, Along.WORLD)
    beside = folder.with_name(f".{folder.name}.{mark}")
    is_sharded = _degrees(runtime)["sharded"]
    if is_sharded or runtime.groups.group_rank(Along.RDP) == 0:
        ranks = rank_words(runtime, has_replicas=is_sharded)
        write_whole(beside / f"model_{ranks}.pt", {**model.local_state_dict(), _MARK: mark})
        if optimizer is not None:
            state = dict(optimizer.local_state_dict())
            half = {name: state.pop(name) for name in _HALF if name in state}
            write_whole(beside / f"optimizer_{ranks}.pt", {**state, _MARK: mark})
            if half:
                write_whole(beside / f"fp16_states_{ranks}.pt", {**half, _MARK: mark})
    if runtime.place.local_rank == 0:
        write_whole(beside / "user_content.pt", {"content": user_content, _MARK: mark})
        facts = {**_degrees(runtime), "owners": model.owners, "mark": mark, "has_optimizer": optimizer is not None}
        write_text(beside / LAYOUT_BEFORE, json.dumps(facts))
    runtime.groups.barrier(Along.WORLD)  # all files exist
    return runtime.place.local_rank == 0 and move(beside, folder)


def _resume_parts(
    runtime: Runtime, folder: Path, *, strict: bool, load_optimizer: bool, load_sharded_state: bool
) -> Any:
    if runtime.place.local_rank == 0:
        put_in_place(folder)
    runtime.groups.barrier(Along.WORLD)
    if not (folder / LAYOUT).exists():
        raise FileNotFoundError(
            f"{folder} has no {LAYOUT}: no partial checkpoint is there, or it was not finished{_saved(folder.parent)}"
        )
    layout = json.loads((folder / LAYOUT).read_text(encoding="utf-8"))
    is_same = all(layout[key] == value for key, value in _degrees(runtime).items())
    model, optimizer = runtime.model, runtime.optimizer
    loads_optimizer = load_optimizer and optimizer is not None and layout["has_optimizer"]
    if load_optimizer and optimizer is not None and not layout["has_optimizer"] and runtime.rank == 0:
        _LOG.warning("%s was saved without optimizer=, which begins anew", folder)
    if not is_same:
        _resume_elsewhere(runtime, folder, layout, strict=strict, load_optimizer=loads_optimizer)
    else:
        model.place_as(layout["owners"])
        ranks = rank_words(runtime, has_replicas=layout["sharded"])
        model.load_state_dict(_read_part(folder, f"model_{ranks}.pt", layout), strict=strict, same_partition_load=True)
        if loads_optimizer:
            is_half = (folder / f"fp16_states_{ranks}.pt").exists()
            half = _read_part(folder, f"fp16_states_{ranks}.pt", layout) if is_half else {}
            if load_sharded_state or runtime.configuration.sharded_data_parallel_degree == 1:
                optimizer.load_state_dict({**_read_part(folder, f"optimizer_{ranks}.pt", layout), **half})
            else:
                optimizer.load_scale(half)
    return _read_part(folder, "user_content.pt", layout)["content"]


def _resume_elsewhere(runtime: Runtime, folder: Path, layout: Any, *, strict: bool, load_optimizer: bool) -> None:
    """Load from the files of all ranks into a program of other degrees."""
    if layout["sharded"] or _degrees(runtime)["sharded"]:
        raise CheckpointError(
            f"{folder} was saved with {_in_words(layout)}, this program has "
            f"{_in_words(_degrees(runtime))}: parts of sharded parameters or optimizers can be loaded "
            "only with the same degrees; save a full checkpoint to change the degrees"
        )
    if load_optimizer and (
        layout["tensor"] != 1 or runtime.configuration.tensor_parallel_degree != 1 or layout["fp16"] or layout["bf16"]
    ):
        raise CheckpointError(
            f"{folder} was saved with {_in_words(layout)}, this program has "
            f"{_in_words(_degrees(runtime))}: the optimizer's state is stored by slices or by ranks and "
            "cannot be redistributed; load_optimizer=False resumes with the model alone"
        )
    names = _names_of_all(folder, "model", layout)
    optimizer_names = _names_of_all(folder, "optimizer", layout) if load_optimizer else []
    parts = [_read_part(folder, name, layout) for name in names]
    states = [_read_part(folder, name, layout) for name in optimizer_names]
    runtime.model.load_state_dict(merge_parts(parts), strict=strict)
    if states:
        merged = {place: state for one in states for place, state in one["state"].items()}
        runtime.optimizer.load_state_dict({**states[0], "state": merged})


def _names_of_all(folder: Path, kind: str, layout: Any) -> list[str]:
    """Return the names of the files of all ranks that hold parts of the model.

    Raises: CheckpointError if any is missing.
    """
    names = sorted(one.name for one in folder.glob(f"{kind}_*.pt"))
    expected = layout["pipeline"] * layout["tensor"]
    if len(names) != expected:
        raise CheckpointError(
            f"{folder} has {len(names)} of {expected} files {kind}_*.pt: all are needed, because the "
            "degrees have changed"
        )
    return names


def _degrees(runtime: Runtime) -> dict[str, Any]:
    one = runtime.configuration
    is_sharded = one.shard_optimizer_state or one.sharded_data_parallel_degree > 1
    found: dict[str, Any] = {
        "pipeline": one.partitions,
        "tensor": one.tensor_parallel_degree,
        "sharded": is_sharded,
        "fp16": one.fp16,
        "bf16": one.bf16,
    }
    if is_sharded:
        found |= {
            "sharding degree": one.sharded_data_parallel_degree,
            "replicas": runtime.groups.size(Along.RDP),
        }
    return found


def _in_words(layout: Any) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in layout.items() if key not in ("owners", "mark", "has_optimizer")
    )


def _read_part(folder: Path, name: str, layout: Any) -> Any:
    if not (folder / name).exists():
        raise CheckpointError(f"{folder} has no {name}: is the folder the one that all hosts wrote to?")
    found = _read(folder / name)
    if found.pop(_MARK, None) != layout["mark"]:
        raise CheckpointError(
            f"{folder / name} belongs to another save than {LAYOUT}: a save under this tag was "
            "interrupted; resume from another tag"
        )
    return found


def _read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=False)
