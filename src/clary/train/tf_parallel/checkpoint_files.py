"""Files of checkpoints: listing of complete checkpoints, and copies from one rank to another.

Where: `checkpoint` lists complete checkpoints, and copies them to replicas on other hosts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from clary.train.parallel.errors import CheckpointError
from clary.train.parallel.layout.mesh import Along
from clary.train.tf_parallel.links import Links

_CUT_FILE = "partition.json"


def complete_ones(folder: str) -> list[str]:
    """Return the names of the complete checkpoints in a folder, oldest first."""
    state = tf.train.get_checkpoint_state(folder)
    names = [os.path.basename(path) for path in state.all_model_checkpoint_paths] if state else []
    return [name for name in names if os.path.exists(os.path.join(folder, f"{name}.index"))]


def write_cut(folder: str, facts: dict[str, Any]) -> None:
    """Write the cut of the model into the folder of its checkpoints."""
    path = Path(folder) / _CUT_FILE
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(facts), encoding="utf-8")
    unfinished.replace(path)


def check_cut(folder: str, facts: dict[str, Any]) -> None:
    """Check that a folder's checkpoints come from a model with the same cut.

    Raises: CheckpointError naming the difference.
    """
    path = Path(folder) / _CUT_FILE
    if not path.exists():
        return  # written by another program: only TensorFlow compares names
    saved = json.loads(path.read_text(encoding="utf-8"))
    for name, value in facts.items():
        if saved.get(name) != value:
            raise CheckpointError(
                f"the checkpoint in {folder} is of a model that was cut differently: {name} were "
                f"{saved.get(name)} when it was saved, and are {value} now. Restore it with the partitions, "
                "microbatches and batch size with which it was saved, which decide the cut, or save with "
                "auto_partition off"
            )


def send_checkpoint_files(links: Links, folder: str, dest: int) -> None:
    """Send all files of a folder, recursively, to another rank, which calls `receive_checkpoint_files`.

    Args:
        dest: global rank of the receiver.
    """
    root = Path(folder)
    files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    links.send(files, dest, Along.WORLD)


def receive_checkpoint_files(links: Links, folder: str, src: int) -> None:
    """Receive files from another rank into a folder, which is made if missing; replace existing files.

    Subfolders, such as `mp_rank_1`, are made as well.

    Args:
        src: global rank of the sender.

    Raises: CheckpointError for a name outside of the folder; earlier files are already written.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in links.receive(src, Along.WORLD).items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"rank {src} sent a file {name!r}, which does not lie in {folder}")
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_bytes(content)
        unfinished.replace(path)


def bring_to_replicas(links: Links, folder: str) -> None:
    """Copy the first replica's files to replicas on other hosts. All ranks that hold the same part call it."""
    own = _listing(folder)
    listings = links.allgather(own, Along.DP)
    lacking = [place for place, listing in enumerate(listings) if not listings[0].items() <= listing.items()]
    if links.group_rank(Along.DP) == 0:
        for place in lacking:
            send_checkpoint_files(links, folder, links.global_rank(Along.DP, place))
    elif links.group_rank(Along.DP) in lacking:
        receive_checkpoint_files(links, folder, links.global_rank(Along.DP, 0))


def _listing(folder: str) -> dict[str, tuple[int, int]]:
    """Return each file's size and modification time, to tell a shared folder from another host's folder."""
    place = Path(folder)
    if not place.is_dir():
        return {}
    return {
        path.name: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in place.iterdir()
        if path.is_file() and not path.name.startswith(".")
    }
