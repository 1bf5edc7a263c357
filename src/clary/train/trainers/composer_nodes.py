"""Setting of NODE_RANK, from which Composer reads the number of a rank's host.

Where: `installing` calls it at the import of `composer.utils.dist` in ranks. Composer's own launcher sets NODE_RANK;
torchrun and jobs set GROUP_RANK instead. Without NODE_RANK Composer trains, but refuses to load a checkpoint.
Source: mosaicml 0.32.1 `composer.utils.dist.get_node_rank`.
"""

from __future__ import annotations

import os
from types import ModuleType

_OURS, _THEIRS = "GROUP_RANK", "NODE_RANK"


def name_node(module: ModuleType) -> None:
    """Set Composer's variable for the number of this process's host, unless it is set.

    Args:
        module: `composer.utils.dist`, which is not changed.
    """
    if _OURS in os.environ:
        os.environ.setdefault(_THEIRS, os.environ[_OURS])
