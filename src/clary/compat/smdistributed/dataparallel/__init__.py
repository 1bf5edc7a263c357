"""SMDDP under the name that users' scripts import, on top of `clary.train.collective`."""

from ..giving_way import give_way  # noqa: TID252 - this package has two full names

__version__ = "2.6.0"  # the release of SMDDP whose interface this package has

give_way(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return `DistributedDataParallel`, which guides import from here although AWS's library has it in a submodule.

    Raises: AttributeError for any other name.
    """
    if name != "DistributedDataParallel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .top_level import DistributedDataParallel  # imported late: the import takes 752 ms, mostly for torch

    return DistributedDataParallel
