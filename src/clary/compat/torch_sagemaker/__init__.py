"""`import torch.sagemaker as tsm`: SMP v2 by the name that users' scripts import.

`clary_autoload` makes the name known when torch is imported; the code is in `clary.train.parallel.fsdp`. Python
versions that the train side does not support get an error that says so.
"""

import sys

_FIRST_VERSION = (3, 10)  # of Python, for clary.train

if sys.version_info < _FIRST_VERSION:
    raise ImportError(
        "torch.sagemaker of Clary needs Python 3.10 or newer, this is "
        + sys.version.split()[0]
        + ": choose a newer interpreter for the job's environment in settings.toml."
    )

from clary.train.parallel.fsdp.session import init  # noqa: E402 - in a Python that can read it
from clary.train.parallel.fsdp.state import is_initialized, state  # noqa: E402
from clary.train.parallel.fsdp.training import transform  # noqa: E402

__version__ = "2.8.0"  # the release of SMP whose interface this is

__all__ = ["init", "is_initialized", "state", "transform"]
