"""Composer in ranks that its own launcher has not started: it reads the number of a rank's host from NODE_RANK.

Where: `installing` has `composer.utils.dist` mended in ranks. Without it Composer trains, and refuses to load a
checkpoint: torchrun and jobs call the same number GROUP_RANK.
Source: mosaicml 0.32.1 `composer.utils.dist.get_node_rank`.
"""

from __future__ import annotations

import os
from types import ModuleType

_OURS, _THEIRS = "GROUP_RANK", "NODE_RANK"


def name_node(module: ModuleType) -> None:
    """Give this process the number of its host under Composer's name, unless it has one.

    Args:
        module: `composer.utils.dist`, which is not changed.
    """
    if _OURS in os.environ:
        os.environ.setdefault(_THEIRS, os.environ[_OURS])
