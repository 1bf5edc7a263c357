"""`checkpoint` and `checkpoint_sequential` of modules, which replace torch's own functions."""

from clary.train.parallel.memory.checkpointing import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
