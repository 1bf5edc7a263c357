"""Sets NODE_RANK for Composer, which reads the number of a rank's host from it.

Where: `installing` calls it at the import of `composer.utils.dist` in ranks. Composer's own launcher sets NODE_RANK;
torchrun and jobs call the number GROUP_RANK. Without NODE_RANK Composer trains, but refuses to load a checkpoint.
Source: mosaicml 0.32.1 `composer.utils.dist.get_node_rank`.
"""

from __future__ import annotations

import os
from types import ModuleType

_OURS, _THEIRS = "GROUP_RANK", "NODE_RANK"


def name_node(module: ModuleType) -> None:
    """Set the number of this process's host under Composer's name, unless it is set.

    Args:
        module: `composer.utils.dist`, which is not changed.
    """
    if _OURS in os.environ:
        os.environ.setdefault(_THEIRS, os.environ[_OURS])
