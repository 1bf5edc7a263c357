"""One object in one file, whose name shows the rank that wrote it.

Where: `smp.save`, `smp.load`, and `folders`. A file exists whole or not at all: it is written under another name and
renamed.

    f_{mp_rank}                     without tensor parallelism
    f_{pp_rank}_{tp_rank}           with tensor parallelism
    f_{pp_rank}_{tp_rank}_{rdp_rank}  if replicas hold different states (sharded optimizer state)

Source: sagemaker-python-sdk `doc/api/training/smp_versions/latest/smd_model_parallel_pytorch.rst`, "smp.save".
"""

from __future__ import annotations

import glob
import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import torch

from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.runtime import Runtime


def rank_words(runtime: Runtime, *, has_replicas: bool = False, back_compat: bool = False) -> str:
    """Return the suffix of the name of this rank's file.

    Args:
        has_replicas: every replica has a file of its own.
        back_compat: use the suffix of versions before tensor parallelism.
    """
    groups = runtime.groups
    ranks = [groups.group_rank(Along.PP), groups.group_rank(Along.TP)]
    if has_replicas:
        return "_".join(map(str, [*ranks, groups.group_rank(Along.RDP)]))
    if runtime.configuration.tensor_parallel_degree > 1 and not back_compat:
        return "_".join(map(str, ranks))
    return str(groups.group_rank(Along.MP))


def save(
    runtime: Runtime,
    obj: Any,
    f: str,
    *,
    partial: bool = True,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
) -> None:
    """Write `obj` to this rank's file, or to `f` itself.

    Args:
        f: a path; this rank's file is `f`, an underscore and `rank_words`.
        partial: False writes `f` itself, so only one rank should call `save`.
        v3: every replica has a file of its own.

    Raises: TypeError if `f` is no text; OSError.
    """
    path = Path(f"{_text(f)}_{rank_words(runtime, has_replicas=v3)}" if partial else _text(f))
    write_whole(path, obj, pickle_module=pickle_module, pickle_protocol=pickle_protocol)


def load(
    runtime: Runtime,
    f: str,
    *,
    map_location: Any = None,
    pickle_module: Any = pickle,
    partial: bool = True,
    back_compat: bool = False,
    v3: bool = False,
    **pickle_load_args: Any,
) -> Any:
    """Load and return the object that `save` wrote. Files are pickles: load only trusted files.

    Args:
        f: the path that `save` was given.
        map_location: as torch.load takes it.
        partial: read this rank's file; False reads `f` itself.
        back_compat: this rank's file has the suffix of versions before tensor parallelism.
        v3: every replica has a file of its own. Without `v3`, such a file is read if there is no other.
        pickle_load_args: more arguments of torch.load; `weights_only` is False unless it is among them.

    Raises: TypeError if `f` is no text; FileNotFoundError.
    """
    path = f"{_text(f)}_{rank_words(runtime, has_replicas=v3, back_compat=back_compat)}" if partial else _text(f)
    if partial and not v3 and not Path(path).exists():  # callers pass `v3` to `save`, but not to `load`
        path = next(filter(os.path.exists, [f"{f}_{rank_words(runtime, has_replicas=True)}"]), path)
    if not Path(path).exists():
        raise FileNotFoundError(f"smp.load: there is no {path}{_what_is_there(f, partial=partial)}")
    arguments = {"weights_only": False, **pickle_load_args}
    return torch.load(path, map_location=map_location, pickle_module=pickle_module, **arguments)


def write_whole(path: Path, obj: Any, **arguments: Any) -> None:
    """Write a file so that it exists whole or not at all; make its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("wb") as file:
            torch.save(obj, file, **arguments)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _what_is_there(f: str, *, partial: bool) -> str:
    """Return a hint for an error: files at `f` that need other arguments of `load`; empty without such files."""
    others = sorted(one.name for one in Path(f).parent.glob(f"{glob.escape(Path(f).name)}_*"))
    if partial and Path(f).exists():
        return f"; {f} is there, as smp.save writes it with partial=False: load it with partial=False"
    if not partial and others:
        return f"; {others[0]} is there, as smp.save writes it with partial=True: load it with partial=True"
    if partial and others:
        return f"; {', '.join(others)} are there, of other ranks or degrees: load with the degrees of the save"
    return ""


def _text(f: Any) -> str:
    if not isinstance(f, str):
        raise TypeError(f"smp.save and smp.load take a path as text; got {type(f).__name__}")
    return f
