"""`import smdebug.pytorch as smd`."""

from clary.train.debugger import (
    Collection,
    CollectionKeys,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    create_trial,
    modes,
)
from clary.train.debugger.hook import Hook, del_hook, get_hook, set_hook

__all__ = [
    "Collection",
    "CollectionKeys",
    "Hook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
