"""`import smdebug.pytorch as smd`."""

from typing import TYPE_CHECKING, Any

from clary.train.debugger import Collection, CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes
from clary.train.debugger.hook import Hook, del_hook, get_hook, set_hook

if TYPE_CHECKING:
    from clary.train.debugger import create_trial

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


def __getattr__(name: str) -> Any:
    if name == "create_trial":
        from clary.train.debugger import create_trial  # imported late: saves 2 ms in programs that only save tensors

        return create_trial
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
