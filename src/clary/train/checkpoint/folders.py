"""The folder of checkpoints, as one host sees it: listing, publishing and removing steps.

    step-000000001200/              whole: all ranks of all hosts have written their parts to disk
        checkpoint.json             step, save, time, number of parts; written after all parts
        metadata                    torch.distributed.checkpoint's: the tensors, and their division into pieces
        part-00003.bin, .json       the part that rank 3 of the save wrote
    .step-000000001300.SAVE         being written
    .gone-...                       being removed

[Note: whole or not] A step is whole if every part of one save exists with its index, no matter on which hosts. Every
folder named `step-...` belongs to a whole step. A save that was interrupted between two hosts' renames is whole, too,
and `complete` makes the missing rename; this does not depend on hosts' clocks.

[Note: order] Each save has an order number, one higher than the highest that any rank finds in a folder or remembers.
So a program that numbers its steps anew restores its own last step, not a higher one of an earlier run. The number is
the end of the save's name, in 12 digits or more. Saves of releases that counted from 1 in every run have fewer digits:
they have order 0, come before all others, and rank by their steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clary.train.checkpoint.errors import CheckpointError
from clary.train.checkpoint.parts import PartIndex, data_name, sync_folder, write_whole

MARKER, METADATA = "checkpoint.json", "metadata"
_STEP = re.compile(r"(?:step-\d{12,}|\.step-\d{12,}\.[0-9a-f-]+)")
_WRITING = re.compile(r"\.step-\d{12,}\.([0-9a-f]+)-([0-9a-f]+)")
_ORDER = re.compile(r"[0-9a-f]+-([0-9a-f]{12,})")
_INDEX = re.compile(r"part-\d{5,}\.json")
_GONE = ".gone-"


@dataclass(kw_only=True)
class StoredStep:
    """A save's parts in one folder, visible or not."""

    path: Path
    parts: dict[int, PartIndex] = field(default_factory=dict)  # rank that wrote the part -> its index; whole parts only
    has_metadata: bool = False

    @property
    def save(self) -> str:
        """Name of the save to which these parts belong."""
        return next(iter(self.parts.values())).save


def save_name(run: str, order: int) -> str:
    """Return the name of a save: the run's unique name, and the save's order number. See [Note: order]."""
    return f"{run}-{order:012x}"


def order_of(save: str) -> int:
    """Return the order number in a save's name; 0 in a name by an earlier release, whose numbers are no order."""
    match = _ORDER.fullmatch(save)
    return int(match[1], 16) if match is not None else 0


def writing_folder(root: Path, step: int, save: str) -> Path:
    """Return the hidden folder in which a save's parts are written.

    Args:
        root: the folder of all checkpoints.
        step: number of the step; the name has 12 digits.
        save: name of this save, the same on all ranks.
    """
    return root / f".step-{step:012d}.{save}"


def step_folder(root: Path, step: int) -> Path:
    """Return the folder of a whole step."""
    return root / f"step-{step:012d}"


def scan(root: Path) -> list[StoredStep]:
    """Return the stored steps, without incomplete parts and without folders that mix parts of several saves."""
    found = []
    for path in sorted(root.iterdir()):
        if not _STEP.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        step = StoredStep(path=path, has_metadata=(path / METADATA).is_file())
        for name in sorted(os.listdir(path)):
            if not _INDEX.fullmatch(name):
                continue
            with contextlib.suppress(CheckpointError, OSError):
                index = PartIndex.from_json((path / name).read_bytes(), path / name)
                if (path / data_name(index.rank)).stat().st_size == index.num_bytes:
                    step.parts[index.rank] = index
        if step.parts and len({part.save for part in step.parts.values()}) == 1:
            found.append(step)
    return found


def complete(root: Path, written: Path, *, index: PartIndex, saved_at: float) -> None:
    """Make a save visible in a folder. The folder's leader calls it after all ranks have written.

    Args:
        index: index of any part of the save.
        saved_at: seconds since 1970; `prune` orders steps without order numbers by it.

    State after failure: unchanged, or an earlier save of this step is no longer visible; the new save stays whole.
    Raises: OSError.
    """
    target = step_folder(root, index.step)
    if written == target:
        return
    marker = {"step": index.step, "save": index.save, "saved_at": saved_at, "num_parts": index.num_parts}
    write_whole(written / MARKER, json.dumps(marker).encode())
    earlier = _put_aside(target) if target.exists() else None
    written.rename(target)
    sync_folder(root)
    if earlier is not None:
        shutil.rmtree(earlier, ignore_errors=True)


def prune(root: Path, *, keep: int, newest: Path, save: str) -> None:
    """Remove all steps except the last `keep`, and interrupted writes. The folder's leader calls it.

    A removed step is renamed first, so that an interrupted removal leaves no partial checkpoint.

    Args:
        newest: the step that has just become visible; it stays.
        save: name of the save of `newest`. Other ranks of this host may have begun to write the next save.
    """
    steps = sorted((path for path in _steps(root) if path != newest), key=_age_key, reverse=True)
    going = steps[keep - 1 :] + [path for path in root.iterdir() if _is_broken_off(path.name, save)]
    for path in going:
        with contextlib.suppress(FileNotFoundError):
            _put_aside(path)
    for path in root.glob(f"{_GONE}*"):
        shutil.rmtree(path, ignore_errors=True)


def _steps(root: Path) -> Iterator[Path]:
    return (path for path in root.iterdir() if path.name.startswith("step-") and _STEP.fullmatch(path.name))


def _is_broken_off(name: str, save: str) -> bool:
    run, _, number = save.partition("-")
    match = _WRITING.fullmatch(name)
    return match is not None and (match[1] != run or int(match[2], 16) <= int(number, 16))


def _age_key(path: Path) -> tuple[int, float, str]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        marker: dict[str, Any] = json.loads((path / MARKER).read_bytes())
        return order_of(marker["save"]), float(marker["saved_at"]), path.name
    return 0, 0.0, path.name


def _put_aside(path: Path) -> Path:
    aside = path.with_name(f"{_GONE}{secrets.token_hex(4)}-{path.name.lstrip('.')}")
    path.rename(aside)
    return aside
