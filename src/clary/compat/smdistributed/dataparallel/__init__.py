"""SMDDP by the name that users' scripts import, on top of `clary.train.collective`."""

from ..giving_way import give_way  # noqa: TID252 - this package has two full names

__version__ = "2.6.0"  # the release of SMDDP whose interface this is

give_way(__name__, __file__)
