"""SMP v1 under the name that users' scripts import, on top of `clary.train.parallel`."""

from ..giving_way import give_way  # noqa: TID252 - this package has two full names

__version__ = "1.15.0"  # the release of SMP whose interface this package has; transformers requires 1.10 or newer

give_way(__name__, __file__)
