"""Recognition of logs in the checkpoint folder by name. Pure.

Only its name distinguishes a log from a checkpoint that is being written: both grow. Names that checkpoints have too,
for example `vocab.txt`, do not count as logs.
"""

from __future__ import annotations

_ENDINGS = (".log", ".csv", ".tsv", ".jsonl", ".out", ".err", ".wandb")
_TENSORBOARD = ".tfevents."


def is_log(path: str) -> bool:
    """Whether a file is a log by its name."""
    name = path.rpartition("/")[2].lower()
    return name.endswith(_ENDINGS) or _TENSORBOARD in name
